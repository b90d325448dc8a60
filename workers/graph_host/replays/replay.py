"""The replay of one run: answers to its tool and model calls, and the report about them.

A run is replayed if its spec has `replay`:

    tools       "recorded": a call is answered with the result of the equal recorded call; "live": tools are executed
    live_tools  names of tools that are executed if a call is not recorded
    models      "live", or "recorded": a call with recorded messages is answered with the recorded message
    network     true: code of the run may open connections outside of models and executed tools (`network.py`)
    recording   {"tools", "models"} of the past run (`recordings.py`)

Equal tool calls have the same name and arguments. They receive the recorded results in order, and the last one again.
The arguments are those that the tool receives, or those of the model's message: middleware may change them in between.
A call without a recorded result is not executed: the graph receives an error message.

`interception.py` passes the calls of tools and models to the replay of the current run.
"""

from __future__ import annotations

import base64
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from types import CodeType
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Command, interrupt

from ..serialization import dumps, loads
from .overlay import StoreOverlay, current_overlay

Send = Callable[[Sequence[tuple[str, Any]]], None]  # adds writes to channels to those of the current task

CONFIG_KEY_SEND = "__pregel_send"
MAX_REPORTED = 100  # entries of each list of the report
MAX_ARGS_BYTES = 2_000  # of the arguments of an unrecorded call in the report

current_replay: ContextVar[Replay | None] = ContextVar("current_replay", default=None)


