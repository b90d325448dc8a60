"""The classes of a project, which its checkpoints may contain besides LangGraph's types.

Restoring a checkpoint creates objects of the classes that it names, so the allowed names are limited. A project's own
classes are allowed even if they are not imported yet: a run may continue in a host that has just started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence

MAX_FILES = 5_000
SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "venv"))

_CLASS = re.compile(rb"^class\s+([A-Za-z_]\w*)", re.MULTILINE)


def project_types(directories: Sequence[str]) -> set[tuple[str, str]]:
    """Return `(module, class)` of every top-level class in the modules below the directories."""
    roots = tuple(os.path.realpath(directory).rstrip(os.sep) + os.sep for directory in directories)
    return set(_loaded(roots)) | set(_declared(roots))


def _loaded(roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if path.startswith(roots) and f"{os.sep}site-packages{os.sep}" not in path:
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield name, value.__name__


def _declared(roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    places = {os.path.realpath(entry).rstrip(os.sep) + os.sep for entry in sys.path}
    count = 0
    for place in (place for place in places if place.startswith(roots)):
        for path in _sources(place):
            count += 1
            if count > MAX_FILES:
                return
            module = (
                path.removeprefix(place).removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
            )
            for found in _CLASS.findall(_content(path)):
                yield module, found.decode()


def _sources(place: str) -> Iterator[str]:
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if name not in SKIPPED and not name.startswith(".")]
        yield from (os.path.join(directory, name) for name in files if name.endswith(".py"))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
