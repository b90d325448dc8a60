"""The folders of revisions on this machine: made by one process at a time, kept while in use, else removed.

Two file locks stand beside each folder. One is held by whoever makes or removes it; the other is shared by
everybody whose graph host works in it, and is let go by the kernel when that process ends, however it ends.
A folder that goes is renamed first: under its own name it is whole, or being made by who holds the lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import UUID

import gevent
from sqlalchemy import text

from shared.deployments.shares import takes_traffic
from shared.infra.hardening import owners_alone
from shared.infra.postgres import connection
from shared.models import REVISION_ENDS, is_live
from shared.settings import Settings
from workers.isolation import disk

log = logging.getLogger(__name__)

TIDY_SECONDS = 5.0
LOCK_PAUSE_SECONDS = 0.1
TRASH = ".trash-"


@dataclass(frozen=True)
class Workspace:
    """Where a revision's things are on this machine."""

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
        """A file that names the shared packages it uses."""
        return self.root / "packages"

    @property
    def lock(self) -> Path:
        return self.root.with_suffix(".lock")

    @property
    def use(self) -> Path:
        return self.root.with_suffix(".use")

    @property
    def mark(self) -> Path:
        return self.root / "whole"


def folder(settings: Settings) -> Path:
    """Where the workspaces of this machine are."""
    return settings.data_dir / "revisions"


def workspace_of(settings: Settings, build_id: UUID) -> Workspace:
    return Workspace(folder(settings) / str(build_id))


@contextmanager
def exclusive(workspace: Workspace) -> Iterator[None]:
    """Hold the workspace against other processes of this machine."""
    with _locked(workspace.lock, fcntl.LOCK_EX):
        yield


def hold(workspace: Workspace) -> IO[str]:
    """Keep a workspace, also one that is yet to be made, from being removed until the answer is closed."""
    return _locked(workspace.use, fcntl.LOCK_SH)


def _locked(path: Path, kind: int) -> IO[str]:
    """The folder it is in may be passed through by user code, and not listed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    while True:
        file = open(path, "a", opener=owners_alone)  # noqa: SIM115
        if not _lock(file, kind):
            file.close()
            gevent.sleep(LOCK_PAUSE_SECONDS)  # a blocking flock would stop every greenlet
        elif _is_same(file, path):
            return file
        else:
            file.close()  # removed by whoever had it before


def _lock(file: IO[str], kind: int) -> bool:
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
    """Remove a workspace from this machine; False when it is in use."""
    workspace = workspace_of(settings, build_id)
    trash = workspace.root.with_name(f"{TRASH}{build_id}-{secrets.token_hex(4)}")
    with exclusive(workspace):
        with _locked_anew(workspace.use) as is_free:
            if not is_free:
                return False
            if workspace.root.exists():
                workspace.root.rename(trash)
            workspace.use.unlink(missing_ok=True)
        workspace.lock.unlink(missing_ok=True)
    delete(trash)
    return True


@contextmanager
def _locked_anew(path: Path) -> Iterator[bool]:
    """Whether nobody else has the lock; it is ours for the block, then."""
    with open(path, "a", opener=owners_alone) as file:
        yield _lock(file, fcntl.LOCK_EX)


def delete(path: Path) -> None:
    """Thousands of files: by another process, so that no greenlet waits for them."""
    disk.remove(path)


def remove_unneeded(settings: Settings) -> int:
    """Remove what a process that died was removing, and the workspaces nobody will want soon; how many."""
    place = folder(settings)
    here = [path.name for path in place.iterdir()] if place.is_dir() else []
    for name in here:
        if name.startswith(TRASH):
            delete(place / name)
    ids = {id for name in here if (id := _uuid(name.partition(".")[0])) is not None}
    if not ids:
        return 0
    unneeded = ids - needed(ids, settings.kept_environments)
    return sum(remove(settings, build_id) for build_id in unneeded)


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None


NEEDED = text(f"""
WITH near AS (
    SELECT r.id, r.status, r.number, coalesce(r.build_id, r.id) AS build_id, d.id AS deployment_id,
           {takes_traffic("r", "d")} IS TRUE AS serves
    FROM revision r JOIN deployment d ON d.id = r.deployment_id
    WHERE d.deleted_at IS NULL AND d.id IN (
        SELECT deployment_id FROM revision WHERE id = ANY(:ids) OR build_id = ANY(:ids))
), newest AS (
    SELECT build_id, row_number() OVER (PARTITION BY deployment_id ORDER BY max(number) DESC) AS rank
    FROM near WHERE status = 'DEPLOYED' GROUP BY deployment_id, build_id
)
SELECT build_id FROM newest WHERE rank <= :kept
UNION
SELECT build_id FROM near WHERE serves OR status <> ALL(:ends)
UNION
SELECT near.build_id FROM near JOIN run ON run.deployment_id = near.deployment_id AND run.revision_id = near.id
WHERE {is_live("run")}
""")


def needed(ids: Collection[UUID], kept: int) -> set[UUID]:
    """Which of these builds serve, are on their way, have runs to come, or are their deployment's newest."""
    values = {"ids": list(ids), "kept": kept, "ends": [str(end) for end in REVISION_ENDS]}
    with connection() as conn:
        return set(conn.execute(NEEDED, values).scalars())
