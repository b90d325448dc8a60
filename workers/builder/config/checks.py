"""Refusing what a configuration says: the step of the build that fails, and how a key is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shared.errors import BuildFailed

STEP = "configuration"


def refused(*parts: str) -> BuildFailed:
    """The refusal to raise: a reason, after the key it concerns."""
    return BuildFailed(STEP, ": ".join(parts))


def check_keys(key: str, value: Any, known: Collection[str]) -> None:
    """Require an object with none but these keys; raises BuildFailed."""
    if not isinstance(value, dict):
        raise refused(key, "must be an object")
    for name in value:
        if name not in known:
            raise refused(f"{key}.{name}", "not known")


def unknown_keys(config: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> list[str]:
    """A warning for each key that these objects of the configuration, by their paths, do not know."""
    found: list[str] = []
    for path, names in known.items():
        part: Any = config
        for name in path.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict):
            found += [f"{path}.{name}: unknown key, ignored" for name in part if name not in names]
    return found
