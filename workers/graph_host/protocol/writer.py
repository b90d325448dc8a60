"""Conversion of the chunks of `graph.astream` to events of protocol v2, the second view of a run.

The events are derived from the same chunks as the classic events, only if a reader requests them. LangGraph's own
streaming of content blocks is not used, because it changes the stored form of model messages. A thread's state must not
depend on the readers of its runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, BaseMessageChunk

from ..masking import masked
from ..serialization import dumps, error_record, error_text, short_dumps, with_masked_error
from .log import Namespace, OpenInterrupt, ProtocolLog, now, write_requested
from .messages import MessageBlocks, ModelCalls

log = logging.getLogger("runyard")

INTERRUPT = "__interrupt__"
PUSH = "__pregel_push"  # first element in the path of a task that was called, or started by a Send
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "tools")
LATE_MODES = ("values", "updates")  # the modes for a reader that joins a run begun without protocol v2

Handler = Callable[[Namespace, Any], None]
Encoded = tuple[str, bytes, int]  # method, data, timestamp


class Life(NamedTuple):
    """A running subgraph."""

    namespace: Namespace
    graph_name: str


class SubgraphLives:
    """Writes the `lifecycle` events of one run's subgraphs. Those of the run itself are derived from its log."""

    def __init__(self, log: ProtocolLog) -> None:
        self._log = log
        self._begun: set[Namespace] = {()}
        self._alive: dict[tuple[Namespace, str], Life] = {}  # by the subgraph's task: its namespace and id
        self._tool_calls: dict[str, str] = {}  # task id → id of the model's tool call that it executes

    def has_begun(self, ns: Namespace) -> bool:
        return ns in self._begun

    def note_task(self, ns: Namespace, task: Mapping[str, Any]) -> None:
        """Record that a task begins, which shows that its graph has begun."""
        call = _tool_call(task.get("input"))
        if call is not None:
            self._tool_calls[task["id"]] = call
        self.begin(ns, (task.get("metadata") or {}).get("lc_agent_name"))

    def begin(self, ns: Namespace, agent: str | None = None) -> None:
        """Write start events of this namespace and the namespaces around it, unless already written."""
        if ns in self._begun:
            return
        self.begin(ns[:-1])
        self._begun.add(ns)
        name, _, task = ns[-1].partition(":")
        if not task:
            return  # the surrounding task uses a subgraph again, which has no lifecycle of its own
        data: dict[str, Any] = {
            "event": "started",
            "namespace": list(ns),
            "graph_name": agent or name,
            "trigger_call_id": task,
        }
        if task in self._tool_calls:
            data["cause"] = {"type": "toolCall", "tool_call_id": self._tool_calls[task]}
        life = self._alive[ns[:-1], task] = Life(ns, data["graph_name"])
        self._write(life, data)

    def end_task(self, ns: Namespace, task: Mapping[str, Any]) -> None:
        """Record that a task has ended, and write the end event of its subgraph, if it is one."""
        self._tool_calls.pop(task["id"], None)
        life = self._alive.pop((ns, task["id"]), None)
        if life is None:
            return
        if task.get("interrupts"):
            self._end(life, "interrupted")
        elif task.get("error"):
            self._end(life, "failed", error_text(task["error"]))
        else:
            self._end(life, "completed")

    def end_all(self, event: str, error: str | None) -> None:
        """Write end events of the subgraphs whose tasks have not ended, as the run ends; the innermost first."""
        for life in sorted(self._alive.values(), key=lambda life: len(life.namespace), reverse=True):
            self._end(life, event, error if event == "failed" else None)
        self._alive.clear()

    def _end(self, life: Life, event: str, error: str | None = None) -> None:
        data = {"event": event, "namespace": list(life.namespace), "graph_name": life.graph_name}
        self._write(life, data if error is None else {**data, "error": error})

    def _write(self, life: Life, data: dict[str, Any]) -> None:
        tail = f"lc|{'|'.join(life.namespace)}|{data['event']}"
        self._log.write("lifecycle", life.namespace, dumps(data), id_tail=tail)