class Replay:
    """The rules, the recording and the report of one replayed run. Several threads may use it at the same time."""

    def __init__(self, spec: Mapping[str, Any], serde: SerializerProtocol) -> None:
        recording = spec.get("recording") or {}
        self._serde = serde
        self._are_tools_live = spec.get("tools") == "live"
        self._live_tools = frozenset(spec.get("live_tools") or ())
        self._tools = _Answers(
            (_tool_key(call["name"], call["args"]), call.get("at", ""), call)
            for call in recording.get("tools") or ()
        )
        self._models = _Answers(
            (call["messages"], "", call)
            for call in recording.get("models") or ()
            if spec.get("models") == "recorded"
        )
        self._lock = threading.Lock()
        self._by_id: dict[str, str] = {}  # call id → key of the call, as a model of this run made it
        self._unrecorded: list[dict[str, Any]] = []
        self._live: dict[str, None] = {}
        self._network: dict[str, None] = {}
        self._counts = {"models_recorded": 0, "models_live": 0}
        self.has_network = bool(spec.get("network"))

    def enter(self) -> None:
        """Make this the replay of the current context, in which the run is executed."""
        current_replay.set(self)
        current_overlay.set(StoreOverlay())

    def report(self) -> dict[str, Any]:
        """Return the report that the DONE frame contains."""
        return {
            "unrecorded": self._unrecorded,
            "live": list(self._live),
            "network": list(self._network),
            **self._counts,
        }

    def report_network(self, attempt: str) -> None:
        """Record a refused connection, or a refused request to the deployment."""
        with self._lock:
            if len(self._network) < MAX_REPORTED:
                self._network[attempt] = None

    def learn_calls(self, message: BaseMessage) -> None:
        """Remember the tool calls of a model's message."""
        for call in getattr(message, "tool_calls", ()):
            if call["id"]:
                self._by_id[call["id"]] = _tool_key(call["name"], call["args"])

    def key_of(self, name: str, arguments: Any, call_id: str | None) -> str:
        """Return the key of a call: by the tool's arguments if these are recorded, otherwise by the message's."""
        key = _tool_key(name, arguments)
        if call_id is None or self._tools.has(key):
            return key
        return self._by_id.get(call_id, key)

    def is_live(self, name: str, key: str) -> bool:
        """Whether a call of a tool is executed. Records the tool's name."""
        if not self._are_tools_live and (name not in self._live_tools or self._tools.has(key)):
            return False
        with self._lock:
            self._live[name] = None
        return True

    def stand_in(
        self, tool: BaseTool, key: str, arguments: Any, call_id: str | None, config: RunnableConfig | None
    ) -> BaseTool:
        """Return the tool to run in place of `tool`. It answers from the recording."""
        conf = ensure_config(config).get("configurable", {})
        caller = graph_at(conf.get("checkpoint_ns", "").rpartition("|")[0])
        recorded = self._tools.next(key, caller)
        if recorded is None or ("interrupt" in recorded and not _mentions(tool, "interrupt")):
            is_lost = recorded is not None and recorded.get("may_be_lost")
            with self._lock:
                if not is_lost and len(self._unrecorded) < MAX_REPORTED:
                    self._unrecorded.append({"tool": tool.name, "args": _shortened(arguments)})
            text = (
                f"The tool {tool.name!r} was not executed: the recorded run has no call with these arguments."
            )
            recorded = {"content": text, "status": "error"}
        return RecordedTool(
            name=tool.name,
            description=tool.description or "",
            tags=tool.tags,
            metadata=tool.metadata,
            callbacks=tool.callbacks,
            answer=functools.partial(self._result, tool, recorded, call_id, conf.get(CONFIG_KEY_SEND)),
        )

    def _result(
        self, tool: BaseTool, recorded: Mapping[str, Any], call_id: str | None, send: Send | None
    ) -> Any:
        """Return a recorded result in the form that a caller of the tool expects.

        A tool may also have written to the state by itself, as the file tools of deepagents do: `send` repeats this.
        """
        if "interrupt" in recorded:
            return interrupt(decoded(self._serde, recorded["interrupt"]))
        if call_id is None:
            return recorded["content"]
        if "command" in recorded:
            command = decoded(self._serde, recorded["command"])
            update = {
                channel: with_call_id(value, recorded["id"], call_id)
                for channel, value in command["update"].items()
            }
            if _mentions(tool, "Command"):
                graph = Command.PARENT if command["is_for_parent"] else None
                return Command(update=update, goto=command["goto"], graph=graph)
            if send is not None and command["is_of_tool"]:
                send([each for each in update.items() if not _has_result(each[1], call_id)])
        artifact = recorded.get("artifact")
        return ToolMessage(
            recorded["content"],
            artifact=None if artifact is None else decoded(self._serde, artifact),
            tool_call_id=call_id,
            name=tool.name,
            status=recorded.get("status") or "success",
        )

    def model_answer(self, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """Return the recorded message for these messages, and count the call. None: call the model."""
        recorded = self._models.next(prompt_key(messages), "")
        with self._lock:
            self._counts["models_live" if recorded is None else "models_recorded"] += 1
        if recorded is None:
            return None
        message = decoded(self._serde, recorded["response"])
        self.learn_calls(message)
        return message.model_copy(update={"id": None})  # a thread may not hold two messages with one id


class _Answers:
    """Recorded calls by key. Equal calls receive them in order, and the last one again.

    A call gets those of its own graph, if there are any: a subagent may have made equal ones.
    """

    def __init__(self, calls: Iterator[tuple[str, str, Mapping[str, Any]]]) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for key, at, call in calls:
            self._left.setdefault(key, {}).setdefault(at, []).append(call)

    def has(self, key: str) -> bool:
        return key in self._left

    def next(self, key: str, at: str) -> Mapping[str, Any] | None:
        with self._lock:
            by_graph = self._left.get(key)
            if not by_graph:
                return None
            left = by_graph[at] if at in by_graph else next(iter(by_graph.values()))
            return left.pop(0) if len(left) > 1 else left[0]


class RecordedTool(BaseTool):
    """A tool that returns a recorded result. LangChain calls it like the tool that it stands for."""

    answer: Callable[[], Any]

    def _run(self, /, *_: Any, **__: Any) -> Any:
        return self.answer()

    async def _arun(self, /, *_: Any, **__: Any) -> Any:
        return self.answer()


def graph_at(checkpoint_ns: str) -> str:
    """Return the names of the nodes around a graph, without the ids of their tasks."""
    return "|".join(part.partition(":")[0] for part in checkpoint_ns.split("|"))


def _tool_key(name: str, arguments: Any) -> str:
    return name + "\n" + _canonical(arguments)


def _canonical(value: Any) -> str:
    return orjson.dumps(loads(dumps(value)), option=orjson.OPT_SORT_KEYS).decode()


def _shortened(arguments: Any) -> Any:
    text = _canonical(arguments)
    return loads(text.encode()) if len(text) <= MAX_ARGS_BYTES else text[:MAX_ARGS_BYTES]


def prompt_key(messages: Sequence[BaseMessage]) -> str:
    """Return a digest of a model call's messages.

    Leaves out ids, which differ between equal runs, and system messages, which most graphs add to a call without
    storing them.
    """
    shown = [
        {
            "type": message.type,
            "content": message.content,
            "name": message.name,
            "tool_calls": [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())],
            "status": getattr(message, "status", None),
        }
        for message in messages
        if not isinstance(message, SystemMessage)
    ]
    return sha256(_canonical(shown).encode()).hexdigest()


