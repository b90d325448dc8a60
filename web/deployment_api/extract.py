"""Values picked out of a thread's record by path: `values.messages[-1].content`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shared.errors import Invalid

MAX_PATHS = 10
ROOTS = ("values", "metadata", "config", "interrupts")
ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9})\]")

Path = list[str | int]


def parse(paths: Mapping[str, Any]) -> dict[str, Path]:
    """Return the steps of each path, by alias. Raises Invalid."""
    if len(paths) > MAX_PATHS:
        raise Invalid(f"extract: at most {MAX_PATHS} paths", loc=("body", "extract"))
    return {alias: _parse(alias, path) for alias, path in paths.items()}


def _parse(alias: str, path: Any) -> Path:
    loc = ("body", "extract", alias)
    if not ALIAS.match(alias):
        raise Invalid(f"extract: the alias {alias!r} is not an identifier", loc=loc)
    if not isinstance(path, str):
        raise Invalid(f"extract: the path of {alias!r} must be a string", loc=loc, kind="string_type")
    root = next((root for root in ROOTS if re.match(rf"{root}(?=[.\[]|\Z)", path)), None)
    if root is None:
        raise Invalid(f"extract: the path {path!r} must begin with one of {', '.join(ROOTS)}", loc=loc)
    steps: Path = [root]
    at = len(root)
    while at < len(path):
        step = STEP.match(path, at)
        if step is None:
            raise Invalid(f"extract: the path {path!r} is invalid from position {at} on", loc=loc)
        name, index = step.groups()
        steps.append(name if index is None else int(index))
        at = step.end()
    return steps


def extracted(record: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return the value at each path, by alias; None for a path that leads nowhere."""
    return {alias: _found(record, path) for alias, path in paths.items()}


def _found(value: Any, path: Path) -> Any:
    for step in path:
        try:
            if isinstance(step, int) != isinstance(value, list):
                return None
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value
