"""Contexts: services on other machines, each an address and a key, kept by `runyard login` in the user's configuration.

The file is `contexts.json` in `$XDG_CONFIG_HOME/runyard` (default `~/.config/runyard`), readable by its owner only. A
context is selected by `--context`, by RUNYARD_CONTEXT, or as the current one of the file.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cli.errors import BadUsage, CommandFailed

LOCAL = "local"  # not a context: selects the service that `runyard up` runs in this directory
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
VARIABLE = "RUNYARD_CONTEXT"

# The value of `--context`. Each call of `runyard` sets it.
requested: ContextVar[str | None] = ContextVar("requested", default=None)


@dataclass(frozen=True)
class Context:
    """A service and the key to send there."""

    name: str
    url: str
    key: str = field(repr=False)

    @property
    def source(self) -> str:
        """The key's source, as error messages state it."""
        return f"the context {self.name}"


@dataclass(frozen=True)
class Contexts:
    """The content of the contexts file."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return the context of that name. Raises BadUsage."""
        if name not in self.by_name:
            raise BadUsage(
                f"There is no context {name!r}. `runyard contexts` lists them; `runyard login URL` creates one."
            )
        return self.by_name[name]

    def with_context(self, context: Context) -> Contexts:
        """Return a copy with an added or replaced context, which becomes the current one."""
        return Contexts(context.name, {**self.by_name, context.name: context})

    def without(self, name: str) -> Contexts:
        """Return a copy without a context. If it was the current one, no context is current."""
        left = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(None if self.current == name else self.current, left)

    def using(self, name: str) -> Contexts:
        """Return a copy with another current context; LOCAL selects none. Raises BadUsage."""
        return replace(self, current=None if name == LOCAL else self.get(name).name)


def path() -> Path:
    """Return the path of the contexts file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(folder), "runyard", "contexts.json")


def load() -> Contexts:
    """Read the contexts file. Returns no contexts if it does not exist or may not be read. Raises CommandFailed."""
    file = path()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        by_name = {
            name: Context(name, str(entry["url"]), str(entry["key"]))
            for name, entry in content["contexts"].items()
        }
        current = content.get("current")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Contexts()  # a process of another user may have the HOME of this one
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(
            f"{file} does not have the form that `runyard login` writes. Delete it and log in again."
        ) from error
    return Contexts(current if current in by_name else None, by_name)


def save(contexts: Contexts) -> None:
    """Replace the contexts file atomically, readable by its owner only. Raises CommandFailed."""
    file = path()
    entries = {name: asdict(context) for name, context in contexts.by_name.items()}
    for entry in entries.values():
        del entry["name"]
    text = json.dumps({"current": contexts.current, "contexts": entries}, indent=2) + "\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")  # with mode 0600
        try:
            with open(descriptor, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(descriptor)
            os.replace(draft, file)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror or error}.") from error


def requested_by_name() -> str | None:
    """Return the context's name in `--context`, else in RUNYARD_CONTEXT, else None."""
    return requested.get() or os.environ.get(VARIABLE) or None


def selected() -> Context | None:
    """Return the context that was requested by name, else the current one. Raises CommandFailed."""
    name = requested_by_name()
    if name == LOCAL:
        return None
    contexts = load()
    name = name or contexts.current
    return contexts.get(name) if name else None
