"""Conversion of the chunks of `graph.astream` to EVENT frames, with the names and shapes of the deployment API.

An event is encoded once, here. The runner and the web process pass it on without decoding it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langgraph.types import Interrupt

from . import frames
from .checkpoints.run_checkpoints import PRIVATE
from .connection import Connection
from .protocol.log import PROTOCOL, ProtocolLog
from .protocol.writer import ProtocolWriter
from .serialization import dumps, error_text, with_masked_error

Namespace = tuple[str, ...]
Handler = Callable[[Namespace, Any], None]

INTERRUPT = "__interrupt__"
# Modes requested from LangGraph without a reader, since a reader may join later. For a run of two nodes, requesting
# `custom` costs 0.2 ms, `tasks` 0.05 ms, and `updates` nothing measurable.
UNREAD = ("updates",)

# LangGraph's tool event → the event name for clients, the client's key of its data, and LangGraph's key of its data.
TOOL_EVENTS = {
    "tool-started": ("on_tool_start", "input", "input"),
    "tool-output-delta": ("on_tool_event", "data", "delta"),
    "tool-finished": ("on_tool_end", "output", "output"),
    "tool-error": ("on_tool_error", "error", "message"),
}
TOOL_ENDS = ("on_tool_end", "on_tool_error")


@dataclass(frozen=True)
class StreamRequest:
    """The events requested of a run: by its creator, and by readers that joined before it began (`joined`)."""

    modes: frozenset[str]
    subgraphs: bool = False
    partial_messages: bool = (
        False  # send messages as their text so far; another reader may request tuples besides
    )
    traced: bool = False  # report nodes and calls to the runner

    @property
    def reports_nodes(self) -> bool:
        """Whether the runner learns when nodes begin and end. With the mode `events` it does not."""
        return self.traced and "events" not in self.modes

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> StreamRequest:
        """Read the spec of a RUN frame. A creator that requests both forms of messages gets only tuples."""
        requested = spec.get("stream_mode") or ["values"]
        creator = frozenset([requested] if isinstance(requested, str) else requested)
        joined = spec.get("joined") or {}
        added = frozenset(joined.get("stream_mode") or ())
        return cls(
            creator | added,
            bool(spec.get("subgraphs") or joined.get("subgraphs") or PROTOCOL in creator | added),
            ("messages" in creator and "messages-tuple" not in creator) or "messages" in added,
            bool(spec.get("traced")),
        )


class EventWriter:
    """Writes the events of one run, and remembers its newest `values`."""

    def __init__(self, connection: Connection, id: bytes, request: StreamRequest, *, max_bytes: int) -> None:
        self._connection = connection
        self._id = id
        self._modes = request.modes
        self._max_bytes = max_bytes
        self._names: dict[tuple[str, Namespace], bytes] = {}  # encoded
        self._held: dict[Namespace, dict[str, dict[str, Any]]] = {}  # interrupts of this step, by mode
        self._described: set[str] = set()  # messages whose metadata has been sent
        self._partial: dict[str, BaseMessageChunk] = {}  # by message, its chunks so far
        self._metadata: tuple[Any, bytes] = (None, b"")  # of the latest message, and its JSON
        self.shown: Any = None  # the newest `values` that callers see
        self.shown_json: bytes | None = None
        self.shows_state = True  # whether `shown` is the whole state
        self.states = 0  # number of states seen so far: the initial one, and one per step
        self.is_closed = False
        self._tool_names: dict[str, str] = {}
        # Running subgraphs by the id of their task; None if lifecycle events of subgraphs are not requested.
        self._alive: dict[str, Namespace] | None = None
        self._handlers: dict[str, Handler] = {"values": self._on_values}
        self._unread: dict[str, Handler] = {}
        self._add_handlers(request)
        self.protocol: ProtocolWriter | None = None
        if PROTOCOL in self._modes:
            self._join_protocol(ProtocolWriter(self.protocol_log()))

    def _add_handlers(self, request: StreamRequest) -> None:
        """Add the handlers of the requested modes, and keep those of modes that a later reader may request."""
        optional: dict[str, Handler] = {
            "updates": self._on_updates,
            "custom": self._passed_on("custom"),
            "tasks": self._on_plain_task,
            "checkpoints": self._on_checkpoint,
            "debug": self._on_debug,
            "tools": self._on_tool,
        }
        self._handlers |= {mode: handler for mode, handler in optional.items() if mode in self._modes}
        if "messages-tuple" in self._modes:
            both = self._on_both_messages
            self._handlers["messages"] = both if request.partial_messages else self._on_message_tuple
        elif "messages" in self._modes:
            self._handlers["messages"] = self._on_message
        if "lifecycle" in self._modes and request.subgraphs:
            self._alive = {}
            self._handlers["tasks"] = self._on_task
        if request.reports_nodes:
            self._handlers["tasks"] = _both(self._handlers.get("tasks"), self._on_traced)
        # A reader may request these modes during the run. With the mode `events` they are not requested in advance,
        # because LangChain's event stream would contain their chunks.
        if "events" not in self._modes:
            self._unread = {mode: optional[mode] for mode in UNREAD if mode not in self._handlers}

    @property
    def graph_modes(self) -> list[str]:
        """The modes to request from LangGraph. Always includes `values`: waiting callers receive the last ones."""
        return list(dict.fromkeys((*self._handlers, *self._unread)))

    @property
    def values(self) -> Any:
        """The graph's newest state; None if it is not known."""
        return self.shown if self.shows_state else None

    @property
    def values_json(self) -> bytes | None:
        return self.shown_json if self.shows_state else None

    def show_part(self) -> None:
        """Declare that `values` contain only the keys of the graph's output schema. Called before the first chunk."""
        self.shown, self.shows_state = {}, False

    def protocol_log(self) -> ProtocolLog:
        """Return a log for events of protocol v2, which writes into this run's events."""
        return ProtocolLog(self._send, max_bytes=self._max_bytes)

    def _join_protocol(self, writer: ProtocolWriter) -> None:
        """Add the writer of protocol v2 to the handlers of LangGraph's chunks."""
        self.protocol = writer
        for mode, handler in writer.handlers.items():
            self._handlers[mode] = _both(self._handlers.get(mode), handler)

    def widen(self, modes: Collection[str]) -> None:
        """Begin to write events of these modes. Ignores modes that were not requested from LangGraph."""
        if PROTOCOL in modes and self.protocol is None:
            self._join_protocol(ProtocolWriter(self.protocol_log(), is_late=True))
        for mode in modes:
            handler = self._unread.pop(mode, None)
            if handler is not None:
                self._handlers[mode] = _both(self._handlers.get(mode), handler)
            if mode in self._handlers:
                self._modes |= {mode}

    def write(self, ns: Namespace, mode: str, payload: Any) -> None:
        """Write the events of one chunk of the graph's stream."""
        if ns and self._alive is not None:
            self._begin_subgraphs(ns, self._alive)
        handler = self._handlers.get(mode)
        if handler is not None:
            handler(ns, payload)

    def emit(self, name: str, ns: Namespace, data: bytes) -> None:
        """Send one event. Replaces an event that is too large with an error event."""
        if self.is_closed:
            return
        if len(data) > self._max_bytes:
            message = f"{name} event of {len(data)} bytes: the limit is {self._max_bytes} bytes"
            name, ns, data = "error", (), dumps({"error": "EventTooLarge", "message": message})
        key = (name, ns)
        head = self._names.get(key)
        if head is None:
            head = self._names[key] = "|".join((name, *ns)).encode().replace(b"\n", b" ") + b"\n"
        self._connection.send(frames.EVENT, self._id, head + data)

    def _send(self, head: bytes, data: bytes) -> None:
        if not self.is_closed:
            self._connection.send(frames.EVENT, self._id, head + data)

    def finish(self) -> None:
        """Send the interrupts that were held back: one event per namespace and mode, after the step's other events."""
        for ns, held in self._held.items():
            if "updates" in held and "updates" in self._modes:
                self.emit("updates", ns, dumps(held["updates"]))
            if "values" in held:
                self._values(ns, held["values"])
        self._held.clear()

    def _passed_on(self, name: str) -> Handler:
        def handler(ns: Namespace, payload: Any) -> None:
            self.emit(name, ns, dumps(payload))

        return handler

    def _on_values(self, ns: Namespace, payload: Any) -> None:
        held = self._held.get(ns)
        if isinstance(payload, dict) and INTERRUPT in payload:
            self._hold(ns, "values", payload)
        elif held is not None and "values" in held and isinstance(payload, dict):
            # values that the step's other tasks wrote after the interrupt was reported
            held["values"] = {**payload, INTERRUPT: held["values"][INTERRUPT]}
        else:
            self._values(ns, payload)

    def _values(self, ns: Namespace, payload: Any) -> None:
        data = None
        if "values" in self._modes:
            data = dumps(payload)
            self.emit("values", ns, data)
        if not ns:
            self.shown, self.shown_json = payload, data
            self.states += 1

    def _on_updates(self, ns: Namespace, payload: Any) -> None:
        if isinstance(payload, dict) and payload.get(INTERRUPT):
            self._hold(ns, "updates", payload)
        else:
            self.emit("updates", ns, dumps(payload))

    def _hold(self, ns: Namespace, mode: str, payload: dict[str, Any]) -> None:
        """Hold back interrupts until the step ends, because all interrupts of a step share one event."""
        held = self._held.setdefault(ns, {})
        earlier = held.get(mode, {}).get(INTERRUPT, ())
        known = {item["id"] for item in earlier}
        new = [_streamed(interrupt) for interrupt in payload[INTERRUPT] if interrupt.id not in known]
        held[mode] = {**payload, INTERRUPT: [*earlier, *new]}

    def _on_message_tuple(self, ns: Namespace, payload: Any) -> None:
        message, metadata = payload
        if self._metadata[0] is not metadata:
            self._metadata = (metadata, dumps(metadata))
        self.emit("messages", ns, b"[" + dumps(message) + b"," + self._metadata[1] + b"]")

    def _on_both_messages(self, ns: Namespace, payload: Any) -> None:
        self._on_message(ns, payload)
        self._on_message_tuple(ns, payload)

    def _on_message(self, ns: Namespace, payload: Any) -> None:
        message, metadata = payload
        if not isinstance(message, BaseMessage):
            return
        id = message.id or ""
        if id not in self._described:
            self._described.add(id)
            self.emit("messages/metadata", ns, dumps({id: {"metadata": metadata}}))
        if not isinstance(message, BaseMessageChunk):
            self.emit("messages/complete", ns, dumps([message]))
            return
        so_far = self._partial.get(id)
        whole = message if so_far is None else so_far + message
        assert isinstance(whole, BaseMessageChunk)
        self._partial[id] = whole
        self.emit("messages/partial", ns, dumps([message_chunk_to_message(whole)]))

    def _on_tool(self, ns: Namespace, payload: dict[str, Any]) -> None:
        """Write an event of a tool call, with the names that clients expect."""
        call = payload["tool_call_id"]
        name = self._tool_names.setdefault(call, payload.get("tool_name", ""))
        event, part, source = TOOL_EVENTS[payload["event"]]
        value = payload.get(source)
        if part == "error" and value is not None:
            value = error_text(value)
        data = {"event": event, "toolCallId": call, "name": name, part: value}
        if event in TOOL_ENDS:
            del self._tool_names[call]
        self.emit("tools", ns, dumps(data))

    def _on_plain_task(self, ns: Namespace, payload: dict[str, Any]) -> None:
        self.emit("tasks", ns, dumps(with_masked_error(payload)))

    def _on_task(self, ns: Namespace, payload: dict[str, Any]) -> None:
        """Write a task event. A task that ends also ends its subgraph, if it is one."""
        if "tasks" in self._modes:
            self._on_plain_task(ns, payload)
        inner = self._alive.pop(payload["id"], None) if self._alive and "result" in payload else None
        if inner is None:
            return
        if payload.get("error"):
            self._write_lifecycle(inner, "failed", error_text(payload["error"]))
        else:
            self._write_lifecycle(inner, "interrupted" if payload.get("interrupts") else "completed")

    def _on_traced(self, ns: Namespace, payload: dict[str, Any]) -> None:
        """Report to the runner that a node begins or ends. The runner creates a span from it."""
        error = payload.get("error")
        frame = {
            "id": payload["id"],
            "name": payload["name"],
            "within": ns[-1].rpartition(":")[2] if ns else None,
            "at": time.time(),
            "ended": "result" in payload,
            "error": error_text(error) if error else None,
        }
        self._connection.send(frames.NODE, self._id, dumps(frame))

    def _begin_subgraphs(self, ns: Namespace, alive: dict[str, Namespace]) -> None:
        for depth in range(1, len(ns) + 1):
            task = ns[depth - 1].rpartition(":")[2]
            if task not in alive:
                alive[task] = ns[:depth]
                self._write_lifecycle(ns[:depth], "started")

    def end_subgraphs(self, event: str) -> None:
        """Write end events of the subgraphs whose tasks have not ended, as the run ends; the innermost first."""
        for ns in sorted((self._alive or {}).values(), key=len, reverse=True):
            self._write_lifecycle(ns, event)
        self._alive = None

    def _write_lifecycle(self, ns: Namespace, event: str, error: str | None = None) -> None:
        data: dict[str, Any] = {"event": event, "namespace": list(ns)}
        if error is not None:
            data["error"] = error
        self.emit("lifecycle", ns, dumps(data))

    def _on_checkpoint(self, ns: Namespace, payload: Any) -> None:
        self.emit("checkpoints", ns, dumps(_public(payload)))

    def _on_debug(self, ns: Namespace, payload: Any) -> None:
        if payload["type"] == "checkpoint":
            inner = _public(payload["payload"])
            inner["checkpoint"] = coordinates(inner.get("config"))
            inner["parent_checkpoint"] = coordinates(inner.get("parent_config"))
            inner["tasks"] = [_with_checkpoint(task) for task in inner.get("tasks") or ()]
            payload = {**payload, "payload": inner}
        elif payload["type"] == "task_result":
            payload = {**payload, "payload": with_masked_error(payload["payload"])}
        self.emit("debug", ns, dumps(payload))

    def on_library_event(self, event: Mapping[str, Any]) -> None:
        """Write an item of LangChain's `astream_events`."""
        self.emit("events", (), dumps(event))


