"""The tokens that a run's model calls report, summed by model.

A callback handler, not the events: a node need not store a model's message, nor stream it, and a subgraph's calls
count as well. It comes by the library's own hook, so that code which hands a model a configuration of its own
does not go uncounted.
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
    """Notes what each model call of one run reports. Nodes may call it from several threads at a time."""

    run_inline = True  # else the library starts a thread for each call of it

    def __init__(self, report: Callable[[int], None] = lambda _: None) -> None:
        self._report = report  # called with the sum of all tokens, when it has grown
        self._reported: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by the message's id
        self._first_token_at: float | None = None

    @property
    def ignore_chain(self) -> bool:
        return True

    @property
    def ignore_chat_model(self) -> bool:
        return True  # its start: the end of a call is of `llm`

    def on_llm_new_token(self, token: object, **_: Any) -> None:
        if self._first_token_at is None:
            self._first_token_at = time.monotonic()

    def on_llm_end(self, response: LLMResult, *, run_id: object, **_: Any) -> None:
        """A model has answered; a message that a cache answers with again keeps its id, and counts once."""
        for candidates in response.generations:
            message = getattr(candidates[0], "message", None) if candidates else None
            if isinstance(message, AIMessage) and message.usage_metadata:
                reported = (_model_of(message), message.usage_metadata)
                if self._reported.setdefault(message.id or str(run_id), reported) is reported:
                    self._report(self.total())

    def first_token_ago(self) -> float | None:
        """The seconds since a model first streamed something; None when none did."""
        return None if self._first_token_at is None else time.monotonic() - self._first_token_at

    def total(self) -> int:
        """The tokens of input and output so far."""
        counts = [counts for _, counts in tuple(self._reported.values())]
        return sum(_count(each, name) for each in counts for name in ("input_tokens", "output_tokens"))

    def by_model(self) -> dict[str, Counts] | None:
        """The sums so far; None when no call has reported any."""
        sums: dict[str, Counts] = {}
        for model, counts in tuple(self._reported.values()):
            _add(sums.setdefault(model, {}), counts)
        return sums or None


def _model_of(message: AIMessage) -> str:
    described = message.response_metadata
    name = described.get("model_name") or described.get("model") or UNKNOWN
    return text_of(name).replace("\0", "")  # which PostgreSQL's jsonb cannot hold


def _count(counts: Mapping[str, Any], name: str) -> int:
    count = counts.get(name)
    return max(count, 0) if isinstance(count, int) else 0


def _add(sums: Counts, counts: Mapping[str, Any]) -> None:
    """Add the numbers, and those of the details one level down."""
    for name, count in counts.items():
        if isinstance(count, Mapping):
            _add(sums.setdefault(name, {}), count)
        elif isinstance(count, int):
            sums[name] = sums.get(name, 0) + count


current_usage: ContextVar[UsageCounter | None] = ContextVar("current_usage", default=None)
register_configure_hook(current_usage, inheritable=True)
