"""Records of a traced run's model and tool calls, which the runner converts to spans (`workers/call_spans.py`).

A record is sent when its call ends, so a host that is killed loses the calls that are in progress. A run that is not
traced has no records and pays nothing for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config

from .call_content import Content, is_requested
from .checkpoints.node_times import error_name, nodes_around
from .masking import masked
from .serialization import dumps, error_text

MAX_CALLS = 1_000  # of an attempt; later ones are counted and dropped
MAX_CHAINS = 1_000  # open at the same time within tools
MAX_NAME = 200
MAX_MESSAGE = 1_000
# Parameters of a request that a span may show.
SETTINGS = (
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_output_tokens",
    "frequency_penalty", "presence_penalty", "seed", "n", "reasoning_effort",
)  # fmt: skip


class CallRecords:
    """Sends one record for each call of a run. Several threads may call it at the same time."""

    def __init__(self, send: Callable[[bytes], None], *, has_nodes: bool, has_subgraphs: bool) -> None:
        self._send = send
        self._has_nodes = has_nodes  # the runner has spans of nodes …
        self._has_subgraphs = has_subgraphs  # … and of nodes in subgraphs
        self._content = Content() if is_requested() else None
        self._open: dict[Any, dict[str, Any]] = {}  # by LangChain's run id
        self._nodes: dict[Any, str | None] = {}  # of open calls, the nodes around them
        self._chains: dict[Any, Any] = {}  # runs within open tools, with their parents
        self._tools: set[Any] = set()  # open ones
        self._count = 0
        self._dropped = 0

    @property
    def has_open_tool(self) -> bool:
        return bool(self._tools)

    def begin_model(
        self, operation: str, serialized: Any, messages: Any, run_id: object, details: Mapping[str, Any]
    ) -> None:
        if (record := self._begin(operation, run_id, details)) is None:
            return
        metadata = details.get("metadata") or {}
        params = details.get("invocation_params") or {}
        model = metadata.get("ls_model_name") or params.get("model") or params.get("model_name")
        record["model"] = _named(model)
        record["name"] = _named(model or details.get("name") or (serialized or {}).get("name"))
        record["provider"] = _named(metadata.get("ls_provider"))
        settings = {each: params[each] for each in SETTINGS if params.get(each) is not None}
        for each in ("temperature", "max_tokens"):
            if (value := metadata.get(f"ls_{each}")) is not None:
                settings[each] = value
        if settings:
            record["settings"] = settings
        if stop := (details.get("options") or {}).get("stop") or metadata.get("ls_stop"):
            record["stop"] = [_named(each) for each in ([stop] if isinstance(stop, str) else stop)][:4]
        if self._content is not None and messages:
            is_chat = operation == "chat"
            self._content.add_input(record, messages[0] if is_chat else [HumanMessage(messages[0])])

    def begin_tool(self, serialized: Any, input_str: str, run_id: object, details: Mapping[str, Any]) -> None:
        if (record := self._begin("execute_tool", run_id, details)) is None:
            return
        self._tools.add(run_id)
        record["name"] = _named((serialized or {}).get("name") or details.get("name"))
        record["tool_call"] = _named(details.get("tool_call_id"))
        if self._content is not None:
            inputs = details.get("inputs")
            self._content.add(record, "arguments", input_str if inputs is None else inputs)

    def begin_chain(self, run_id: object, parent_run_id: object) -> None:
        """Record that a runnable began within a tool: the calls that it makes are the tool's."""
        if len(self._chains) < MAX_CHAINS:
            self._chains[run_id] = parent_run_id

    def end_chain(self, run_id: object) -> None:
        self._chains.pop(run_id, None)

    def first_token(self, run_id: object) -> None:
        record = self._open.get(run_id)
        if record is not None and "first" not in record:
            record["first"] = time.time()

    def end_model(self, run_id: object, response: LLMResult, usage: Mapping[str, Any] | None) -> None:
        record = self._open.get(run_id)
        if record is None:
            return
        candidates = response.generations[0] if response.generations else []
        messages = [message for each in candidates if (message := getattr(each, "message", None))]
        if messages and isinstance(messages[0], AIMessage):
            described = messages[0].response_metadata
            record["response_model"] = _named(described.get("model_name") or described.get("model"))
            record["response"] = _named(described.get("id"))
        record["finish"] = [reason for each in candidates if (reason := _finish_reason(each))][:4]
        if usage is not None:
            record["usage"] = usage
        if self._content is not None:
            texts = [AIMessage(each.text) for each in candidates] if not messages else []
            self._content.add_output(record, messages or texts)
        self._end(run_id)

    def end_tool(self, run_id: object, output: Any) -> None:
        record = self._open.get(run_id)
        if record is None:
            return
        if isinstance(output, ToolMessage):
            record["tool_call"] = record["tool_call"] or _named(output.tool_call_id)
            if output.status == "error":
                record["error"] = "tool_error"
        if self._content is not None:
            result = output.content if isinstance(output, ToolMessage) else output
            self._content.add(record, "result", result)
        self._end(run_id)

    def fail(self, run_id: object, error: BaseException, *, is_interrupt: bool) -> None:
        record = self._open.get(run_id)
        if record is None:
            return
        if is_interrupt:
            record["interrupted"] = True
        else:
            record["error"] = error_name(error)
            record["message"] = error_text(error)[:MAX_MESSAGE]
        self._end(run_id)

    def close(self, reason: str) -> None:
        """Send the records of calls that have not ended, and how many were dropped.

        A thread that outlives the run sends nothing more.
        """
        for run_id, record in tuple(self._open.items()):
            record.setdefault("error", reason)
            self._end(run_id)
        if self._dropped:
            self._send(dumps({"dropped": self._dropped}))
        self._count = MAX_CALLS

    def _begin(self, operation: str, run_id: object, details: Mapping[str, Any]) -> dict[str, Any] | None:
        if self._count >= MAX_CALLS:
            self._dropped += 1
            return None
        self._count += 1
        node = self._node_of(str((details.get("metadata") or {}).get("langgraph_checkpoint_ns") or ""))
        caller = self._caller_of(details.get("parent_run_id"))
        is_called = caller is not None and self._nodes.get(caller) == node
        record = {
            "id": str(run_id),
            "operation": operation,
            "within": str(caller) if is_called else node,
            "from": time.time(),
        }
        self._nodes[run_id] = node
        self._open[run_id] = record
        return record

    def _node_of(self, ns: str) -> str | None:
        """Return the id of the innermost node around a call that has a span."""
        nodes = nodes_around(ns) if self._has_nodes else []
        return nodes[-1 if self._has_subgraphs else 0].id if nodes else None

    def _caller_of(self, run_id: Any) -> Any:
        """Return the innermost open call around a run; None if it has none.

        A call to which user code passes callbacks of its own has no parent. Its context knows the run that made it.
        """
        if run_id is None:
            callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
            run_id = getattr(callbacks, "parent_run_id", None)
        for _ in range(MAX_CHAINS):
            if run_id is None or run_id in self._open:
                return run_id
            run_id = self._chains.get(run_id)
        return None

    def _end(self, run_id: object) -> None:
        record = self._open.pop(run_id, None)
        self._nodes.pop(run_id, None)
        if record is None:
            return
        self._tools.discard(run_id)
        if not self._tools:
            self._chains.clear()  # their ends are not reported any more
        self._send(dumps({**record, "until": max(time.time(), record["from"])}))


def _named(value: Any) -> str | None:
    return None if value is None else masked(str(value))[:MAX_NAME]


def _finish_reason(generation: Any) -> str | None:
    """Return why a model stopped, as its provider calls it."""
    places: Sequence[Mapping[str, Any]] = (
        getattr(generation, "generation_info", None) or {},
        getattr(getattr(generation, "message", None), "response_metadata", None) or {},
    )
    for place in places:
        for name in ("finish_reason", "stop_reason", "stopReason", "done_reason"):
            if isinstance(reason := place.get(name), str):
                return masked(reason)[:MAX_NAME]
    return None
