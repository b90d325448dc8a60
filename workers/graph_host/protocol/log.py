"""Events of protocol v2 in a run's log, besides the classic events, and those for open and answered interrupts.

An event's name is `~` and a JSON array: method, namespace, end of the event's id ("": its number in the log), and name
of the custom event. Its data is the complete `params`, which later components pass on without decoding.

The events for interrupts are written for every run on a thread, even if no reader of protocol v2 is present. They are
rare, and the next client that opens the thread needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import PregelTask, StateSnapshot

from ..inputs import INTERRUPT_ID
from ..serialization import dumps

Namespace = tuple[str, ...]
Send = Callable[[bytes, bytes], None]  # head and data of an EVENT frame

PROTOCOL = "protocol"  # the internal stream mode that requests these events; callers cannot use it
TOO_LARGE = "event_too_large"  # the custom event in place of one that exceeds the limit


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class ProtocolLog:
    """Writes the events of protocol v2 of one run."""

    def __init__(self, send: Send, *, max_bytes: int) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._heads: dict[tuple[str, Namespace, str | None], bytes] = {}
        self._places: dict[tuple[Namespace, str | None], bytes] = {}

    def write(
        self,
        method: str,
        ns: Namespace,
        data: bytes,
        *,
        node: str | None = None,
        id_tail: str = "",
        name: str | None = None,
        timestamp: int | None = None,
    ) -> bool:
        """Write one event. If it is too large, write a custom event in its place and return False."""
        at = b"%d" % (now() if timestamp is None else timestamp)
        params = b"".join((self._place(ns, node), at, b',"data":', data, b"}"))
        if len(params) > self._max_bytes:
            if name != TOO_LARGE:
                self._report_too_large(method, ns, len(params))
            return False
        self._send(_head(method, ns, id_tail, name) if id_tail else self._head(method, ns, name), params)
        return True

    def _head(self, method: str, ns: Namespace, name: str | None) -> bytes:
        key = (method, ns, name)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = _head(method, ns, "", name)
        return head

    def _place(self, ns: Namespace, node: str | None) -> bytes:
        """Return the encoded params up to the timestamp."""
        key = (ns, node)
        place = self._places.get(key)
        if place is None:
            of_node = b"" if node is None else b'"node":' + dumps(node) + b","
            place = b'{"namespace":' + dumps(list(ns)) + b"," + of_node + b'"timestamp":'
            self._places[key] = place
        return place

    def _report_too_large(self, method: str, ns: Namespace, size: int) -> None:
        message = f"{method} event of {size} bytes: the limit is {self._max_bytes} bytes"
        data: dict[str, Any] = {"name": TOO_LARGE, "payload": {"method": method, "message": message}}
        self.write("custom", ns, dumps(data), name=TOO_LARGE)


def _head(method: str, ns: Namespace, id_tail: str, name: str | None) -> bytes:
    return b"~" + dumps([method, list(ns), id_tail, name]) + b"\n"


INTERRUPTED = "__interrupt__"  # LangGraph's names of the channels that a task writes besides its output
CONTROL = frozenset({INTERRUPTED, "__resume__", "__error__", "__error_source_node__"})


class OpenInterrupt(NamedTuple):
    """An interrupt that waits for an answer."""

    namespace: Namespace  # of the graph whose node raised the interrupt
    id: str
    value: Any


def open_interrupts(tasks: Iterable[PregelTask], ns: Namespace = ()) -> list[OpenInterrupt]:
    """Return the open interrupts of a state, each with the namespace of the innermost task that raised it."""
    interrupts: list[OpenInterrupt] = []
    for task in tasks:
        state = task.state if isinstance(task.state, StateSnapshot) else None
        inner = open_interrupts(state.tasks, _namespace_of(state)) if state is not None else []
        interrupts += inner or [OpenInterrupt(ns, item.id, item.value) for item in task.interrupts]
    return interrupts


async def answered_interrupts(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig, resume: Any
) -> list[str]:
    """Return the ids of the interrupts that a run with this resume value answers."""
    if isinstance(resume, Mapping) and resume and all(INTERRUPT_ID.fullmatch(str(key)) for key in resume):
        return [str(key) for key in resume]
    return await waiting_interrupts(saver, config)


async def waiting_interrupts(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> list[str]:
    """Return the ids of the interrupts of a checkpoint, also of nodes that the graph lacks."""
    checkpoint = await saver.aget_tuple(config)
    return [] if checkpoint is None else _open_ids(checkpoint)


def write_requested(
    log: ProtocolLog, interrupts: Iterable[OpenInterrupt], known: Mapping[str, Namespace]
) -> None:
    """Write an event for each open interrupt. `known` maps interrupt ids to the namespaces where they were raised."""
    for interrupt in interrupts:
        ns = known.get(interrupt.id, interrupt.namespace)
        tail = f"input|{'|'.join(ns)}|{interrupt.id}"
        for value in (interrupt.value, None):  # without the value if the event is too large
            data = {"interrupt_id": interrupt.id, "payload": value, "value": value}
            if log.write("input.requested", ns, dumps(data), id_tail=tail):
                break


def write_answered(log: ProtocolLog, ids: list[str]) -> None:
    if ids:
        log.write("input.answered", (), dumps({"interrupt_ids": ids}))


def _open_ids(checkpoint: CheckpointTuple) -> list[str]:
    """Return the ids of interrupts of unfinished tasks in a checkpoint.

    Includes answered interrupts of such a task, because the task may raise them again.
    """
    writes = checkpoint.pending_writes or []
    ended = {task for task, channel, _ in writes if channel not in CONTROL}
    raised = [value for task, channel, value in writes if channel == INTERRUPTED and task not in ended]
    items = [item for value in raised for item in (value if isinstance(value, (list, tuple)) else [value])]
    return list(dict.fromkeys(item.id for item in items if hasattr(item, "id")))


def _namespace_of(state: StateSnapshot) -> Namespace:
    ns = (state.config.get("configurable") or {}).get("checkpoint_ns") or ""
    return tuple(ns.split("|")) if ns else ()
