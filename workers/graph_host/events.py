"""What `graph.astream` yields → EVENT frames, as the deployment API names and shapes them.

An event is encoded here once; nobody on its way looks into it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langgraph.types import Interrupt

from . import frames
from .connection import Connection
from .protocol.log import PROTOCOL, ProtocolLog
from .protocol.writer import ProtocolWriter
from .run_checkpoints import PRIVATE
from .serialization import dumps, error_text, with_masked_error

Namespace = tuple[str, ...]
Handler = Callable[[Namespace, Any], None]

INTERRUPT = "__interrupt__"
# Modes that the library is asked for though nobody reads them. `custom` costs a run of two nodes 0.2 ms when it
# is asked for, `tasks` 0.05 ms, `updates` nothing that can be measured.
UNREAD = ("updates",)

# The graph library's word for what a tool does → the clients' word, and what it brings under which name.
TOOL_EVENTS = {
    "tool-started": ("on_tool_start", "input", "input"),
    "tool-output-delta": ("on_tool_event", "data", "delta"),
    "tool-finished": ("on_tool_end", "output", "output"),
    "tool-error": ("on_tool_error", "error", "message"),
}
TOOL_ENDS = ("on_tool_end", "on_tool_error")


@dataclass(frozen=True)
class Asked:
    """What a run is to stream: what its creator asked for, and what was added before it began (`joined`)."""

    modes: frozenset[str]
    subgraphs: bool = False
    parts: bool = False  # messages as the text so far; may come beside tuples, for different readers
    traced: bool = False  # its runner wants to know when nodes begin and end

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Asked:
        """Of the spec in a RUN frame. Who asks for both forms of messages gets the tuples alone."""
        given = spec.get("stream_mode") or ["values"]
        own = frozenset([given] if isinstance(given, str) else given)
        joined = spec.get("joined") or {}
        added = frozenset(joined.get("stream_mode") or ())
        return cls(
            own | added,
            bool(spec.get("subgraphs") or joined.get("subgraphs") or PROTOCOL in own | added),
            ("messages" in own and "messages-tuple" not in own) or "messages" in added,
            bool(spec.get("traced")),
        )


class EventWriter:
    """Writes the events of one run, and remembers the newest `values` shown."""

    def __init__(self, connection: Connection, id: bytes, asked: Asked, *, max_bytes: int) -> None:
        self._connection = connection
        self._id = id
        self._modes = asked.modes
        self._max_bytes = max_bytes
        self._names: dict[tuple[str, Namespace], bytes] = {}
        self._held: dict[Namespace, dict[str, dict[str, Any]]] = {}
        self._described: set[str] = set()
        self._partial: dict[str, BaseMessageChunk] = {}
        self._metadata: tuple[Any, bytes] = (None, b"")
        self.shown: Any = None  # the newest `values` that callers see
        self.shown_json: bytes | None = None
        self.shows_state = True  # whether they are the whole state
        self.states = 0  # of the graph, seen so far: the one it begins with, and one a step
        self.interrupts: list[Any] = []
        self.is_closed = False
        self._tool_names: dict[str, str] = {}
        # of the subgraphs whose life is reported: those that began, by their task, and have not ended
        self._alive: dict[str, Namespace] | None = None
        self._handlers: dict[str, Handler] = {"values": self._on_values}
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
            self._handlers["messages"] = both if asked.parts else self._on_message_tuple
        elif "messages" in self._modes:
            self._handlers["messages"] = self._on_message
        if "lifecycle" in self._modes and asked.subgraphs:
            self._alive = {}
            self._handlers["tasks"] = self._on_task
        if asked.traced and "events" not in self._modes:
            self._handlers["tasks"] = _both(self._handlers.get("tasks"), self._on_traced)
        # A reader may ask for these while the run is executed. The library's own event stream would show that they
        # are asked for.
        self._unread: dict[str, Handler] = {}
        if "events" not in self._modes:
            self._unread = {mode: optional[mode] for mode in UNREAD if mode not in self._handlers}
        self.protocol: ProtocolWriter | None = None
        if PROTOCOL in self._modes:
            self._join_protocol(ProtocolWriter(self.protocol_log()))

    @property
    def graph_modes(self) -> list[str]:
        """The modes to ask the graph library for. Always `values`: waiting callers get the last ones."""
        return list(dict.fromkeys((*self._handlers, *self._unread)))

    @property
    def values(self) -> Any:
        """The graph's newest state; None where it is not known."""
        return self.shown if self.shows_state else None

    @property
    def values_json(self) -> bytes | None:
        return self.shown_json if self.shows_state else None

    def show_part(self) -> None:
        """From the start: `values` are what the graph's output schema names, and none until there is such a key."""
        self.shown, self.shows_state = {}, False

    def protocol_log(self) -> ProtocolLog:
        """Where the events of protocol v2 go."""
        return ProtocolLog(self._send, max_bytes=self._max_bytes)

    def _join_protocol(self, writer: ProtocolWriter) -> None:
        """Give what the library streams to a second writer, too."""
        self.protocol = writer
        for mode, handler in writer.handlers.items():
            self._handlers[mode] = _both(self._handlers.get(mode), handler)

    def widen(self, modes: Collection[str]) -> None:
        """Write events of these modes too from now on; what the library was not asked for cannot be had."""
        if PROTOCOL in modes and self.protocol is None:
            self._join_protocol(ProtocolWriter(self.protocol_log(), is_late=True))
        for mode in modes:
            handler = self._unread.pop(mode, None)
            if handler is not None:
                self._handlers[mode] = _both(self._handlers.get(mode), handler)
            if mode in self._handlers:
                self._modes |= {mode}

    def write(self, ns: Namespace, mode: str, payload: Any) -> None:
        """Turn one chunk of the graph's stream into events."""
        if ns and self._alive is not None:
            self._begun(ns, self._alive)
        handler = self._handlers.get(mode)
        if handler is not None:
            handler(ns, payload)

    def emit(self, name: str, ns: Namespace, data: bytes) -> None:
        """Send one event; in place of one that is too large, an error event that says so."""
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
        """Send the interrupts that were held back: one event a namespace, after all else of the step."""
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
            # what the step's other tasks wrote, applied after the interrupt was reported
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
            if isinstance(payload, dict) and INTERRUPT in payload:
                self.interrupts = list(payload[INTERRUPT])

    def _on_updates(self, ns: Namespace, payload: Any) -> None:
        if isinstance(payload, dict) and payload.get(INTERRUPT):
            self._hold(ns, "updates", payload)
        else:
            self.emit("updates", ns, dumps(payload))

    def _hold(self, ns: Namespace, mode: str, payload: dict[str, Any]) -> None:
        """Keep interrupts until the step's last one is known: they share one event."""
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
        """A tool's call, as the clients name its parts."""
        call = payload["tool_call_id"]
        name = self._tool_names.setdefault(call, payload.get("tool_name", ""))
        event, part, given = TOOL_EVENTS[payload["event"]]
        brought = payload.get(given)
        if part == "error" and brought is not None:
            brought = error_text(brought)
        data = {"event": event, "toolCallId": call, "name": name, part: brought}
        if event in TOOL_ENDS:
            del self._tool_names[call]
        self.emit("tools", ns, dumps(data))

    def _on_plain_task(self, ns: Namespace, payload: dict[str, Any]) -> None:
        self.emit("tasks", ns, dumps(with_masked_error(payload)))

    def _on_task(self, ns: Namespace, payload: dict[str, Any]) -> None:
        """A task that has ended takes the subgraph that it was along."""
        if "tasks" in self._modes:
            self._on_plain_task(ns, payload)
        inner = self._alive.pop(payload["id"], None) if self._alive and "result" in payload else None
        if inner is None:
            return
        if payload.get("error"):
            self._lived(inner, "failed", error_text(payload["error"]))
        else:
            self._lived(inner, "interrupted" if payload.get("interrupts") else "completed")

    def _on_traced(self, ns: Namespace, payload: dict[str, Any]) -> None:
        """A node begins or ends: for the runner, which makes a span of it."""
        error = payload.get("error")
        told = {
            "id": payload["id"],
            "name": payload["name"],
            "within": ns[-1].rpartition(":")[2] if ns else None,
            "at": time.time(),
            "ended": "result" in payload,
            "error": error_text(error) if error else None,
        }
        self._connection.send(frames.NODE, self._id, dumps(told))

    def _begun(self, ns: Namespace, alive: dict[str, Namespace]) -> None:
        for depth in range(1, len(ns) + 1):
            task = ns[depth - 1].rpartition(":")[2]
            if task not in alive:
                alive[task] = ns[:depth]
                self._lived(ns[:depth], "started")

    def end_subgraphs(self, event: str) -> None:
        """Let those whose task never said so end as the run does, the innermost first."""
        for ns in sorted((self._alive or {}).values(), key=len, reverse=True):
            self._lived(ns, event)
        self._alive = None

    def _lived(self, ns: Namespace, event: str, error: str | None = None) -> None:
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
            inner["tasks"] = [_with_place(task) for task in inner.get("tasks") or ()]
            payload = {**payload, "payload": inner}
        elif payload["type"] == "task_result":
            payload = {**payload, "payload": with_masked_error(payload["payload"])}
        self.emit("debug", ns, dumps(payload))

    def on_library_event(self, event: Mapping[str, Any]) -> None:
        """An item of `astream_events`."""
        self.emit("events", (), dumps(event))


def _both(one: Handler | None, other: Handler) -> Handler:
    if one is None:
        return other

    def handler(ns: Namespace, payload: Any) -> None:
        one(ns, payload)
        other(ns, payload)

    return handler


def _streamed(interrupt: Interrupt) -> dict[str, Any]:
    """An interrupt as events show it, also where the library knows no response schema yet."""
    schema = getattr(interrupt, "response_schema", None)
    return {"value": interrupt.value, "id": interrupt.id, "response_schema": schema}


def _public(payload: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint payload without what is internal in its configs, and without secrets in errors of its tasks."""
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


def _with_place(task: dict[str, Any]) -> dict[str, Any]:
    """A task of a checkpoint; a subgraph's names the place of its checkpoints instead of a config."""
    state = task.get("state")
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": state["configurable"]} if state else task


def coordinates(config: Any) -> dict[str, Any] | None:
    """A checkpoint's place, of the config that addresses it."""
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
