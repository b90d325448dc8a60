"""What `graph.astream` yields → the events of protocol v2: the second view of a run, beside the classic one.

Made of the same chunks as the classic events, only where somebody wants it. The library's own streaming of blocks is not
used: it changes what models' messages are stored as, and a state must not depend on how its run was watched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk

from ..masking import masked
from ..serialization import dumps, error_record, with_masked_error
from .input_events import OpenInterrupt, write_requested
from .log import Namespace, ProtocolLog, now
from .message_blocks import MessageBlocks
from .model_calls import ModelCalls
from .short_values import short_dumps
from .subgraph_lives import SubgraphLives

log = logging.getLogger("runyard")

INTERRUPT = "__interrupt__"
PUSH = "__pregel_push"  # begins the path of a task that was called or sent to
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "tools")
LATE_MODES = ("values", "updates")  # what a reader gets of a run that was begun without these events

Handler = Callable[[Namespace, Any], None]
Encoded = tuple[str, bytes, int]  # method, data, timestamp


@dataclass
class Held:
    """What a namespace's steps brought, until it has begun and the newest values' checkpoint has followed."""

    ready: list[Encoded] = field(default_factory=list)
    values: Encoded | None = None

    def settle(self) -> None:
        """The values' checkpoint has come, or will not."""
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
    """Writes protocol v2's events of one run. `is_late`: it begins in the midst of the run."""

    def __init__(self, log: ProtocolLog, *, is_late: bool = False) -> None:
        self.calls = ModelCalls()
        # of the graph's own transformers, where it has any: they see each event before it is written
        self.intercept: Callable[[dict[str, Any]], None] | None = None
        self._log = log
        self._lives = SubgraphLives(log)
        self._is_late = is_late
        self._held: dict[Namespace, Held] = {}
        self._last: Any = None  # the root's values after an interrupt: they come after all else
        self._raised: dict[str, Namespace] = {}  # interrupts, by where they were seen
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
        """By mode, what takes the chunks of the graph's stream."""
        if self._is_late:
            return {mode: _guarded(partial(self._take, mode)) for mode in LATE_MODES}
        handlers: dict[str, Handler] = {mode: partial(self._take, mode) for mode in MODES}
        handlers["messages"] = self._on_message
        return {mode: _guarded(handler) for mode, handler in handlers.items()}

    def write(self, method: str, ns: Namespace, data: Any, timestamp: int) -> None:
        """Write what is left of a library's event after the graph's transformers."""
        self._writers[method](ns, data, timestamp)

    def write_named(self, name: str, ns: Namespace, payload: Any) -> None:
        """Write what a transformer has put into a channel of its own."""
        self._log.write("custom", ns, short_dumps({"name": name, "payload": payload}), name=name)

    def close(self, event: str, error: Mapping[str, Any] | None, asked: Iterable[OpenInterrupt]) -> None:
        """The run is over: write what was held back. `event` is what its lifecycle ends with."""
        self._settle()
        for ns in sorted(self._held, key=len, reverse=True):
            self._release(ns)
        for key in list(self._messages):
            self._end_message(key, event, error)
        self._lives.end_all(event, None if error is None else str(error.get("message") or ""))
        write_requested(self._log, asked, self._raised)
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
        """Messages of model calls, and those that a node pushes; one that a node returns is part of `values`."""
        message, metadata = payload
        if not isinstance(message, BaseMessage):
            return
        self._settle()  # before this message counts: the last of a finished call has yet to be sent
        call = self.calls.call_of(message)
        if call is None and self.calls.is_returned(metadata):
            if self.intercept is not None:
                self._take("messages", ns, (message, metadata))
            return
        key = call.run_id if call is not None else message.id or ""
        is_chunk = isinstance(message, BaseMessageChunk)
        if call is not None and (call.is_reported or (call.produced and not is_chunk)):
            return  # nothing is left to say, or it is the whole of what came in chunks
        streamed = self._messages.get(key)
        if streamed is None:
            streamed = self._begin_message(key, ns, message, metadata)
        self._say(streamed, streamed.blocks.add(message))
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
        self._say(streamed, [blocks.begin(message, metadata)])
        return streamed

    def _end_message(
        self, key: str, event: str = "completed", error: Mapping[str, Any] | None = None
    ) -> None:
        streamed = self._messages.pop(key, None)
        if streamed is None:
            return
        if event == "failed":
            said = {"message": (error or {}).get("message"), "code": (error or {}).get("error")}
            self._say(streamed, [{"event": "error", **said}])
        elif event == "completed":
            self._say(streamed, streamed.blocks.finish())

    def _settle(self) -> None:
        """End the messages of calls that are over and all of whose chunks have been streamed."""
        over = self.calls.over
        for _ in range(len(over)):
            call = over.popleft()
            if not call.is_streamed:
                over.append(call)
                continue
            self.calls.forget(call)
            if call.error is None:
                self._end_message(call.run_id)
            elif isinstance(call.error, Exception):  # a cancelled one only stops
                self._end_message(call.run_id, "failed", error_record(call.error))

    def _say(self, streamed: Streamed, events: Iterable[dict[str, Any]]) -> None:
        known = {"run_id": streamed.run_id, "message_id": streamed.blocks.id}
        metadata: Mapping[str, Any] = streamed.metadata
        if self.intercept is not None:
            metadata = {**metadata, "run_id": streamed.run_id}
        for event in events:
            self._take("messages", streamed.ns, ({**event, **known}, metadata))

    def _on_message_event(self, ns: Namespace, data: Any, at: int) -> None:
        event, metadata = data
        if isinstance(event, Mapping):  # else a message that was shown to the transformers alone
            self._log.write("messages", ns, dumps(event), node=metadata.get("langgraph_node"), timestamp=at)

    # What a step brings

    def _on_values(self, ns: Namespace, payload: Any, at: int) -> None:
        is_last = isinstance(payload, Mapping) and INTERRUPT in payload
        if is_last:
            payload = {key: value for key, value in payload.items() if key != INTERRUPT}
            if not payload:
                return  # a graph whose state is one value streams interrupts without it
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
        """A checkpoint comes after its step's values, and is sent before them."""
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
                self._raised.setdefault(item["id"], ns)  # the innermost task is the first to end
            for inner in [known for known in self._held if len(known) > len(ns) and known[: len(ns)] == ns]:
                if inner[len(ns)].partition(":")[2] == payload["id"]:
                    self._release(inner)
            self._lives.end_task(ns, payload)
        self._log.write("tasks", ns, dumps(with_masked_error(payload)), timestamp=at)

    def _on_updates(self, ns: Namespace, payload: Any, at: int) -> None:
        """One event a node; what the library adds under names of its own is sent elsewhere."""
        for node, output in payload.items():
            if not node.startswith("__"):
                self._log.write("updates", ns, short_dumps(output), node=node, timestamp=at)

    def _on_custom(self, ns: Namespace, payload: Any, at: int) -> None:
        """An object with a name goes out as it is, on the channel of that name."""
        name = payload.get("name") if isinstance(payload, dict) else None
        if isinstance(name, str) and name:
            self._log.write("custom", ns, dumps(payload), name=name, timestamp=at)
        else:
            self._log.write("custom", ns, dumps({"payload": payload}), timestamp=at)

    def _on_tool(self, ns: Namespace, payload: Mapping[str, Any], at: int) -> None:
        delta = payload.get("delta")
        if delta is not None and not isinstance(delta, str):
            payload = {**payload, "delta": dumps(delta).decode()}
        if isinstance(payload.get("message"), str):  # of a tool that failed
            payload = {**payload, "message": masked(payload["message"])}
        self._log.write("tools", ns, dumps(payload), timestamp=at)


def _graph_of(metadata: Mapping[str, Any], ns: Namespace) -> Namespace:
    """The namespace of the graph a node is in, which older versions do not stream its messages under."""
    place, path = metadata.get("langgraph_checkpoint_ns"), metadata.get("langgraph_path")
    if not place:
        return ns
    tasks = 1
    while isinstance(path, (tuple, list)) and len(path) == 4 and path[0] == PUSH and path[3] is True:
        tasks, path = tasks + 1, path[1]  # a task that a node calls runs in the node's graph
    return tuple(place.split("|")[:-tasks])


def _guarded(handler: Handler) -> Handler:
    """A run goes on whatever cannot be shown of it."""

    def guarded(ns: Namespace, payload: Any) -> None:
        try:
            handler(ns, payload)
        except Exception:  # what the project's own objects do, of any kind
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