def _both(one: Handler | None, other: Handler) -> Handler:
    if one is None:
        return other

    def handler(ns: Namespace, payload: Any) -> None:
        one(ns, payload)
        other(ns, payload)

    return handler


def _streamed(interrupt: Interrupt) -> dict[str, Any]:
    """Return an interrupt as events contain it. Older versions of LangGraph have no response schema."""
    schema = getattr(interrupt, "response_schema", None)
    return {"value": interrupt.value, "id": interrupt.id, "response_schema": schema}


def _public(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint payload without internal entries of its configs and without secrets in its tasks' errors."""
    out = dict(payload)
    for key in ("config", "parent_config"):
        if out.get(key):
            conf = out[key].get("configurable", {})
            out[key] = {"configurable": {k: v for k, v in conf.items() if _is_shown(k)}}
    if out.get("tasks"):
        out["tasks"] = [with_masked_error(task) for task in out["tasks"]]
    return out


def _is_shown(name: str) -> bool:
    return not name.startswith("__") and name not in PRIVATE


def _with_checkpoint(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task of a checkpoint. A subgraph's task has `checkpoint`, the place of its checkpoints, not `state`."""
    state = task.get("state")
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": state["configurable"]} if state else task


def coordinates(config: Any) -> dict[str, Any] | None:
    """Return the coordinates of the checkpoint that a config addresses; None if it addresses none."""
    conf = (config or {}).get("configurable") or {}
    if not conf.get("checkpoint_id"):
        return None
    out = {
        "checkpoint_id": conf["checkpoint_id"],
        "thread_id": conf.get("thread_id"),
        "checkpoint_ns": conf.get("checkpoint_ns", ""),
    }
    if conf.get("checkpoint_map"):
        out["checkpoint_map"] = conf["checkpoint_map"]
    return out