def _tool_call(input: Any) -> str | None:
    """Return the id of the tool call in a task's input. Older versions of LangGraph pass a list of calls."""
    if isinstance(input, Mapping) and isinstance(input.get("tool_call"), Mapping):
        input = [input["tool_call"]]
    if not isinstance(input, list):
        return None
    ids = [
        call["id"] for call in input if isinstance(call, Mapping) and call.keys() >= {"id", "name", "args"}
    ]
    return ids[0] if ids and isinstance(ids[0], str) else None


@dataclass
class Held:
    """Held-back events of a namespace, until the namespace has begun and the checkpoint of its values has arrived."""

    ready: list[Encoded] = field(default_factory=list)
    values: Encoded | None = None

    def settle(self) -> None:
        """Release the values, since their checkpoint has arrived or will not arrive."""
        if self.values is not None:
            self.ready.append(self.values)
            self.values = None


@dataclass
class Streamed:
    """A message that is being streamed."""

    blocks: MessageBlocks
    ns: Namespace
    metadata: Mapping[str, Any]
    run_id: str


class ProtocolWriter:
    """Writes the events of protocol v2 of one run. `is_late` means that it begins during the run."""

    def __init__(self, log: ProtocolLog, *, is_late: bool = False) -> None:
        self.calls = ModelCalls()
        # Set if the graph has stream transformers: receives each event instead of the log.
        self.intercept: Callable[[dict[str, Any]], None] | None = None
        self._log = log
        self._lives = SubgraphLives(log)
        self._is_late = is_late
        self._held: dict[Namespace, Held] = {}
        self._last: Any = None  # the root's values after an interrupt, which are written last
        self._raised: dict[str, Namespace] = {}  # interrupt id → namespace of the task that raised it
        self._messages: dict[str, Streamed] = {}
        self._writers: dict[str, Callable[[Namespace, Any, int], None]] = {
            "values": self._on_values,
            "updates": self._on_updates,
            "messages": self._on_message_event,
            "custom": self._on_custom,
            "tasks": self._on_task,
            "checkpoints": self._on_checkpoint,
            "tools": self._on_tool,
        }

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers of the graph's chunks, by stream mode."""
        if self._is_late:
            return {mode: _guarded(partial(self._take, mode)) for mode in LATE_MODES}
        handlers: dict[str, Handler] = {mode: partial(self._take, mode) for mode in MODES}
        handlers["messages"] = self._on_message
        return {mode: _guarded(handler) for mode, handler in handlers.items()}

    def write(self, method: str, ns: Namespace, data: Any, timestamp: int) -> None:
        """Write an event that has passed the graph's transformers."""
        self._writers[method](ns, data, timestamp)

    def write_named(self, name: str, ns: Namespace, payload: Any) -> None:
        """Write an event that a transformer has written to a named channel."""
        self._log.write("custom", ns, short_dumps({"name": name, "payload": payload}), name=name)

    def close(self, event: str, error: Mapping[str, Any] | None, interrupts: Iterable[OpenInterrupt]) -> None:
        """Write all held-back events at the end of the run. `event` is the last lifecycle event of the run."""
        self._settle()
        for ns in sorted(self._held, key=len, reverse=True):
            self._release(ns)
        for key in list(self._messages):
            self._end_message(key, event, error)
        self._lives.end_all(event, None if error is None else str(error.get("message") or ""))
        write_requested(self._log, interrupts, self._raised)
        if self._last is not None:
            self._log.write("values", (), short_dumps(self._last))

    def _take(self, mode: str, ns: Namespace, payload: Any) -> None:
        at = now()
        if self.intercept is None:
            self._writers[mode](ns, payload, at)
        else:
            params = {"namespace": list(ns), "timestamp": at, "data": payload}
            self.intercept({"type": "event", "method": mode, "params": params})

    # Messages

    def _on_message(self, ns: Namespace, payload: Any) -> None:
        """Stream messages of model calls and messages that a node pushes.

        A message that a node returns is not streamed, since it is part of `values`.
        """
        message, metadata = payload
        if not isinstance(message, BaseMessage):
            return
        self._settle()  # called before this message is counted: a call's last message must still be sent
        call = self.calls.call_of(message)
        if call is None and self.calls.is_returned(metadata):
            if self.intercept is not None:
                self._take("messages", ns, (message, metadata))
            return
        key = call.run_id if call is not None else message.id or ""
        is_chunk = isinstance(message, BaseMessageChunk)
        if call is not None and (call.is_reported or (call.produced and not is_chunk)):
            return  # already sent as a whole message or in chunks
        streamed = self._messages.get(key)
        if streamed is None:
            streamed = self._begin_message(key, ns, message, metadata)
        self._write_message_events(streamed, streamed.blocks.add(message))
        is_last = not is_chunk or getattr(message, "chunk_position", None) == "last"
        if is_last:
            self._end_message(key)
        if is_last and call is not None:
            call.is_reported = True

    def _begin_message(
        self, key: str, ns: Namespace, message: BaseMessage, metadata: Mapping[str, Any]
    ) -> Streamed:
        blocks = MessageBlocks(message)
        streamed = self._messages[key] = Streamed(blocks, _graph_of(metadata, ns), metadata, key)
        self._write_message_events(streamed, [blocks.begin(message, metadata)])
        return streamed

    def _end_message(
        self, key: str, event: str = "completed", error: Mapping[str, Any] | None = None
    ) -> None:
        streamed = self._messages.pop(key, None)
        if streamed is None:
            return
        if event == "failed":
            details = {"message": (error or {}).get("message"), "code": (error or {}).get("error")}
            self._write_message_events(streamed, [{"event": "error", **details}])
        elif event == "completed":
            self._write_message_events(streamed, streamed.blocks.finish())

    def _settle(self) -> None:
        """End the messages of finished calls whose chunks have all been streamed."""
        ended = self.calls.ended
        for _ in range(len(ended)):
            call = ended.popleft()
            if not call.is_streamed:
                ended.append(call)
                continue
            self.calls.forget(call)
            if call.error is None:
                self._end_message(call.run_id)
            elif isinstance(call.error, Exception):  # a cancelled call's message just stops
                self._end_message(call.run_id, "failed", error_record(call.error))

    def _write_message_events(self, streamed: Streamed, events: Iterable[dict[str, Any]]) -> None:
        known = {"run_id": streamed.run_id, "message_id": streamed.blocks.id}
        metadata: Mapping[str, Any] = streamed.metadata
        if self.intercept is not None:
            metadata = {**metadata, "run_id": streamed.run_id}
        for event in events:
            self._take("messages", streamed.ns, ({**event, **known}, metadata))

    def _on_message_event(self, ns: Namespace, data: Any, at: int) -> None:
        event, metadata = data
        if isinstance(event, Mapping):  # otherwise it is a message meant only for transformers
            self._log.write("messages", ns, dumps(event), node=metadata.get("langgraph_node"), timestamp=at)

    # Events of steps

    def _on_values(self, ns: Namespace, payload: Any, at: int) -> None:
        is_last = isinstance(payload, Mapping) and INTERRUPT in payload
        if is_last:
            payload = {key: value for key, value in payload.items() if key != INTERRUPT}
            if not payload:
                return  # a graph whose state is a single value streams interrupts without the value
        if not ns and (is_last or self._last is not None):
            self._last = payload
            return
        if self._is_late:
            self._log.write("values", ns, short_dumps(payload), timestamp=at)
            return
        if self._lives.has_begun(ns):
            self._release(ns)
        held = self._held.setdefault(ns, Held())
        held.settle()
        held.values = ("values", short_dumps(payload), at)

    def _on_checkpoint(self, ns: Namespace, payload: Mapping[str, Any], at: int) -> None:
        """Write a checkpoint before its step's values, although LangGraph streams it after them."""
        held = self._held.setdefault(ns, Held())
        held.ready.append(("checkpoints", dumps(_checkpoint(payload)), at))
        held.settle()
        if self._lives.has_begun(ns):
            self._release(ns)

    def _release(self, ns: Namespace) -> None:
        held = self._held.pop(ns, None)
        if held is None:
            return
        self._lives.begin(ns)
        held.settle()
        for method, data, at in held.ready:
            self._log.write(method, ns, data, timestamp=at)

    def _on_task(self, ns: Namespace, payload: Mapping[str, Any], at: int) -> None:
        if "result" not in payload:
            self._lives.note_task(ns, payload)
            self._release(ns)
        else:
            self._settle()
            for item in payload.get("interrupts") or ():
                self._raised.setdefault(item["id"], ns)  # the innermost task ends first
            for inner in [known for known in self._held if len(known) > len(ns) and known[: len(ns)] == ns]:
                if inner[len(ns)].partition(":")[2] == payload["id"]:
                    self._release(inner)
            self._lives.end_task(ns, payload)
        self._log.write("tasks", ns, dumps(with_masked_error(payload)), timestamp=at)

    def _on_updates(self, ns: Namespace, payload: Any, at: int) -> None:
        """Write one event per node. Skips LangGraph's internal keys, whose content is sent in other events."""
        for node, output in payload.items():
            if not node.startswith("__"):
                self._log.write("updates", ns, short_dumps(output), node=node, timestamp=at)

    def _on_custom(self, ns: Namespace, payload: Any, at: int) -> None:
        """Write a custom event. An object with a `name` is written unchanged, to the channel of that name."""
        name = payload.get("name") if isinstance(payload, dict) else None
        if isinstance(name, str) and name:
            self._log.write("custom", ns, dumps(payload), name=name, timestamp=at)
        else:
            self._log.write("custom", ns, dumps({"payload": payload}), timestamp=at)

    def _on_tool(self, ns: Namespace, payload: Mapping[str, Any], at: int) -> None:
        delta = payload.get("delta")
        if delta is not None and not isinstance(delta, str):
            payload = {**payload, "delta": dumps(delta).decode()}
        if isinstance(payload.get("message"), str):  # the error of a failed tool
            payload = {**payload, "message": masked(payload["message"])}
        self._log.write("tools", ns, dumps(payload), timestamp=at)


