"""The summary of a replay: figures of both sides over all cases, scores, and the verdict of the rule.

A figure counts for the cases that have it on both sides. The cases of a summary are mappings with `outcome`, `reason`
and `comparison`. Of a comparison, only `status`, the figures and `scores` are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import fmean, median
from typing import Any

from shared.replays.comparison import FAILED, Outcome
from shared.replays.rules import SCORE, Figure, parse

FIGURES = ("duration_seconds", "tokens", "cost")
MAX_SCORES = 100  # names
MAX_REASONS = 20
MAX_NUMBER = 1e100  # as in scorers, so that sums are finite

Case = Mapping[str, Any]
Pairs = Sequence[tuple[float, float]]  # of the original and the replay


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"


def summarize(
    cases: Iterable[Case], rule: str | None, *, is_complete: bool = True
) -> tuple[dict[str, Any], Verdict | None]:
    """Return the summary of a replay, and its verdict.

    The verdict is None without a rule, and if the replay cannot be judged: a case was not executed because the replay
    ended early (`is_complete` is false), no case was judged, or a condition has no figures. One failed condition is
    enough for a failed verdict. Raises Invalid for a bad rule.
    """
    cases = list(cases)
    judged = [case for case in cases if case["outcome"] not in (None, Outcome.SKIPPED)]
    skipped = Counter(str(case["reason"]) for case in cases if case["outcome"] == Outcome.SKIPPED)
    pairs = {name: _pairs(judged, name) for name in FIGURES}
    scores = _scores(judged)
    outcomes = Counter(case["outcome"] for case in judged)
    errors = sum(_comparison(case).get("status", {}).get("original") in FAILED for case in judged)
    known = {
        "errors": Figure(errors, outcomes[Outcome.FAILED]),
        "changed": Figure(0, outcomes[Outcome.CHANGED]),
        "diverged": Figure(0, outcomes[Outcome.DIVERGED]),
        **{name: _figure(pairs[name], sum) for name in ("cost", "tokens")},
        "p50": _figure(pairs["duration_seconds"], median),
        "p95": _figure(pairs["duration_seconds"], p95),
        SCORE: _mean_score(judged),
        **{f"{SCORE}.{name}": _figure(each, fmean) for name, each in scores.items()},
    }
    unknown = Figure(None, None)
    rules = [
        each.judge(known.get(each.metric, unknown) if judged else unknown, len(judged))
        for each in (parse(rule) if rule else ())
    ]
    summary = {
        **{name: _both(pairs[name]) for name in FIGURES},
        "scores": {name: _score(each) for name, each in scores.items()},
        "rules": rules,
        "skipped": dict(skipped.most_common(MAX_REASONS)),
    }
    is_judged = bool(judged) and is_complete and all(case["outcome"] is not None for case in cases)
    return summary, _verdict([each["failed"] for each in rules], is_judged=is_judged)


def _verdict(failed: Sequence[object], *, is_judged: bool) -> Verdict | None:
    if True in failed:
        return Verdict.FAILED
    return Verdict.PASSED if failed and is_judged and None not in failed else None


def p95(values: Iterable[float]) -> float:
    """Return the smallest value that at least 95 % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.95) - 1]


def _comparison(case: Case) -> Mapping[str, Any]:
    return case["comparison"] or {}


def _pairs(cases: Iterable[Case], name: str) -> Pairs:
    """Return a figure of both sides, of each case that has both."""
    sides = (_comparison(case).get(name) or {} for case in cases)
    return [
        (float(side["original"]), float(side["replay"]))
        for side in sides
        if _is_figure(side.get("original")) and _is_figure(side.get("replay"))
    ]


def _scores_of(case: Case) -> dict[str, tuple[float, float]]:
    """Return the scores that a case has on both sides, by name."""
    scores = _comparison(case).get("scores") or {}
    original, replay = scores.get("original") or {}, scores.get("replay") or {}
    return {
        name: (float(original[name]), float(replay[name]))
        for name in original
        if _is_figure(original[name]) and _is_figure(replay.get(name))
    }


def _scores(cases: Iterable[Case]) -> dict[str, Pairs]:
    """Return the pairs of each score by its name. Names beyond MAX_SCORES are left out."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        for name, pair in _scores_of(case).items():
            if name in pairs or len(pairs) < MAX_SCORES:
                pairs.setdefault(name, []).append(pair)
    return {name: pairs[name] for name in sorted(pairs)}


def _mean_score(cases: Iterable[Case]) -> Figure:
    """Return the mean over the cases of each case's mean score."""
    scored = [list(scores.values()) for scores in map(_scores_of, cases) if scores]
    return _figure(
        [(fmean(pair[0] for pair in each), fmean(pair[1] for pair in each)) for each in scored], fmean
    )


def _figure(pairs: Pairs, function: Callable[[list[float]], float]) -> Figure:
    if not pairs:
        return Figure(None, None)
    original, replay = zip(*pairs, strict=True)
    return Figure(function(list(original)), function(list(replay)))


def _both(pairs: Pairs) -> dict[str, dict[str, float | None]]:
    functions: dict[str, Callable[[list[float]], float]] = {"median": median, "p95": p95, "total": sum}
    figures = {name: _figure(pairs, function) for name, function in functions.items()}
    return {
        side: {name: getattr(figure, side) for name, figure in figures.items()}
        for side in ("original", "replay")
    }


def _score(pairs: Pairs) -> dict[str, float | int | None]:
    figure = _figure(pairs, fmean)
    return {"original": figure.original, "replay": figure.replay, "pairs": len(pairs)}


def _is_figure(value: Any) -> bool:
    """Whether a value of a comparison is a number. A graph host runs the project's code, so it may be anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
