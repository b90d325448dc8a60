"""The rule of a replay and its summary: each metric, each form of a value, and each verdict."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Invalid
from shared.replays.rules import EXAMPLE, VALUES, Rule, parse
from shared.replays.summary import p95, summarize


def case(
    outcome: str | None = "same",
    tokens: tuple[Any, Any] = (10, 12),
    cost: tuple[Any, Any] = (0.1, 0.12),
    duration: tuple[Any, Any] = (1.0, 2.0),
    original: str = "success",
    reason: str | None = None,
    **scores: tuple[Any, Any],
) -> dict[str, Any]:
    def both(pair: tuple[Any, Any]) -> dict[str, Any]:
        return dict(zip(("original", "replay"), pair, strict=True))

    comparison = {
        "status": both((original, "error" if outcome == "failed" else "success")),
        "tokens": both(tokens),
        "cost": both(cost),
        "duration_seconds": both(duration),
        "scores": {
            side: {name: pair[index] for name, pair in scores.items() if pair[index] is not None}
            for index, side in enumerate(("original", "replay"))
        },
    }
    is_judged = outcome not in (None, "skipped")
    return {"outcome": outcome, "reason": reason, "comparison": comparison if is_judged else None}


TEN = [
    case("failed", original="error"), case("changed"), case("diverged"), case(),
    *(case(quality=(0.9, 0.8), style=(0.5, 0.5)) for _ in range(6)),
]  # fmt: skip


def judged(rule: str, cases: list[dict[str, Any]] = TEN, **details: Any) -> tuple[Any, list[Any]]:
    summary, verdict = summarize(cases, rule, **details)
    return verdict, [one["failed"] for one in summary["rules"]]


@pytest.mark.parametrize(
    ("rule", "value", "limit", "original", "failed"),
    [
        ("errors>0", 1, 0, 1, True),
        ("errors>+0", 1, 1, 1, False),
        ("errors>+10%", 1, 1.1, 1, False),
        ("errors>=10%", 1, 1, 1, True),
        ("changed>10%", 1, 1, 0, False),
        ("changed>9.9%", 1, 0.99, 0, True),
        ("diverged==1", 1, 1, 0, True),
        ("tokens>120", 120, 120, 100, False),
        ("tokens >= 120", 120, 120, 100, True),
        ("cost>+20%", 1.2, 1.2, 1.0, False),
        ("cost>+19%", 1.2, 1.19, 1.0, True),
        ("cost>119%", 1.2, 1.19, 1.0, True),
        ("cost>+0.1", 1.2, 1.1, 1.0, True),
        ("cost<-50%", 1.2, 0.5, 1.0, False),
        ("p50>+1.5", 2.0, 2.5, 1.0, False),
        ("p95>+30%", 2.0, 1.3, 1.0, True),
        ("score<-0.05", 0.65, 0.65, 0.7, False),
        ("score<-0.04", 0.65, 0.66, 0.7, True),
        ("score.quality<-0.05", 0.8, 0.85, 0.9, True),
        ("score.quality<0.8", 0.8, 0.8, 0.9, False),
        ("score.quality<90%", 0.8, 0.81, 0.9, True),
        ("score.style==0.5", 0.5, 0.5, 0.5, True),
        ("score.unheard<1", None, 1, None, None),
        ("score.unheard<-1", None, None, None, None),
    ],
)
def test_each_condition_has_its_figures(
    rule: str, value: float | None, limit: float | None, original: float | None, failed: bool | None
) -> None:
    summary, verdict = summarize(TEN, rule)

    (found,) = summary["rules"]
    expected = {"rule": rule, "value": value, "limit": limit, "original": original, "failed": failed}
    assert found == {
        name: pytest.approx(one) if isinstance(one, float) else one for name, one in expected.items()
    }
    assert verdict == {True: "failed", False: "passed", None: None}[failed]


def test_a_negative_original_still_gets_worse_by_a_negative_percentage() -> None:
    assert judged("score<-10%", [case(loss=(-1.0, -1.2))]) == ("failed", [True])
    assert judged("score<-10%", [case(loss=(-1.0, -1.05))]) == ("passed", [False])


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("errrors>0", "errrors"), ("latency>1", "latency"), ("score.>1", "score."), ("cost", "cost"),
        ("cost>", "cost>"), ("cost>abc", "cost>abc"), ("cost=1", "cost=1"), ("cost>1,", "''"), ("", "''"),
        ("cost>1 tokens>1", "cost>1 tokens>1"), ("cost!>1", "cost!"), ("cost>1e5", "cost>1e5"),
        ("cost>--1", "cost>--1"), ("changed>+10%", "changed"), ("diverged>-1", "diverged"),
        ("cost>1" + ",cost>1" * 20, "20 conditions"), ("x" * 2_000 + ">1", "1,000 characters"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused_by_the_name_of_its_metric(rule: str, word: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(rule)

    assert caught.value.loc == ("body", "fail_on")
    assert word in caught.value.message


def test_the_documented_examples_are_valid() -> None:
    assert [rule.metric for rule in parse(EXAMPLE)] == ["errors", "cost", "p95", "score"]
    for example in VALUES:
        assert isinstance(parse(example)[0], Rule)


@pytest.mark.parametrize(
    ("cases", "rule", "verdict"),
    [
        ([case()], None, None),
        ([case()], "errors>0", "passed"),
        ([case("failed"), case()], "errors>0", "failed"),
        ([case(), case("skipped")], "errors>0", "passed"),
        ([case(), case(None)], "errors>0", None),
        ([case("failed"), case(None)], "errors>0", "failed"),
        ([case("skipped")], "errors==0", None),
        ([], "errors>0", None),
        ([case(cost=(0.1, None))], "errors>0, cost>+10%", None),
        ([case("failed", cost=(0.1, None))], "errors>0, cost>+10%", "failed"),
    ],
)
def test_a_replay_passes_only_if_all_conditions_are_judged(
    cases: list[dict[str, Any]], rule: str | None, verdict: str | None
) -> None:
    assert summarize(cases, rule)[1] == verdict


def test_a_replay_that_ended_early_cannot_pass() -> None:
    assert judged("errors>0", [case()], is_complete=False) == (None, [False])
    assert judged("errors>0", [case("failed")], is_complete=False) == ("failed", [True])


def test_a_summary_has_the_figures_of_the_cases_that_have_both() -> None:
    cases = [
        case(tokens=(index, 2 * index), cost=(None, 1), duration=(1.0, None), good=(1, 0))
        for index in range(1, 21)
    ]
    cases += [
        case("skipped", reason="no input"),
        case("skipped", reason="no input"),
        case("skipped", reason="old"),
    ]
    cases.append(
        case(tokens=(None, 1_000), cost=(1, None), duration=(1, None), bad=(1, None), good=(float("nan"), 1))
    )

    summary, _ = summarize(cases, None)

    assert summary == {
        "duration_seconds": {side: dict.fromkeys(("median", "p95", "total")) for side in ("original", "replay")},
        "cost": {side: dict.fromkeys(("median", "p95", "total")) for side in ("original", "replay")},
        "tokens": {
            "original": {"median": 10.5, "p95": 19.0, "total": 210.0},
            "replay": {"median": 21.0, "p95": 38.0, "total": 420.0},
        },
        "scores": {"good": {"original": 1.0, "replay": 0.0, "pairs": 20}},
        "rules": [],
        "skipped": {"no input": 2, "old": 1},
    }  # fmt: skip


def test_a_number_that_would_make_a_sum_infinite_is_no_figure() -> None:
    huge = case(tokens=(10**400, 1), quality=(1.7e308, 1.7e308))

    summary, _ = summarize([huge, huge, case(tokens=(1, 2), quality=(1, 0))], None)

    assert summary["tokens"]["original"]["total"] == 1
    assert summary["scores"]["quality"] == {"original": 1, "replay": 0, "pairs": 1}


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (2, 2), (19, 19), (20, 19), (100, 95), (101, 96)])
def test_p95_is_a_value_of_a_case(n: int, expected: int) -> None:
    assert p95(range(1, n + 1)) == expected
