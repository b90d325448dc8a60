"""Workspaces: the folders of builds on this machine. One process at a time creates or removes a workspace.

Each folder has two lock files beside it. The process that creates or removes the folder holds the first exclusively.
Each process with a graph host in the folder holds the second as a shared lock, which the kernel releases when the
process ends for any reason. A folder is renamed before it is removed. A folder under its own name is therefore
complete, or its creator holds the lock.

User code may have changed the files in a workspace, so they are read as untrusted data. No function follows a link that
a build step has put in a file's place.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from uuid import UUID

import gevent

from shared.errors import BuildFailed
from shared.infra.postgres import connection
from shared.infra.system import open_private
from shared.models import REVISION_ENDS
from shared.settings import Settings
from shared.sql import statement
from workers.builder.config.fields import refused
from workers.isolation import disk

log = logging.getLogger(__name__)

TIDY_SECONDS = 5.0
LOCK_PAUSE_SECONDS = 0.1
TRASH = ".trash-"
_NEEDED = statement("builds.needed")
MAX_BYTES = 1024 * 1024  # maximum size of a file of the project that is read
TOP = PurePosixPath()


@dataclass(frozen=True)
class Workspace:
    """The paths of a build's files on this machine."""

    root: Path

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def env(self) -> Path:
        return self.root / "env"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def python(self) -> Path:
        return self.env / "bin" / "python"

    @property
    def requirements(self) -> Path:
        return self.root / "requirements.txt"

    @property
    def packages(self) -> Path:
        """The file with the folder names of the shared packages that this workspace uses, one per line."""
        return self.root / "packages"

    @property
    def lock(self) -> Path:
        """The lock file of the process that creates or removes the workspace."""
        return self.root.with_suffix(".lock")

    @property
    def use(self) -> Path:
        """The lock file of the processes that have a graph host in the workspace."""
        return self.root.with_suffix(".use")

    @property
    def ready_marker(self) -> Path:
        """The file that shows that the environment is complete."""
        return self.root / "whole"

    def require_folders(self) -> None:
        """Raise BuildFailed if a build step has replaced a folder by a link.

        The sandbox of a graph host makes these folders accessible, and would make the link's target accessible instead.
        """
        for folder in (self.project, self.env, self.home):
            if folder.is_symlink():
                raise BuildFailed(
                    "install", f"a build step has replaced the folder {folder.name!r} by a link"
                )


def folder(settings: Settings) -> Path:
    """Return the folder of all workspaces on this machine."""
    return settings.data_dir / "revisions"


def workspace_of(settings: Settings, build_id: UUID) -> Workspace:
    return Workspace(folder(settings) / str(build_id))


@contextmanager
def exclusive(workspace: Workspace) -> Iterator[None]:
    """Lock the workspace against other processes on this machine for the block."""
    with _locked(workspace.lock, fcntl.LOCK_EX):
        yield


def lock_shared(workspace: Workspace) -> IO[str]:
    """Prevent the removal of a workspace until the returned file is closed. The workspace need not exist yet."""
    return _locked(workspace.use, fcntl.LOCK_SH)


def _locked(path: Path, kind: int) -> IO[str]:
    """Open and lock a file, and wait if necessary. User code can pass through the file's folder but not list it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    while True:
        file = open(path, "a", opener=open_private)  # noqa: SIM115
        if not _try_lock(file, kind):
            file.close()
            gevent.sleep(LOCK_PAUSE_SECONDS)  # a blocking flock would stop every greenlet
        elif _is_same(file, path):
            return file
        else:
            file.close()  # the previous holder of the lock has removed the file


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove(settings: Settings, build_id: UUID) -> bool:
    """Remove a workspace from this machine. Returns False if it is in use."""
    workspace = workspace_of(settings, build_id)
    trash = workspace.root.with_name(f"{TRASH}{build_id}-{secrets.token_hex(4)}")
    with exclusive(workspace):
        with try_locked(workspace.use) as is_free:
            if not is_free:
                return False
            if workspace.root.exists():
                workspace.root.rename(trash)
            workspace.use.unlink(missing_ok=True)
        workspace.lock.unlink(missing_ok=True)
    disk.remove(trash)
    return True


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Try to lock a file against all other processes for the block. Yields whether it was free."""
    with open(path, "a", opener=open_private) as file:
        yield _try_lock(file, fcntl.LOCK_EX)


def remove_unneeded(settings: Settings) -> int:
    """Remove unneeded workspaces, and those whose removal a dead process did not finish.

    Returns the number of removed workspaces.
    """
    parent = folder(settings)
    names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    for name in names:
        if name.startswith(TRASH):
            disk.remove(parent / name)
    ids = {id for name in names if (id := _uuid(name.partition(".")[0])) is not None}
    if not ids:
        return 0
    unneeded = ids - needed(ids, settings.kept_environments)
    return sum(remove(settings, build_id) for build_id in unneeded)


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None


def needed(ids: Collection[UUID], kept: int) -> set[UUID]:
    """Return the builds that serve, are in progress, have live runs, or are among a deployment's `kept` newest."""
    ends = [str(end) for end in REVISION_ENDS]
    with connection() as conn:
        return {row["build_id"] for row in _NEEDED.rows(conn, ids=list(ids), kept=kept, ends=ends)}


@dataclass(frozen=True)
class SourceTree:
    """An unpacked archive. Methods take paths relative to its root, except `inside`."""

    root: Path
    directory: PurePosixPath = TOP  # directory of the configuration file

    def inside(self, path: str, what: str) -> PurePosixPath:
        """Convert a path relative to the configuration's directory into one relative to the archive's root.

        Raises BuildFailed if it leads outside the archive. `what` names the path in the error.
        """
        if not path or path.startswith("/") or "\\" in path or "\0" in path:
            raise refused(f"{what} {path!r} must be a relative path")
        inside = plain_path(self.directory / path)
        if inside is None:
            raise refused(f"{what} {path!r} leads outside the archive")
        return inside

    def is_file(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_file()

    def is_dir(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_dir()

    def read(self, path: PurePosixPath, max_bytes: int) -> bytes:
        """Read at most `max_bytes` from the beginning of a file. Raises OSError for a link, and outside of the archive."""
        target = self.root / path
        if not target.parent.resolve().is_relative_to(self.root.resolve()):
            raise OSError(errno.ELOOP, "its folder leads outside the archive")
        return read_untrusted(target, max_bytes)

    def content(self, path: PurePosixPath, name: str = "") -> bytes:
        """Return the content of a file of at most MAX_BYTES. Raises BuildFailed, which calls the file by `name`."""
        name = name or str(path)
        try:
            raw = self.read(path, MAX_BYTES + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise refused(f"{name} is not in the archive") from error
        except OSError as error:
            raise refused(f"{name} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_BYTES:
            raise refused(f"{name} is larger than {MAX_BYTES // 1024} KiB")
        return raw


def plain_path(path: PurePosixPath) -> PurePosixPath | None:
    """Return a relative path without `..`; None if it leads outside its base."""
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif not parts:
            return None
        else:
            parts.pop()
    return PurePosixPath(*parts)


def read_untrusted(path: Path, max_bytes: int) -> bytes:
    """Read at most `max_bytes` from the beginning of a file. Raises OSError for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(max_bytes)


def write_untrusted(path: Path, content: str) -> None:
    """Replace a file, including a link that a build step has put in its place."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(content)