def encoded(serde: SerializerProtocol, value: Any) -> list[str]:
    """Return a value of any type as JSON: its serialized type and bytes."""
    type_, data = serde.dumps_typed(value)
    return [type_, base64.b64encode(data).decode()]


def decoded(serde: SerializerProtocol, value: Sequence[str]) -> Any:
    """Return a value of `encoded`. Raises CheckpointRefused if this revision may not restore it."""
    return serde.loads_typed((value[0], base64.b64decode(value[1])))


def with_call_id(value: Any, recorded_id: str, call_id: str) -> Any:
    """Replace a call's recorded id in messages with its id in this run. Returns other values unchanged."""
    if isinstance(value, list):
        return [with_call_id(item, recorded_id, call_id) for item in value]
    if isinstance(value, ToolMessage) and value.tool_call_id == recorded_id:
        return value.model_copy(update={"tool_call_id": call_id, "id": None})
    if isinstance(value, AIMessage) and any(call["id"] == recorded_id for call in value.tool_calls):
        calls = [{**call, "id": call_id} if call["id"] == recorded_id else call for call in value.tool_calls]
        return value.model_copy(update={"tool_calls": calls})
    return value


def _has_result(value: Any, call_id: str) -> bool:
    return isinstance(value, list) and any(getattr(item, "tool_call_id", None) == call_id for item in value)


def _mentions(tool: BaseTool, name: str) -> bool:
    """Whether a tool's function mentions a name, in its code or its annotations.

    A node may add its own updates to a tool's message. The recording cannot tell these from the updates of a `Command`,
    so only a tool that mentions the class can return one.
    """
    functions = [getattr(tool, attribute, None) for attribute in ("func", "coroutine")]
    if not any(functions):
        functions = [type(tool)._run, type(tool)._arun]
    return any(_function_mentions(inspect.unwrap(function), name) for function in functions if function)


def _function_mentions(function: Callable[..., Any], name: str) -> bool:
    code = getattr(function, "__code__", None)
    annotations = getattr(function, "__annotations__", {}).values()
    return name in " ".join(map(str, annotations)) or (code is not None and _code_mentions(code, name))


def _code_mentions(code: CodeType, name: str) -> bool:
    return name in (*code.co_names, *code.co_freevars) or any(
        _code_mentions(constant, name) for constant in code.co_consts if isinstance(constant, CodeType)
    )


_in_service: ContextVar[bool] = ContextVar("in_service", default=False)


def is_in_service() -> bool:
    """Whether the current code belongs to a model call or an executed tool, which may use the network."""
    return _in_service.get()


@contextmanager
def service() -> Iterator[None]:
    """Mark the code of the block as part of a model call or an executed tool."""
    token = _in_service.set(True)
    try:
        yield
    finally:
        _in_service.reset(token)
