"""The outcome of a run, in the shapes of the deployment API: the thread's state after it, and its token usage.

Usage is counted by a callback handler and not from the run's events. A node may neither store nor stream a model's
message, and the calls of subgraphs count, too. The handler is registered by LangChain's configure hook, so that a call
is also counted if user code passes its own configuration to the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook
from langgraph.checkpoint.base import Checkpoint
from langgraph.pregel import Pregel
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from .checkpoints.node_times import TASKS
from .checkpoints.run_checkpoints import Saved
from .events import INTERRUPT, coordinates
from .masking import masked
from .protocol.log import OpenInterrupt, open_interrupts
from .serialization import dumps, loads, text_of

DELTA = "DeltaChannel"  # compared by name, since not every supported version of LangGraph has the class
ABSENT = object()
UNKNOWN = "unknown"  # the model of a message that names none

Counts = dict[str, Any]
TOKENS = ("input_tokens", "output_tokens", "total_tokens")


@dataclass
class Outcome:
    """The content of a DONE frame.

    With `unchanged` the state is not known here, and the stored state of the thread stays as it is.
    """

    status: str
    error: dict[str, str] | None = None
    thread_status: str = "idle"
    interrupts: dict[str, list[dict[str, Any]]] | None = None
    state: dict[str, Any] | None = None
    values: bytes = b"null"
    unchanged: bool = False
    keeps_thread: bool = False  # the run was refused, and its thread stays as it was
    usage: dict[str, dict[str, Any]] | None = None  # tokens by model, for any status
    node_usage: dict[str, dict[str, Any]] | None = None  # the same by node
    first_token_ago: float | None = None  # seconds since a model first streamed a token
    spans: dict[str, Any] | None = None  # see spans.py; None: the run keeps none
    replay: dict[str, Any] | None = None  # the report of a replay (replays/replay.py)
    waiting_interrupts: list[OpenInterrupt] = field(default_factory=list)  # of a successful run

    def __post_init__(self) -> None:
        if self.status == "error":
            self.thread_status = "error"

    def fail(self, error: dict[str, str]) -> None:
        self.status, self.error, self.thread_status = "error", error, "error"
        self.waiting_interrupts = []

    def use(self, state: dict[str, Any], values: bytes) -> None:
        """Set the state record, its values, and the thread status that follows from them."""
        self.state, self.values = state, values
        if self.status != "error":
            self.thread_status = "interrupted" if state["next"] else "idle"

    def use_snapshot(self, snapshot: StateSnapshot, thread_id: str) -> None:
        """Set the state from LangGraph's snapshot. A thread without checkpoints has no state."""
        if coordinates(snapshot.config) is None or snapshot.created_at is None:
            return
        self.use(state_record(snapshot, thread_id), dumps(snapshot.values))
        self.interrupts = interrupts_by_task(snapshot.tasks)
        self.waiting_interrupts = open_interrupts(snapshot.tasks) if self.status == "success" else []

    def document(self) -> dict[str, Any]:
        """Return the JSON of the DONE frame."""
        return {
            "status": self.status,
            "error": self.error,
            "thread_status": self.thread_status,
            "interrupts": self.interrupts or {},
            "state": self.state,
            "unchanged": self.unchanged,
            "keeps_thread": self.keeps_thread,
            "usage": self.usage,
            "node_usage": self.node_usage,
            "first_token_ago": self.first_token_ago,
            "spans": self.spans,
            **({"replay": self.replay} if self.replay is not None else {}),
        }

    def unfinished_tasks(self) -> list[dict[str, Any]]:
        """Return the tasks at which the run failed or was cancelled."""
        return self.state["tasks"] if self.state and self.status != "success" else []

    def answer(self, values: Any, values_json: bytes | None) -> bytes:
        """Return the response for a caller that waits for the run: its last values, or its error."""
        if self.status == "error":
            return dumps({"__error__": self.error})
        if self.status == "cancelled" or values is None:
            return self._stored_answer()
        if values_json is not None:
            return values_json
        is_open = isinstance(values, dict) and INTERRUPT in values
        return self.values if self.state and not is_open else dumps(values)

    def lifecycle(self) -> dict[str, Any]:
        if self.status == "error":
            return {"event": "failed", "namespace": [], "error": (self.error or {}).get("message")}
        is_open = self.status == "cancelled" or self.thread_status == "interrupted"
        return {"event": "interrupted" if is_open else "completed", "namespace": []}

    def _stored_answer(self) -> bytes:
        open_interrupts = self.state["interrupts"] if self.state else []
        if self.status == "cancelled" or not open_interrupts:
            return self.values
        values = loads(self.values)
        listed = [{**interrupt, "response_schema": None} for interrupt in open_interrupts]
        return dumps({**(values if isinstance(values, dict) else {}), INTERRUPT: listed})


