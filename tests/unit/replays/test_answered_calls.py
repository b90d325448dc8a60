"""Figures of past runs without what happened inside of tools that a replay answers from the recording."""

from __future__ import annotations

from typing import Any

import pytest

from shared.replays.answered_calls import inside, seconds_of, usage_without
from shared.replays.comparison import Side, steps_of


def span(
    id: str, kind: str, begun: float, until: float | None, within: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"id": id, "kind": kind, "name": id, "from": begun, "until": until, "within": within, **more}


SPANS: list[Any] = [
    span("tools", "node", 10, 50),
    span("task", "tool", 11, 49, "tools"),
    span("count", "tool", 11, 15, "tools"),
    span("think", "node", 12, 30, "tools"),
    span("m-inner", "model", 13, 29, "think", tokens=5, usage={"a": {"total_tokens": 5}}),
    span("lookup", "tool", 31, 40, "tools"),
    span("m-direct", "model", 32, 33, "task", tokens=7),
    span("agent", "node", 0, 9),
    span("m-outer", "model", 1, 8, "agent", tokens=3),
    span("summary", "node", 50, 60),
    span("m-late", "model", 51, 59, "summary", tokens=2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("live", "left_out"),
    [
        ((), {"think", "m-inner", "m-direct"}),
        (("task",), set()),
        (("count",), {"think", "m-inner", "m-direct"}),
    ],
)
def test_nodes_and_models_inside_of_tools_that_are_not_executed(
    live: tuple[str, ...], left_out: set[str]
) -> None:
    assert {each["id"] for each in inside({"spans": SPANS}, live)} == left_out


def test_a_node_that_outlasts_the_tools_beside_it_is_in_none_of_them() -> None:
    spans = [
        span("n", "node", 0, 9),
        span("t", "tool", 1, 5, "n"),
        span("inner", "node", 2, 6, "n"),
        span("open", "node", 2, None, "n"),
        "no span",
    ]

    assert inside({"spans": spans}, ()) == []
    assert inside(None, ()) == []


def test_the_usage_and_the_steps_inside_of_answered_tools_are_left_out() -> None:
    left_out = inside({"spans": SPANS}, ())
    usage = {"a": {"total_tokens": 8, "input_tokens": 6}, "b": {"total_tokens": 9}}

    assert usage_without(usage, left_out) == (
        {"a": {"total_tokens": 3, "input_tokens": 6}, "b": {"total_tokens": 9}},
        7,
    )
    ids = frozenset(each["id"] for each in left_out)
    assert steps_of(Side("success", None, spans={"spans": SPANS}, left_out=ids)) == [
        "agent",
        "tools",
        "summary",
    ]
    assert usage_without(None, []) == ({}, 0)


def test_the_time_in_which_only_answered_tools_ran() -> None:
    beside = span("other", "node", 20, 25)
    document = {"spans": [*SPANS, beside], "lasted_ms": 100}

    assert seconds_of(document, ()) == pytest.approx((49 - 11 - 5) / 1000)
    assert seconds_of(document, ("task", "lookup")) == 0.0, (
        "what runs beside `count` is executed by the replay, too"
    )
    assert seconds_of(None, ()) == 0.0
    assert Side("success", None, spans=document, tool_seconds=0.03).graph_seconds == pytest.approx(0.07)
