"""Comparisons of a replayed run with its original: what counts as a difference, and the bounds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.replays import comparison
from shared.replays.comparison import Side, compare, steps_of

THEN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 9, 30, tzinfo=UTC)
A, B, C, D = (str(UUID(int=number)) for number in range(4))


def side(values: Any, at: datetime = THEN, status: str = "success", **details: Any) -> Side:
    return Side(status, values, started_at=at, ended_at=at + timedelta(seconds=2), **details)


def compared(original: Any, replay: Any, **report: Any) -> tuple[str, dict[str, Any]]:
    return compare(side(original), side(replay, NOW), report)


def ai(content: Any, id: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "ai", "content": content, "id": id, "tool_calls": [], **fields}


def called(id: str, tool_call: str, /, **arguments: Any) -> list[dict[str, Any]]:
    call = {"name": "look_up", "args": arguments, "id": tool_call, "type": "tool_call"}
    return [
        ai("", id, tool_calls=[call], additional_kwargs={"tool_calls": [{"id": tool_call}]}),
        {"type": "tool", "content": "42", "tool_call_id": tool_call, "id": f"tool-{id}"},
    ]


@pytest.mark.parametrize(
    ("original", "replay"),
    [
        (None, None),
        ({"n": 1}, {"n": 1.0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"messages": [ai("hi", "run-1")]}, {"messages": [ai("hi", "run-2")]}),
        ({"messages": [ai("hi", "run-1")]}, {"messages": [ai("hi", None)]}),
        ({"messages": called("1", "call_a", q="x")}, {"messages": called("2", "call_b", q="x")}),
        ({"answer": ai([{"type": "text", "id": "x"}], "1")}, {"answer": ai([{"type": "text", "id": "y"}], "2")}),
        (
            {"messages": [ai("hi", "1", usage_metadata={"total_tokens": 3}, response_metadata={"model_name": "a"})]},
            {"messages": [ai("hi", "1", response_metadata={"model_name": "b"})]},
        ),
        ({"run_id": A, "file": f"/tmp/{A}/a"}, {"run_id": B, "file": f"/tmp/{B}/a"}),
        ({"name": A.replace("-", "")}, {"name": B.replace("-", "")}),
        ({"files": {"/large/call_Ab3dEf6hIj9lMn2p": 1}}, {"files": {"/large/call_Zb3dEf6hIj9lMn2q": 1}}),
        ({"files": {f"{A}.txt": 1, "x": 2}}, {"files": {f"{B}.txt": 1, "x": 2}}),
        ({"__interrupt__": [{"id": "aa", "value": "go?"}]}, {"__interrupt__": [{"id": "bb", "value": "go?"}]}),
        ({"at": "2026-05-01T12:00:01Z"}, {"at": "2026-06-01T09:30:01.123456+00:00"}),
        ({"at": "2026-05-01T12:00:01"}, {"at": "2026-06-01 11:30:01+02:00"}),
        ({"at": THEN.timestamp()}, {"at": NOW.timestamp() + 1}),
        ({"at": int(THEN.timestamp() * 1000)}, {"at": int(NOW.timestamp() * 1000)}),
    ],
)  # fmt: skip
def test_ids_and_times_of_a_run_are_no_differences(original: Any, replay: Any) -> None:
    outcome, result = compared(original, replay)

    assert (outcome, result["values"], result["first_difference"]) == ("same", [], None)


@pytest.mark.parametrize(
    ("original", "replay", "differences"),
    [
        (None, {}, [("", None, {})]),
        ({"n": 1}, {"n": True}, [("n", 1, True)]),
        ({"n": "1"}, {"n": 1}, [("n", "1", 1)]),
        ({"n": None}, {}, [("n", None, ...)]),
        ({}, {"n": None}, [("n", ..., None)]),
        ({"l": [1, 2]}, {"l": [1, 3, 4]}, [("l.1", 2, 3), ("l.2", ..., 4)]),
        ({"messages": [ai("hi", "1")]}, {"messages": [ai("ho", "2")]}, [("messages.0.content", "hi", "ho")]),
        (
            {"messages": called("1", "call_a", id="x")},
            {"messages": called("2", "call_b", id="y")},
            [("messages.0.tool_calls.0.args.id", "x", "y")],
        ),
        # the ids of two calls are exchanged
        (
            {"messages": [*called("1", "a"), *called("2", "b")], "used": [A, B]},
            {"messages": [*called("3", "c"), *called("4", "d")], "used": [C, C]},
            [("used.1", B, C)],
        ),
        ({"id": "x"}, {"id": "y"}, [("id", "x", "y")]),
        ({"usage_metadata": 1}, {"usage_metadata": 2}, [("usage_metadata", 1, 2)]),
        ({"file": f"/tmp/{A}"}, {"file": f"/var/{B}"}, [("file", f"/tmp/{A}", f"/var/{B}")]),
        ({"leaves": "2027-01-01T10:00:00Z"}, {"leaves": "2027-01-01T11:00:00Z"},
         [("leaves", "2027-01-01T10:00:00Z", "2027-01-01T11:00:00Z")]),
        ({"at": "2026-05-01T12:00:01Z"}, {"at": "2026-05-01T12:00:02Z"},
         [("at", "2026-05-01T12:00:01Z", "2026-05-01T12:00:02Z")]),
        ({"messages": [ai("a", "1"), ai("b", "2"), ai("c", "3")]},
         {"messages": [ai("a", "4"), ai("x", "5"), ai("b", "6"), ai("C", "7")]},
         [("messages.1", ..., ai("x", "5")), ("messages.3.content", "c", "C")]),
        ({"l": ["a", "b", "c"]}, {"l": ["a", "c"]}, [("l.1", "b", ...)]),
        ({"__interrupt__": [{"id": "aa", "value": {"id": 1}}]}, {"__interrupt__": [{"id": "bb", "value": {"id": 2}}]},
         [("__interrupt__.0.value.id", 1, 2)]),
    ],
)  # fmt: skip
def test_other_values_are_differences(original: Any, replay: Any, differences: list[tuple[Any, ...]]) -> None:
    outcome, result = compared(original, replay)

    found = [(one["path"], one.get("original", ...), one.get("replay", ...)) for one in result["values"]]
    assert (outcome, found, result["differences"]) == ("changed", differences, len(differences))
    assert result["first_difference"] == {"node": None, "field": differences[0][0]}


@pytest.mark.parametrize(
    ("status", "replayed", "report", "outcome"),
    [
        ("success", "success", {}, "same"),
        ("success", "success", {"unrecorded": [], "network": ["example.com"]}, "same"),
        ("error", "success", {}, "changed"),
        ("success", "interrupted", {}, "changed"),
        ("success", "success", {"unrecorded": [{"tool": "send", "args": {}}]}, "diverged"),
        ("success", "error", {"unrecorded": [{"tool": "send", "args": {}}]}, "failed"),
        ("success", "timeout", {}, "failed"),
        ("error", "error", {}, "failed"),
    ],
)
def test_the_outcome_depends_on_the_status_and_the_report(
    status: str, replayed: str, report: dict[str, Any], outcome: str
) -> None:
    found, result = compare(side({}, status=status), side({}, NOW, status=replayed), report)

    assert (found, result["status"], result["report"]) == (
        outcome,
        {"original": status, "replay": replayed},
        report,
    )


def test_both_figures_are_in_the_comparison() -> None:
    original = side({}, tokens=10, cost=0.5, scores={"exact": 1.0})
    _, result = compare(original, Side("success", {}, tokens=20, cost=None, scores={"exact": 0.0}))

    assert result["tokens"] == {"original": 10, "replay": 20}
    assert result["cost"] == {"original": 0.5, "replay": None}
    assert result["duration_seconds"] == {"original": 2.0, "replay": None}
    assert result["scores"] == {"original": {"exact": 1.0}, "replay": {"exact": 0.0}}


@pytest.mark.parametrize(
    ("original", "replay", "seconds"),
    [
        ({"lasted_ms": 150}, {"lasted_ms": 1_200.5}, (0.15, 1.2005)),
        ({"lasted_ms": 150}, None, (2.0, 2.0)),
        ({"lasted_ms": True}, {"lasted_ms": 150}, (2.0, 2.0)),
        ({"lasted_ms": -1}, {"lasted_ms": float("nan")}, (2.0, 2.0)),
    ],
)
def test_durations_are_without_the_start_of_a_host_if_both_are_known(
    original: Any, replay: Any, seconds: tuple[float, float]
) -> None:
    _, result = compare(side({}, spans=original), side({}, NOW, spans=replay))

    assert tuple(result["duration_seconds"].values()) == seconds


def spans(*nodes: tuple[str, float, str | None], kind: str = "node") -> dict[str, Any]:
    return {
        "spans": [
            {"id": f"{name}@{at}", "kind": kind, "name": name, "from": at, "within": within}
            for name, at, within in nodes
        ]
    }


@pytest.mark.parametrize(
    ("document", "steps"),
    [
        (None, []),
        ({"spans": "x"}, []),
        ({"spans": [7, {"id": "a", "kind": "node", "name": "a", "from": "?"}]}, []),
        (spans(("a", 0, None), ("b", 1, None), ("a", 2, None)), ["a", "b", "a"]),
        (spans(("right", 1, None), ("left", 1, None)), ["left", "right"]),
        (spans(("outer", 0, None), ("next", 3, None), ("inner", 1, "outer@0")), ["outer", "outer/inner", "next"]),
        (spans(("gpt", 0, None), kind="model"), []),
        (spans(("a", 0, "b@0"), ("b", 0, "a@0")), []),
        (spans(("a", 0, "dropped")), ["a"]),
    ],
)  # fmt: skip
def test_steps_are_the_nodes_of_a_run(document: Any, steps: list[str]) -> None:
    assert steps_of(side(None, spans=document)) == steps


@pytest.mark.parametrize(
    ("before", "after", "values", "first"),
    [
        ("ab", "ab", ({}, {}), None),
        ("ab", "acb", ({}, {}), {"node": "c", "field": None}),
        ("ab", "acb", ({"n": 1}, {"n": 2}), {"node": "c", "field": "n"}),
        ("abc", "ab", ({"n": 1}, {"n": 2}), {"node": "c", "field": "n"}),
        ("aa", "aa", ({"n": 1}, {"n": 2}), {"node": "a", "field": "n"}),
        ("ab", "ab", ({"n": 1}, {"n": 2}), {"node": None, "field": "n"}),
    ],
)
def test_the_first_difference_is_the_node_where_the_runs_part_and_the_field(
    before: str, after: str, values: tuple[Any, Any], first: Any
) -> None:
    original, replay = (
        side(value, spans=spans(*((name, at, None) for at, name in enumerate(names))))
        for names, value in zip((before, after), values, strict=True)
    )

    _, result = compare(original, replay)

    assert result["first_difference"] == first


def test_large_and_deep_values_are_compared_within_bounds() -> None:
    many = {"n": list(range(200_000))}
    others = {"n": [-1 for _ in range(200_000)]}
    outcome, result = compared(many, others)
    assert outcome == "changed"
    assert len(result["values"]) == comparison.MAX_DIFFERENCES
    assert result["differences"] <= comparison.MAX_VALUES + 1
    assert len(json.dumps(result)) < 10_000

    deep = json.loads("[" * 900 + "1" + "]" * 900)
    deeper = json.loads("[" * 901 + "1" + "]" * 901)
    outcome, result = compared(deep, deeper)
    assert (outcome, result["differences"], len(result["values"][0]["path"])) == ("changed", 1, 79)

    _, result = compared({"text": "x" * 1_000_000}, {"text": "y" * 1_000_000})
    assert [len(result["values"][0][name]) for name in ("original", "replay")] == [
        comparison.MAX_SHOWN + 1
    ] * 2


def test_a_comparison_that_ends_at_the_bound_is_never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_VALUES", 10)
    many = [{"run": str(UUID(int=number))} for number in range(8)]
    others = [{"run": str(UUID(int=number + 100))} for number in range(8)]

    outcome, result = compared(many, others)

    assert (outcome, result["differences"]) == ("changed", 1)


def test_a_failed_replay_differs_first_at_the_node_that_failed() -> None:
    def nodes(*names: str) -> dict[str, Any]:
        return {
            "spans": [{"id": str(n), "name": name, "kind": "node", "from": n} for n, name in enumerate(names)]
        }

    def first(*names: str) -> Any:
        failed = side({"n": 2}, NOW, "error", spans=nodes(*names))
        return compare(side({"n": 1}, spans=nodes("think", "tools", "think")), failed)[1]["first_difference"][
            "node"
        ]

    assert (first("think"), first("think", "tools"), first("think", "other")) == ("think", "tools", "other")


def state(tasks: dict[str, dict[str, Any] | None], **values: Any) -> dict[str, Any]:
    """Return a state of a history. `tasks` are the results of its nodes; None: the node has asked a question."""
    described = [
        {"name": name, "result": result, "interrupts": [] if result is not None else [{"value": "?"}]}
        for name, result in tasks.items()
    ]
    return {"values": values, "tasks": described}


def test_the_node_of_a_difference_is_the_one_that_wrote_the_first_different_value() -> None:
    states = [
        state({"agent": {"log": ["a"]}}, log=[]),
        state({"one": {"log": ["b"]}, "two": {"note": 1}}, log=["a"]),
        state({"agent": {"log": ["c"]}}, log=["a", "b"], note=1),
        state({}, log=["a", "b", "c"], note=1),
    ]
    others = [*states[:2], state({"agent": {"log": ["c"]}}, log=["a", "x"], note=2), states[3]]
    asking = [*states[:2], state({"agent": {"log": []}, "asks": None}, log=["a", "b"], note=1)]

    def writer(channel: str, one: Any = states, other: Any = others) -> str | None:
        return comparison.writer_of(channel, side(None), side(None, NOW), one, other)

    assert (writer("log"), writer("note")) == ("one", "two")
    assert writer("log", states[1:]) == "one", "the case also has the state that it began from"
    assert writer("__interrupt__", asking, asking) == "asks"
    assert writer("log", [], []) is None
    assert writer("note", states, states) is None, "the last state has no tasks"