def _graph_of(metadata: Mapping[str, Any], ns: Namespace) -> Namespace:
    """Return the namespace of the graph that a node belongs to.

    Older versions of LangGraph stream a node's messages under another namespace.
    """
    place, path = metadata.get("langgraph_checkpoint_ns"), metadata.get("langgraph_path")
    if not place:
        return ns
    tasks = 1
    while isinstance(path, (tuple, list)) and len(path) == 4 and path[0] == PUSH and path[3] is True:
        tasks, path = tasks + 1, path[1]  # a task called by a node belongs to the node's graph
    return tuple(place.split("|")[:-tasks])


def _guarded(handler: Handler) -> Handler:
    """Wrap a handler to log its errors, since an event that cannot be written must not fail the run."""

    def guarded(ns: Namespace, payload: Any) -> None:
        try:
            handler(ns, payload)
        except Exception:  # any error of the project's own objects
            log.exception("an event of protocol v2 could not be written")

    return guarded


def _checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    metadata = payload.get("metadata") or {}
    return {
        "id": _checkpoint_id(payload.get("config")),
        "parent_id": _checkpoint_id(payload.get("parent_config")),
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }


def _checkpoint_id(config: Any) -> str | None:
    return ((config or {}).get("configurable") or {}).get("checkpoint_id")
