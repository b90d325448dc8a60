"""The serializer of checkpoints, and the classes that it restores.

Restoring a checkpoint creates objects of the classes that it names, so the allowed names are limited. A project's own
classes are allowed even if they are not imported yet: a run may continue in a host that has just started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

# Classes that a checkpoint may contain besides LangGraph's: (module, class) pairs; True: any class.
Allowed = Collection[tuple[str, ...]] | Literal[True]
STRICT = "LANGGRAPH_STRICT_MSGPACK"  # LangGraph's own switch, which a deployment may set to false
WRITTEN = frozenset({"null", "bytes", "bytearray", "msgpack"})  # data types that this saver writes
JAVASCRIPT = "javascript/"  # data types that the Node host writes

MAX_FILES = 5_000
SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "venv"))

CLASS = re.compile(rb"^class\s+([A-Za-z_]\w*)", re.MULTILINE)

_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)


class CheckpointRefused(Exception):
    """A checkpoint contains data that must not be restored."""


class Serializer(JsonPlusSerializer):
    """A serializer that raises CheckpointRefused for data that must not be restored.

    LangGraph itself continues with the bare data of a class that is not allowed. The next checkpoint would then contain
    that data in place of the value, and a payload injected into the database would reach the graph.
    """

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0].startswith(JAVASCRIPT):
            raise CheckpointRefused(
                "this thread's checkpoints were written by JavaScript graphs: continue it with a revision of those, or"
                " begin a new thread"
            )
        if data[0] not in WRITTEN:
            raise CheckpointRefused(
                f"the checkpoint holds data of the kind {data[0]!r}, which no graph wrote"
            )
        refused: list[str] = []
        token = _refused.set(refused)
        try:
            value = super().loads_typed(data)
        finally:
            _refused.reset(token)
        if refused:
            raise CheckpointRefused(
                f"the checkpoint names {refused[0]}, which is neither the project's nor the library's:"
                f" a deployment with the variable {STRICT}=false restores objects of any class"
            )
        return value


def _note(event: SerdeEvent) -> None:
    """Record a class that LangGraph has not restored. It reports this only to event listeners."""
    refused = _refused.get()
    if refused is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        refused.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_note)


def make_serializer(allowed: Allowed) -> Serializer:
    modules = True if allowed is True else list(allowed)
    return Serializer(pickle_fallback=False, allowed_msgpack_modules=modules)


def allows_any() -> bool:
    """Whether the deployment's variables allow checkpoints to contain objects of any class."""
    return os.environ.get(STRICT, "true").lower() == "false"


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
            for name in CLASS.findall(_content(path)):
                yield module, name.decode()


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
