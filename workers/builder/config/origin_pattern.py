"""Validation of `http.cors.allow_origin_regex`, a regular expression that the service matches itself.

Python's `re` backtracks through every way to match and blocks the whole process meanwhile. A pattern with exponential
backtracking would block the callers of every deployment, so only patterns that match any text quickly are accepted.
The check is stricter than necessary: it reads the pattern's tokens and does not know what they match.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

MAX_REPEATS = 3
FEW = 4  # maximum repetitions of a group that contains a repetition, and of that inner repetition
TOKEN = re.compile(
    r"""(?P<reference>\\[1-9]|\(\?P=|\(\?\()
    |(?P<unknown>\(\?[a-zA-Z-]*x)  # verbose: white space and comments would need another tokenizer
    |(?P<skipped>\(\?\#[^)]*\)|\(\?[aiLmsu]+\))  # a comment, flags of the whole pattern
    |(?P<opening>\((?:\?(?:P<\w+>|<?[=!]|[:>]|[aimsLu-]+:))?(?!\?))
    |(?P<unknown_group>\()
    |(?P<closing>\))
    |(?P<branch>\|)
    |(?P<repeat>(?:[*+?]|\{(?P<least>[0-9]*)(?P<range>,?)(?P<most>[0-9]*)(?<!\{)\})[?+]?)
    |(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass
class Group:
    """The part of a pattern in a pair of parentheses, with all parts inside."""

    repeats: list[float] = field(default_factory=list)  # the highest number of times of each repetition
    is_branched: bool = False

    def may_repeat(self, most: float) -> bool:
        """Whether repeating the group is safe from exponential backtracking.

        Either the group has no repetition and no alternative, or it is repeated at most FEW times and contains a single
        repetition of at most FEW.
        """
        if self.is_branched:
            return False
        return not self.repeats or (most <= FEW and len(self.repeats) == 1 and self.repeats[0] <= FEW)


def why_not(pattern: str) -> str | None:
    """Return the reason why a pattern is rejected, None if it is accepted."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}"
    groups = [Group()]
    last = Group()  # the operand of a repetition
    for token in TOKEN.finditer(pattern):
        match token.lastgroup:
            case "reference":
                return "it refers to a group, which can take very long to match"
            case "unknown" | "unknown_group":
                return "it has a construct that cannot be checked: the flag x, or an unknown kind of group"
            case "opening":
                groups.append(Group())
            case "closing":
                last = groups.pop()
                groups[-1].repeats += last.repeats
                groups[-1].is_branched |= last.is_branched
            case "branch":
                groups[-1].is_branched = True
            case "repeat":
                most = _most(token)
                if most > 1 and not last.may_repeat(most):
                    return "it repeats a group that repeats or chooses, which can take very long to match"
                groups[-1].repeats.append(most)
            case "atom":
                last = Group()
            case _:
                pass
    if sum(most > FEW for most in groups[0].repeats) > MAX_REPEATS:
        return f"it has more than {MAX_REPEATS} repetitions, which can take very long to match"
    return None


def _most(repeat: re.Match[str]) -> float:
    """Return the highest number of times that a repetition matches."""
    if repeat["least"] is None:
        return 1 if repeat[0].startswith("?") else math.inf
    if repeat["range"]:
        return int(repeat["most"]) if repeat["most"] else math.inf
    return int(repeat["least"])
