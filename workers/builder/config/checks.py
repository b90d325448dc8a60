"""Refusing what a configuration says: the step of the build that fails, and how a key is named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shared.errors import BuildFailed, suggestion

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
            raise refused(f"{key}.{name}", f"not known.{suggestion(name, known)}")


def unknown_keys(config: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> list[str]:
    """A warning for each key that these objects of the configuration, by their paths, do not know."""
    found: list[str] = []
    for path, names in known.items():
        part: Any = config
        for name in path.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict):
            found += ignored_keys(part, names, f"{path}.")
    return found


def ignored_keys(part: Iterable[str], known: Collection[str], path: str = "") -> list[str]:
    """A warning for each name that is not known, with the known name most similar to it."""
    return [
        f"{path}{name}: unknown key, ignored.{suggestion(name, known)}" for name in part if name not in known
    ]
