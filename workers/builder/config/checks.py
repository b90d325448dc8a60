"""Errors and warnings about a configuration file, with the names of the keys they concern."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shared.errors import BuildFailed, suggestion

STEP = "configuration"


def refused(*parts: str) -> BuildFailed:
    """Return the BuildFailed to raise. `parts` are the key and the reason, joined by colons."""
    return BuildFailed(STEP, ": ".join(parts))


def check_keys(key: str, value: Any, known: Collection[str]) -> None:
    """Raise BuildFailed unless the value is an object that has only known keys."""
    if not isinstance(value, dict):
        raise refused(key, "must be an object")
    for name in value:
        if name not in known:
            raise refused(f"{key}.{name}", f"not known.{suggestion(name, known)}")


def unknown_keys(config: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> list[str]:
    """Return a warning for each unknown key. `known` maps the dotted path of an object to the keys it may have."""
    found: list[str] = []
    for path, names in known.items():
        part: Any = config
        for name in path.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict):
            found += ignored_keys(part, names, f"{path}.")
    return found


def ignored_keys(part: Iterable[str], known: Collection[str], path: str = "") -> list[str]:
    """Return a warning for each unknown name, with the most similar known name."""
    return [
        f"{path}{name}: unknown key, ignored.{suggestion(name, known)}" for name in part if name not in known
    ]
