"""Contexts: services on other machines, each an address and a key, kept by `runyard login` in the user's configuration.

The file is `contexts.json` in `$XDG_CONFIG_HOME/runyard` (default `~/.config/runyard`), readable by its owner only. A
context is selected by `--context`, by RUNYARD_CONTEXT, or as the current one of the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cli.errors import BadUsage, CommandFailed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCAL = "local"  # not a context: selects the service that `runyard up` runs in this directory
NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,99}")
VARIABLE = "RUNYARD_CONTEXT"
KEY_PREFIX = "ryd_"  # of the service's keys; importing it from shared.access would load the database layer

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
        others = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(None if self.current == name else self.current, others)

    def using(self, name: str) -> Contexts:
        """Return a copy with another current context; LOCAL selects none. Raises BadUsage."""
        return replace(self, current=None if name == LOCAL else self.get(name).name)


def path() -> Path:
    """Return the path of the contexts file."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # the XDG specification says to ignore a relative path
        folder = Path(os.path.expanduser("~/.config"))
    return folder / "runyard" / "contexts.json"


def normalized(url: str) -> str:
    """Return an address with scheme and host in lower case, and without a trailing slash or an empty query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=user + at + host.lower(), path=parts.path.rstrip("/")))


def is_service_key(text: str) -> bool:
    """Return whether a text has the form of a key of a runyard service."""
    return text.startswith(KEY_PREFIX) and text.isascii() and text.isprintable()


class _BadField(ValueError):
    """A field of the contexts file is invalid; the message names it."""


def load() -> Contexts:
    """Read the contexts file. Returns no contexts if it does not exist or may not be read. Raises CommandFailed."""
    file = path()
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # reading a FIFO would wait for a writer
            raise CommandFailed(f"{file} is not a regular file.")
        return _contexts(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Contexts()  # a process of another user may have the HOME of this one
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _BadField) else "it is not valid JSON"
        raise CommandFailed(
            f"{file} does not have the form that `runyard login` writes: {reason}."
            " Correct it, or delete it and log in again."
        ) from error


def _contexts(content: Any) -> Contexts:
    """Return the contexts in the JSON of the file. Raises _BadField."""
    if not isinstance(content, dict) or not isinstance(content.get("contexts"), dict):
        raise _BadField("`contexts` must be an object")
    current = content.get("current")
    if not isinstance(current, str | None):
        raise _BadField("`current` must be the name of a context or null")
    by_name = {name: _context(name, entry) for name, entry in content["contexts"].items()}
    return Contexts(current if current in by_name else None, by_name)


def _context(name: str, entry: Any) -> Context:
    """Return the context in an entry of the file. Raises _BadField."""
    if not isinstance(entry, dict):
        raise _BadField(f"the context {name!r} must be an object")
    url, key = entry.get("url"), entry.get("key")
    if not isinstance(url, str) or not _is_address(url):
        raise _BadField(f"`url` of the context {name!r} must begin with http:// or https:// and have a host")
    if not isinstance(key, str) or not is_service_key(key):
        raise _BadField(
            f"`key` of the context {name!r} must be a key of runyard, which begins with {KEY_PREFIX}"
        )
    return Context(name, normalized(url), key)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


@contextmanager
def locked() -> Iterator[None]:
    """Make other processes that change the contexts file wait while the block loads and saves it. Raises CommandFailed."""
    file = path().with_name("contexts.lock")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be locked: {error.strerror or error}.") from error
    try:
        _lock(descriptor, file)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be locked: {error.strerror or error}.") from error


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
        finally:
            Path(draft).unlink(missing_ok=True)  # still there if writing failed
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


def complete_name(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`. Prints nothing."""
    try:
        return sorted(name for name in load().by_name if name.startswith(incomplete))
    except CommandFailed:
        return []
