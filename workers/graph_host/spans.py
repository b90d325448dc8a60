"""Times of a run's model and tool calls: with those of its nodes, the spans of the DONE frame.

These spans contain no inputs and no outputs. A graph without models and tools pays nothing for them. In a traced run
the handler also passes calls to `call_records.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.outputs import LLMResult

from .call_records import CallRecords
from .checkpoints.node_times import MAX_NAME, MAX_SPANS, NodeTimes, Span, error_name, node_around
from .masking import masked
from .outcome import TOKENS, UsageCounter, model_of


class CallTimes(UsageCounter):
    """Counts the usage of model calls, and records when each model and tool call began and ended."""

    def __init__(
        self,
        nodes: NodeTimes | None,
        report: Callable[[int], None] = lambda _: None,
        records: CallRecords | None = None,
    ) -> None:
        super().__init__(report)
        self._nodes = nodes  # None: the run keeps no spans
        self._records = records  # None: the run is not traced
        self._calls: dict[str, Span] = {}
        self.dropped = 0

    @property
    def ignore_agent(self) -> bool:
        return self._nodes is None and self._records is None  # the switch for tools

    @property
    def ignore_chain(self) -> bool:
        return self._records is None or not self._records.has_open_tool

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: object, **details: Any) -> None:
        if self._records is not None:
            self._records.begin_chain(run_id, details.get("parent_run_id"))

    def on_chain_end(self, outputs: Any, *, run_id: object, **_: Any) -> None:
        if self._records is not None:
            self._records.end_chain(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: object, **_: Any) -> None:
        if self._records is not None:
            self._records.end_chain(run_id)

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: object, **details: Any) -> None:
        self._begin_model("chat", serialized, messages, run_id, details)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: object, **details: Any) -> None:
        self._begin_model("text_completion", serialized, prompts, run_id, details)

    def _begin_model(
        self, operation: str, serialized: Any, prompts: Any, run_id: object, details: Mapping[str, Any]
    ) -> None:
        self._begin_usage(run_id, details)
        self._begin("model", serialized, run_id, details)
        if self._records is not None:
            self._records.begin_model(operation, serialized, prompts, run_id, details)

    def on_llm_new_token(self, token: object, *, run_id: object = None, **details: Any) -> None:
        super().on_llm_new_token(token, **details)
        if self._records is not None:
            self._records.first_token(run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: object, **details: Any) -> None:
        usage = self._count_usage(response, run_id)
        self._end(run_id, answer=_answer_of(response))
        if self._records is not None:
            self._records.end_model(run_id, response, usage)

    def on_llm_error(self, error: BaseException, *, run_id: object, **_: Any) -> None:
        self._drop_usage(run_id)
        self._end(run_id, error=error)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: object, **details: Any) -> None:
        self._begin("tool", serialized, run_id, details)
        if self._records is not None:
            self._records.begin_tool(serialized, input_str, run_id, details)

    def on_tool_end(self, output: Any, *, run_id: object, **_: Any) -> None:
        self._end(run_id)
        if self._records is not None:
            self._records.end_tool(run_id, output)

    def on_tool_error(self, error: BaseException, *, run_id: object, **_: Any) -> None:
        self._end(run_id, error=error)

    def _begin(self, kind: str, serialized: Any, run_id: object, details: Mapping[str, Any]) -> None:
        if self._nodes is None:
            return
        if len(self._calls) >= MAX_SPANS:
            self.dropped += 1
            return
        metadata = details.get("metadata") or {}
        named = metadata.get("ls_model_name") if kind == "model" else None
        name = named or details.get("name") or (serialized or {}).get("name") or kind
        caller = str(details.get("parent_run_id"))
        ns = str(metadata.get("langgraph_checkpoint_ns") or "")
        self._nodes.observe(ns)
        self._calls[str(run_id)] = {
            "id": str(run_id),
            "kind": kind,
            "name": masked(str(name))[:MAX_NAME],
            "from": self._nodes.milliseconds(time.monotonic()),
            "until": None,
            "checkpoint": None,
            "within": caller if caller in self._calls else node_around(ns),
        }

    def _end(
        self, run_id: object, *, error: BaseException | None = None, answer: AIMessage | None = None
    ) -> None:
        if error is not None and self._records is not None:
            self._records.fail(run_id, error, is_interrupt=_is_interrupt(error))
        span = self._calls.get(str(run_id))
        if span is None or self._nodes is None:
            return
        span["until"] = self._nodes.milliseconds(time.monotonic())
        if error is not None:
            span["error"] = "interrupted" if _is_interrupt(error) else error_name(error)
        if answer is not None and answer.usage_metadata and answer.usage_metadata.get("total_tokens"):
            span["tokens"] = answer.usage_metadata["total_tokens"]
            if self._has_open_tool():  # a replay compares what models used outside of tools
                span["usage"] = {model_of(answer): {name: answer.usage_metadata.get(name) for name in TOKENS}}

    def _has_open_tool(self) -> bool:
        return any(call["kind"] == "tool" and call["until"] is None for call in tuple(self._calls.values()))

    def document(self, unfinished: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
        """Return the spans of the DONE frame, at most MAX_SPANS; None if the run keeps none."""
        if self._nodes is None:
            return None
        spans = [*self._nodes.spans(unfinished), *(dict(span) for span in tuple(self._calls.values()))]
        dropped = self.dropped + self._nodes.dropped + max(len(spans) - MAX_SPANS, 0)
        return {
            "lasted_ms": self._nodes.milliseconds(time.monotonic()),
            "spans": sorted(spans, key=lambda span: span["from"])[:MAX_SPANS],
            "dropped": dropped,
        }


def _is_interrupt(error: BaseException) -> bool:
    return any(base.__name__ == "GraphBubbleUp" for base in type(error).__mro__)


def _answer_of(response: LLMResult) -> AIMessage | None:
    message = getattr(response.generations[0][0], "message", None) if response.generations else None
    return message if isinstance(message, AIMessage) else None
