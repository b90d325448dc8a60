"""Token usage of a run: the tokens that its model calls report, summed by model.

Usage is counted by a callback handler and not from the run's events. A node may neither store nor stream a model's
message, and the calls of subgraphs count, too. The handler is registered by LangChain's configure hook, so that a call
is also counted if user code passes its own configuration to the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from .serialization import text_of

UNKNOWN = "unknown"  # the model of a message that names none

Counts = dict[str, Any]


class UsageCounter(BaseCallbackHandler):
    """Records the usage of each model call of one run. Several threads may call it at the same time."""

    run_inline = True  # otherwise LangChain starts a thread for each call of the handler

    def __init__(self, report: Callable[[int], None] = lambda _: None) -> None:
        self._report = report  # called with the sum of all tokens after each increase
        self._reported: dict[str, tuple[str, Mapping[str, Any]]] = {}  # (model, usage) by message id
        self._first_token_at: float | None = None

    @property
    def ignore_chain(self) -> bool:
        return True

    @property
    def ignore_chat_model(self) -> bool:
        return True  # concerns the start of a call only: its end is reported by `on_llm_end`

    def on_llm_new_token(self, token: object, **_: Any) -> None:
        if self._first_token_at is None:
            self._first_token_at = time.monotonic()

    def on_llm_end(self, response: LLMResult, *, run_id: object, **_: Any) -> None:
        """Count the usage of a finished call. A message repeated from a cache keeps its id and counts once."""
        for candidates in response.generations:
            message = getattr(candidates[0], "message", None) if candidates else None
            if isinstance(message, AIMessage) and message.usage_metadata:
                reported = (_model_of(message), message.usage_metadata)
                if self._reported.setdefault(message.id or str(run_id), reported) is reported:
                    self._report(self.total())

    def first_token_ago(self) -> float | None:
        """Return the seconds since a model first streamed a token; None if none did."""
        return None if self._first_token_at is None else time.monotonic() - self._first_token_at

    def total(self) -> int:
        """Return the sum of input and output tokens so far."""
        counts = [counts for _, counts in tuple(self._reported.values())]
        return sum(_count(each, name) for each in counts for name in ("input_tokens", "output_tokens"))

    def by_model(self) -> dict[str, Counts] | None:
        """Return the sums so far by model; None if no call has reported usage."""
        sums: dict[str, Counts] = {}
        for model, counts in tuple(self._reported.values()):
            _add(sums.setdefault(model, {}), counts)
        return sums or None


def _model_of(message: AIMessage) -> str:
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