async def read_state(graph: Pregel, thread_id: str) -> StateSnapshot:
    """Return the thread's state, including the states of interrupted subgraphs, whose tasks raised the interrupts."""
    snapshot = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    if any(task.interrupts and isinstance(task.state, dict) for task in snapshot.tasks):
        snapshot = await graph.aget_state({"configurable": {"thread_id": thread_id}}, subgraphs=True)
    return snapshot


def state_record(snapshot: StateSnapshot, thread_id: str) -> dict[str, Any]:
    """Return a state record without its values."""
    return {
        **empty_record(coordinates(snapshot.config), coordinates(snapshot.parent_config)),
        "next": list(snapshot.next),
        "tasks": [_task_record(task, thread_id) for task in snapshot.tasks],
        "metadata": snapshot.metadata,
        "created_at": snapshot.created_at,
        "interrupts": [interrupt_record(item) for item in snapshot.interrupts],
    }


def empty_record(
    checkpoint: Mapping[str, Any] | None, parent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a state record with nothing but its place."""
    return {
        "next": [],
        "tasks": [],
        "metadata": None,
        "created_at": None,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": [],
        "checkpoint_id": checkpoint["checkpoint_id"] if checkpoint else None,
        "parent_checkpoint_id": parent["checkpoint_id"] if parent else None,
    }


def is_over(graph: Pregel, checkpoint: Checkpoint, streamed: Any) -> bool:
    """Whether a run's last checkpoint has no next steps, and its values are those that were streamed last.

    A step is the last one if its updates trigger no node and send nothing; LangGraph ends its loop by the same test. A
    run that stopped early still has a next step. The values are compared by identity, because some channels are not
    stored or clear themselves.
    """
    updated = checkpoint.get("updated_channels")
    if updated is None or TASKS in updated or not graph.trigger_to_nodes.keys().isdisjoint(updated):
        return False
    stored, names = checkpoint["channel_values"], graph.stream_channels_asis
    if isinstance(names, str):
        return _is_stored(graph, names, stored.get(names, ABSENT), streamed)
    if not isinstance(streamed, dict) or INTERRUPT in streamed:
        return False
    return all(
        _is_stored(graph, name, stored.get(name, ABSENT), streamed.get(name, ABSENT)) for name in names
    )


def _is_stored(graph: Pregel, channel: str, stored: Any, streamed: Any) -> bool:
    """Whether a channel's stored value is the streamed one. A channel stored as its changes always counts as equal."""
    return stored is streamed or type(graph.channels[channel]).__name__ == DELTA


def has_changes(graph: Pregel) -> bool:
    """Whether a graph has channels that are stored as their changes.

    LangGraph rebuilds these from several checkpoints.
    """
    return any(type(channel).__name__ == DELTA for channel in graph.channels.values())


def finished_state(thread_id: str, saved: Saved) -> dict[str, Any]:
    """Return the state record of a finished run from its last checkpoint, without asking LangGraph."""
    place = {"thread_id": thread_id, "checkpoint_ns": ""}
    parent = {"checkpoint_id": saved.parent_id, **place} if saved.parent_id else None
    record = empty_record({"checkpoint_id": saved.checkpoint["id"], **place}, parent)
    return {**record, "metadata": saved.metadata, "created_at": saved.checkpoint["ts"]}


def _task_record(task: PregelTask, thread_id: str) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None
        if task.error is None
        else masked(task.error if isinstance(task.error, str) else text_of(task.error, repr)),
        "interrupts": [interrupt_record(item) for item in task.interrupts],
        "checkpoint": _subgraph_place(task.state, thread_id),
        "state": None,
        "result": task.result,
    }


def _subgraph_place(state: Any, thread_id: str) -> dict[str, Any] | None:
    config = state.config if isinstance(state, StateSnapshot) else state
    conf = (config or {}).get("configurable") or {}
    if not conf.get("checkpoint_ns"):
        return None
    return {"thread_id": thread_id, "checkpoint_ns": conf["checkpoint_ns"]}


