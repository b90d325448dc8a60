"""The installer's cache of each deployment on this machine, and the removal of unused caches and packages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from sqlalchemy import text

from shared.infra.postgres import connection
from shared.settings import Settings
from workers.builder import workspaces
from workers.builder.python.packages import Packages
from workers.builder.source_tree import read_untrusted
from workers.isolation import disk

MAX_CACHE_BYTES = 2 * 1024**3
MAX_NAME_BYTES = 1024  # of the folder name of shared packages
DELETED_SECONDS = 10.0
TIDY_SECONDS = 600.0

log = logging.getLogger(__name__)


def of_deployment(settings: Settings, deployment_id: UUID) -> Path:
    """Return the installer's cache folder of one deployment. Only this deployment's build steps read and write it."""
    return _folder(settings) / str(deployment_id)


def _folder(settings: Settings) -> Path:
    return settings.data_dir / "caches"


def remove_caches_of_deleted(settings: Settings) -> int:
    """Remove the caches of deleted deployments. Returns the number removed."""
    caches = _by_deployment(settings)
    if not caches:
        return 0
    with connection() as conn:
        alive = conn.execute(ALIVE, {"ids": list(caches)}).scalars().all()
    return _remove(path for name, path in caches.items() if name not in alive)


def remove_unused(settings: Settings) -> int:
    """Remove unused shared packages, and caches larger than MAX_CACHE_BYTES. Returns the number removed."""
    used = set()
    for path in workspaces.folder(settings).glob("*/packages"):
        with suppress(OSError, UnicodeDecodeError):
            used.add(read_untrusted(path, MAX_NAME_BYTES).decode())
    large = [path for path in _by_deployment(settings).values() if disk.excess([path], (), MAX_CACHE_BYTES)]
    return _remove(large) + Packages(settings).keep_tidy(used)


def _by_deployment(settings: Settings) -> dict[str, Path]:
    folder = _folder(settings)
    return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}


def _remove(folders: Iterable[Path]) -> int:
    removed = 0
    for path in folders:
        workspaces.delete(path)
        removed += 1
    return removed


ALIVE = text(
    "SELECT CAST(id AS text) FROM deployment WHERE CAST(id AS text) = ANY(:ids) AND deleted_at IS NULL"
)
