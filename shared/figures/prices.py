"""What tokens cost, by the prices of the settings; None where a model has none.

A process says once which prices hold, as it does of its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.figures.sums import MOST_TOKENS
from shared.settings import Prices

A_MILLION = 1_000_000

_prices: dict[str, tuple[float, float]] = {}


def configure(prices: Prices) -> None:
    """Count with these prices from now on."""
    global _prices
    _prices = {model: (first, second) for model, first, second in prices}


def of_model(model: str) -> tuple[float, float] | None:
    """What a million tokens of input and of output cost: by its name, else by the longest beginning of it."""
    if model in _prices:
        return _prices[model]
    fitting = [name for name in _prices if name.endswith("*") and model.startswith(name[:-1])]
    return _prices[max(fitting, key=len)] if fitting else None


def cost(usage: Mapping[str, Any] | None) -> float | None:
    """What these tokens by model cost together; None when nothing was used, or one of the models has no price."""
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
    """A count as a graph host reports it, which may say anything; 0 for what is none."""
    return min(max(value, 0), MOST_TOKENS) if isinstance(value, int | float) else 0