def interrupts_by_task(tasks: tuple[PregelTask, ...]) -> dict[str, list[dict[str, Any]]]:
    """Return open interrupts by the id of the innermost task that raised them."""
    interrupts: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        inner = interrupts_by_task(task.state.tasks) if isinstance(task.state, StateSnapshot) else {}
        if inner:
            interrupts.update(inner)
        elif task.interrupts:
            interrupts[task.id] = [interrupt_record(item) for item in task.interrupts]
    return interrupts


def interrupt_record(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "value": interrupt.value}


class UsageCounter(BaseCallbackHandler):
    """The part of a run's callback handler (`spans.py`) that sums the usage of model calls.

    Several threads may call it at the same time. Only sums are kept, so that the report after each call does not take longer with each earlier call.
    """

    run_inline = True  # otherwise LangChain starts a thread for each call of the handler

    def __init__(self, report: Callable[[int], None] = lambda _: None) -> None:
        self._report = report  # called with the sum of all tokens after each increase
        self._node_of: dict[str, str] = {}  # the node of each model call in progress
        self._lock = Lock()  # of the next three
        self._counted: set[str] = set()  # message ids
        self._sums: dict[tuple[str, str], Counts] = {}  # by node and model
        self._total = 0  # input and output tokens
        self._first_token_at: float | None = None

    def _begin_usage(self, run_id: object, details: Mapping[str, Any]) -> None:
        """Record the node of a model call that begins."""
        ns = str((details.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")
        self._node_of[str(run_id)] = text_of(ns.partition("|")[0].partition(":")[0]).replace("\0", "")

    def _drop_usage(self, run_id: object) -> None:
        self._node_of.pop(str(run_id), None)

    def on_llm_new_token(self, token: object, **_: Any) -> None:
        if self._first_token_at is None:
            self._first_token_at = time.monotonic()

    def _count_usage(self, response: LLMResult, run_id: object) -> Mapping[str, Any] | None:
        """Count the usage of a finished call, and return it. A message repeated from a cache counts once."""
        counted = None
        node = self._node_of.pop(str(run_id), "")
        for candidates in response.generations:
            message = getattr(candidates[0], "message", None) if candidates else None
            if isinstance(message, AIMessage) and message.usage_metadata:
                total = self._count_message(
                    message.id or str(run_id), node, model_of(message), message.usage_metadata
                )
                if total is not None:
                    counted = message.usage_metadata
                    self._report(total)
        return counted

    def _count_message(self, message_id: str, node: str, model: str, counts: Mapping[str, Any]) -> int | None:
        """Add the usage of a message. Returns the sum of all tokens; None for a message that is already counted."""
        with self._lock:
            if message_id in self._counted:
                return None
            self._counted.add(message_id)
            _add(self._sums.setdefault((node, model), {}), counts)
            self._total += sum(_count(counts, name) for name in ("input_tokens", "output_tokens"))
            return self._total

    def first_token_ago(self) -> float | None:
        """Return the seconds since a model first streamed a token; None if none did."""
        return None if self._first_token_at is None else time.monotonic() - self._first_token_at

    def by_model(self) -> dict[str, Counts] | None:
        """Return the sums so far by model; None if no call has reported usage."""
        sums: dict[str, Counts] = {}
        with self._lock:
            for (_, model), counts in self._sums.items():
                _add(sums.setdefault(model, {}), counts)
        return sums or None

    def by_node(self) -> dict[str, dict[str, Counts]] | None:
        """Return the sums so far by node of the graph and by model; None if no call has reported usage."""
        sums: dict[str, dict[str, Counts]] = {}
        with self._lock:
            for (node, model), counts in self._sums.items():
                sums.setdefault(node, {})[model] = {name: counts[name] for name in TOKENS if name in counts}
        return sums or None


def model_of(message: AIMessage) -> str:
    described = message.response_metadata
    name = described.get("model_name") or described.get("model") or UNKNOWN
    return text_of(name).replace("\0", "")  # PostgreSQL's jsonb cannot store U+0000


def _count(counts: Mapping[str, Any], name: str) -> int:
    count = counts.get(name)
    return max(count, 0) if isinstance(count, int) else 0


def _add(sums: Counts, counts: Mapping[str, Any]) -> None:
    """Add integer counts to sums, including those of nested details."""
    for name, count in counts.items():
        if isinstance(count, Mapping):
            _add(sums.setdefault(name, {}), count)
        elif isinstance(count, int):
            sums[name] = sums.get(name, 0) + count


current_usage: ContextVar[UsageCounter | None] = ContextVar("current_usage", default=None)
register_configure_hook(current_usage, inheritable=True)
