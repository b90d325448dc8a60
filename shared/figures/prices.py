"""Costs of tokens by the prices in the settings; None for a model without a price.

A process configures its prices once, when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.figures.sums import MOST_TOKENS
from shared.setting_values import Prices

A_MILLION = 1_000_000

_prices: dict[str, tuple[float, float]] = {}


def configure(prices: Prices) -> None:
    """Use these prices from now on."""
    global _prices
    _prices = {model: (first, second) for model, first, second in prices}


def of_model(model: str) -> tuple[float, float] | None:
    """Return the prices of a million input and output tokens, by the model's name or the longest matching `prefix*`."""
    if model in _prices:
        return _prices[model]
    fitting = [name for name in _prices if name.endswith("*") and model.startswith(name[:-1])]
    return _prices[max(fitting, key=len)] if fitting else None


def cost(usage: Mapping[str, Any] | None) -> float | None:
    """Return the total cost of token counts by model. None without usage, or if a model has no price."""
    if not usage or not isinstance(usage, Mapping):
        return None
    costs = [_of_counts(model, counts) for model, counts in usage.items()]
    known = [each for each in costs if each is not None]
    return round(sum(known), 6) if len(known) == len(costs) else None


def _of_counts(model: str, counts: Any) -> float | None:
    prices = of_model(model)
    if prices is None or not isinstance(counts, Mapping):
        return None
    used = (_number(counts.get("input_tokens")), _number(counts.get("output_tokens")))
    return sum(tokens * price for tokens, price in zip(used, prices, strict=True)) / A_MILLION


def _number(value: Any) -> float:
    """Return a count from a graph host, which may send any value. 0 if it is not a number."""
    return min(max(value, 0), MOST_TOKENS) if isinstance(value, int | float) else 0
