"""The rule of a replay: conditions under which it fails, such as `errors>0, cost>+20%, score<-0.05`.

`METRICS` and `VALUES` are the documentation of the grammar for the command line and the pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared.errors import Invalid, suggestion

MAX_RULES = 20
MAX_TEXT = 1_000  # characters

COUNTS = ("errors", "changed", "diverged")
SCORE = "score"
METRICS = {
    "errors": "cases that ended with an error",
    "changed": "cases with other final values or another status",
    "diverged": "cases that called a tool with arguments that the recording does not have",
    "cost": "total cost of all cases",
    "tokens": "total tokens of all cases",
    "p50": "median of the graph's duration in seconds",
    "p95": "95th percentile of the durations in seconds",
    "score": "mean of all scores",
    "score.NAME": "mean of the score NAME",
}
VALUES = {
    "errors>0": "A number is compared with the replay's figure.",
    "changed>10%": "For counts, a percentage is one of the judged cases.",
    "p95>150%": "For other metrics, a percentage is one of the original's figure.",
    "cost>+20%": "A percentage with a sign is a change relative to the original's figure.",
    "score<-0.05": "A number with a sign is a difference from the original's figure.",
}
EXAMPLE = "errors>0, cost>+20%, p95>+30%, score<-0.05"

_RULE = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|==|>|<)\s*([+-]?)(\d{1,15}(?:\.\d{1,15})?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of both sides. None: it cannot be calculated, for example because a model has no price."""

    original: float | None
    replay: float | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition. The replay fails if it is true."""

    text: str
    metric: str
    operator: str
    sign: str
    number: float
    is_percentage: bool

    def limit(self, original: float | None, judged: int) -> float | None:
        """Return the value with which the replay's figure is compared. None if the original's figure is not known."""
        number = -self.number if self.sign == "-" else self.number
        if not self.sign and not self.is_percentage:
            return number
        if not self.sign and self.metric in COUNTS:
            return judged * number / 100
        if original is None:
            return None
        if not self.is_percentage:
            return original + number
        return original * number / 100 if not self.sign else original + abs(original) * number / 100

    def judge(self, figure: Figure, judged: int) -> dict[str, object]:
        """Return the rule with its figures. `failed` is None if a figure is not known."""
        value, limit = figure.replay, self.limit(figure.original, judged)
        return {
            "rule": self.text,
            "value": value,
            "limit": limit,
            "original": figure.original,
            "failed": None if value is None or limit is None else _OPERATORS[self.operator](value, limit),
        }


def _equal(value: float, limit: float) -> bool:
    """Whether two figures are equal, except for the rounding of sums and percentages."""
    return math.isclose(value, limit, rel_tol=1e-9, abs_tol=1e-12)


_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda value, limit: value > limit and not _equal(value, limit),
    "<": lambda value, limit: value < limit and not _equal(value, limit),
    ">=": lambda value, limit: value >= limit or _equal(value, limit),
    "<=": lambda value, limit: value <= limit or _equal(value, limit),
    "==": _equal,
}


def parse(text: str) -> list[Rule]:
    """Return the conditions of a rule. Raises Invalid, which names the condition that is wrong."""
    parts = text.split(",")
    if len(text) > MAX_TEXT or len(parts) > MAX_RULES:
        raise _invalid(f"may have up to {MAX_RULES} conditions and {MAX_TEXT:,} characters")
    return [_parse_one(part) for part in parts]


def _parse_one(text: str) -> Rule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise _invalid(f"{text.strip()!r} is not of the form `metric op value`, such as in `{EXAMPLE}`")
    metric, operator, sign, number, percent = match.groups()
    if metric not in METRICS and not (metric.startswith(f"{SCORE}.") and len(metric) > len(SCORE) + 1):
        hint = suggestion(metric, METRICS) or f" Known metrics: {', '.join(METRICS)}."
        raise _invalid(f"unknown metric {metric!r}.{hint}")
    if metric in ("changed", "diverged") and sign:
        raise _invalid(
            f"{metric}: the original has no such count, so the value takes no sign: {text.strip()!r}"
        )
    return Rule(text.strip(), metric, operator, sign, float(number), bool(percent))


def _invalid(reason: str) -> Invalid:
    return Invalid(f"fail_on: {reason}", loc=("body", "fail_on"))
