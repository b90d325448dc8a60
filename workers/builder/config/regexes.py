"""Validation of regular expressions that a project supplies and the service matches itself.

Python's `re` backtracks through every way to match and blocks the whole process meanwhile. A pattern with exponential
backtracking would block the callers of every deployment, so only patterns that match any text quickly are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_REPEATS = 3
FEW = 4  # maximum repetitions of a group that contains a repetition, and of that inner repetition
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
REFERENCES = (codes.GROUPREF, codes.GROUPREF_EXISTS)


def why_not(pattern: str) -> str | None:
    """Return the reason why a pattern is rejected, None if it is accepted."""
    try:
        re.compile(pattern)
        nodes = list(_nodes(_parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}"
    if any(code in REFERENCES for code, _ in nodes):
        return "it refers to a group, which can take very long to match"
    repeats = [argument for code, argument in nodes if code in REPEATS and argument[1] > 1]
    if not all(_is_simple(most, body) for _, most, body in repeats):
        return "it repeats a group that repeats or chooses, which can take very long to match"
    if sum(most > FEW for _, most, _ in repeats) > MAX_REPEATS:
        return f"it has more than {MAX_REPEATS} repetitions, which can take very long to match"
    return None


def _is_simple(most: int, body: Any) -> bool:
    """Whether a repeated body is safe from exponential backtracking.

    Either the body has no repetition and no alternative, or it is repeated at most FEW times and contains a single
    repetition of at most FEW.
    """
    inner = list(_nodes(body))
    if not any(code in (*REPEATS, codes.BRANCH) for code, _ in inner):
        return True
    choices = [argument for code, argument in inner if code in REPEATS]
    is_branched = any(code is codes.BRANCH for code, _ in inner)
    return most <= FEW and not is_branched and len(choices) == 1 and choices[0][1] <= FEW


def _nodes(tree: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every operation of a parsed pattern, at any depth, as `(opcode, argument)`."""
    for code, argument in tree:
        yield code, argument
        for part in argument if isinstance(argument, tuple | list) else (argument,):
            yield from _below(part)


def _below(part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, _parser.SubPattern):
        yield from _nodes(part)
    elif isinstance(part, list):
        for one in part:
            yield from _below(one)
