"""Tokens that the models of one run used, by provider and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Field of an entry → path in LangChain's `usage_metadata`.
COUNTS = {
    "inputTokens": ("input_tokens",),
    "outputTokens": ("output_tokens",),
    "totalTokens": ("total_tokens",),
    "cachedInputTokens": ("input_token_details", "cache_read"),
    "cacheWriteInputTokens": ("input_token_details", "cache_creation"),
    "reasoningTokens": ("output_token_details", "reasoning"),
}
MOST = 2**53 - 1


class Usage:
    """Counts of tokens. The parts of a streamed message add up; a whole message counts once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[str, int]] = {}

    def add(self, message: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
        """Add the usage of a message or of a part of it. Returns whether it has any."""
        usage = message.get("usage_metadata")
        if not isinstance(usage, dict):
            return False
        response = message.get("response_metadata")
        response = response if isinstance(response, dict) else {}
        model = metadata.get("ls_model_name") or response.get("model_name")
        provider = metadata.get("ls_provider") or response.get("model_provider")
        counts = self._counts.setdefault((_text(provider), _text(model)), {})
        for name, path in COUNTS.items():
            number = _number(usage, path)
            if number is not None:
                counts[name] = min(counts.get(name, 0) + number, MOST)
        return True

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each provider and model."""
        entries = []
        for (provider, model), counts in self._counts.items():
            names = {name: value for name, value in (("provider", provider), ("model", model)) if value}
            entries.append({**names, **counts})
        return entries


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(usage: Any, path: tuple[str, ...]) -> int | None:
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) and not isinstance(usage, bool) and usage >= 0 else None
