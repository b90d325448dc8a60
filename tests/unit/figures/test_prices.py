"""Token prices, looked up by a model's name or its longest known prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.figures import usage

PRICES = (("gpt", 1.0, 2.0), ("gpt-*", 10.0, 20.0), ("gpt-5*", 100.0, 200.0), ("free", 0.0, 0.0))


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    usage.configure_prices(PRICES)
    yield
    usage.configure_prices(())


def used(**models: tuple[Any, Any]) -> dict[str, Any]:
    return {
        model.replace("_", "-"): {"input_tokens": counts[0], "output_tokens": counts[1]}
        for model, counts in models.items()
    }


@pytest.mark.parametrize(
    ("counts", "cost"),
    [
        (used(gpt=(1_000_000, 500_000)), 2.0),
        (used(gpt_4=(100_000, 0)), 1.0),
        (used(gpt_5_mini=(10_000, 5_000)), 2.0),
        (used(gpt=(1_000_000, 0), gpt_4=(100_000, 0)), 2.0),
        (used(free=(7, 7)), 0.0),
        (used(gpt=(1_000_000, 0), unheard=(1, 1)), None),
        (used(gpt=("many", None)), 0.0),
        (used(gpt=(10**400, 0)), 1_000_000.0),
        ({"gpt": 7}, None),
        ({}, None),
        (None, None),
        ("none", None),
    ],
)
def test_the_cost_of_tokens(counts: Any, cost: float | None) -> None:
    assert usage.cost(counts) == cost


def test_without_prices_nothing_is_known() -> None:
    usage.configure_prices(())

    assert usage.cost(used(gpt=(1, 1))) is None
