"""Files that builds share on this machine: installed packages, and the installer's cache of each deployment.

Shared packages are the wheels of one resolved set, installed once and used by several environments.

No code of a deployment runs during their installation. The installer takes exactly the pinned wheels of the operator's
index, builds nothing, and links their files from a cache that no sandbox can write to. The interpreter that compiles
them does not have them on its path, since a wheel may contain code that runs as soon as Python starts. Processes that
use such a folder see it read-only, as far as the machine's isolation supports it.

A folder that was not used for a day is removed, and created again when needed. Of a machine whose shared files exceed the
limit of `cache_mb`, unused folders are removed after an hour, and then the downloads.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import gevent
from sqlalchemy import text

from shared.infra.postgres import connection
from shared.settings import Settings
from workers.builder import workspaces
from workers.builder.python import toolchain
from workers.builder.python.installer import Installer
from workers.builder.python.requirements import Requirements
from workers.builder.python.toolchain import Interpreter
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace, exclusive, lock_shared, read_untrusted, try_locked
from workers.isolation import disk

KEPT_SECONDS = 24 * 3600.0
LEAST_KEPT_SECONDS = 3600.0  # longer than a build, which may yet use the folder
DOWNLOADS = ("npm", "uv")  # caches of installers, beside the folder of the packages
COMPILED = "compiled"  # marker in a folder of packages: its modules have bytecode, as far as possible
MAX_CACHE_BYTES = 2 * 1024**3
MAX_NAME_BYTES = 1024  # of the folder names of an environment's shared packages
DELETED_SECONDS = 10.0
TIDY_SECONDS = 600.0

ALIVE = text(
    "SELECT CAST(id AS text) FROM deployment WHERE CAST(id AS text) = ANY(:ids) AND deleted_at IS NULL"
)


class Packages:
    """The shared packages of this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shared = settings.cache_dir / "shared"  # a single mount: hard links cannot cross mounts
        self.folder = self._shared / "packages"

    def name(self, requirements: Requirements, interpreter: Interpreter) -> str:
        """Return the name of the set's folder; empty if the set has no wheels."""
        return f"{interpreter.tag}-{requirements.key}" if requirements.wheels else ""

    def environment(self, name: str) -> Path:
        return self.folder / name / "env"

    def ensure(
        self, name: str, requirements: Requirements, interpreter: Interpreter, write_line: WriteLine
    ) -> None:
        """Install the packages unless their folder is already complete. Raises BuildFailed."""

        def install(root: Path) -> None:
            write_line("INFO", f"installing {len(requirements.wheels)} packages")
            self._install(root, requirements, interpreter, write_line)

        if not self.ensure_folder(name, install):
            write_line("INFO", f"{len(requirements.wheels)} packages are installed already")
        if not (self.folder / name / COMPILED).exists():
            gevent.spawn(self._compile, self.folder / name, interpreter)

    def ensure_folder(self, name: str, install: Callable[[Path], None]) -> bool:
        """Have `install` fill the folder with this name unless it is complete. Returns whether it was called."""
        root = self.folder / name
        with exclusive(Workspace(root)):
            if Workspace(root).ready_marker.exists():
                os.utime(Workspace(root).ready_marker)
                return False
            shutil.rmtree(root, ignore_errors=True)
            try:
                install(root)
                Workspace(root).ready_marker.touch()
            except BaseException:
                shutil.rmtree(root, ignore_errors=True)
                raise
        return True

    def _install(
        self, root: Path, requirements: Requirements, interpreter: Interpreter, write_line: WriteLine
    ) -> None:
        root.mkdir(parents=True)
        listed, env = root / "requirements.txt", root / "env"
        if requirements.lock:  # contains URLs; the installer need not read the index, which may have changed
            listed = root / "pylock.toml"
        listed.write_text(requirements.lock or "".join(f"{line}\n" for line in requirements.wheels))
        installer = Installer(self._sandbox(root), interpreter)
        installer.create_environment(env, write_line)
        with lock_shared(Workspace(self._shared / "uv")):
            installer.install_wheels(listed, env, write_line, writable=self._shared)

    def _compile(self, root: Path, interpreter: Interpreter) -> None:
        """Compile the installed modules, unless another process of this machine does.

        Runs beside the build and the first graph hosts. They compile the modules that they import themselves, which
        are few of the installed ones. Small packages are compiled first, because a host imports little of a large one.
        The marker is written last: if this process dies, the next start of a graph host compiles the rest.
        """
        # `suppress`: the folder may have been removed.
        with suppress(FileNotFoundError), try_locked(root / "compiling") as is_free:
            if not is_free or (root / COMPILED).exists():
                return
            site = root / "env" / "lib" / f"python{interpreter.version}" / "site-packages"
            parts = sorted(site.iterdir(), key=lambda part: sum(1 for _ in part.rglob("*.py")))
            compiling = toolchain.compile_bytecode(interpreter.path, parts)
            self._sandbox(root).attempt(compiling, readonly=[interpreter.prefix])
            (root / COMPILED).touch()

    def _sandbox(self, root: Path) -> StepSandbox:
        return StepSandbox(self._settings, folder=root, cache=self._shared / "uv", runs_as_service=True)

    def keep_tidy(self, used: Collection[str]) -> int:
        """Remove unused folders. `used` are the names that environments here refer to. Returns the number removed."""
        if not self.folder.is_dir():
            return 0
        names = {path.name.removesuffix(".lock") for path in self.folder.iterdir()}
        for name in used:
            with suppress(FileNotFoundError):
                os.utime(Workspace(self.folder / name).ready_marker)
        roots = sorted((self.folder / name for name in names), key=_age, reverse=True)
        return sum(_remove_older(root, KEPT_SECONDS) for root in roots) + self._shrink(roots)

    def _shrink(self, roots: Iterable[Path]) -> int:
        """Remove unused folders, given oldest first, and downloads, while the shared files exceed their limit."""
        if not self._settings.cache_mb:
            return 0
        removed = 0
        removals = [partial(_remove_older, root, LEAST_KEPT_SECONDS) for root in roots]
        removals += [partial(_remove_downloads, self._shared / name) for name in DOWNLOADS]
        for remove in removals:
            if disk.size_kib(self._shared) <= self._settings.cache_mb * 1024:
                break
            removed += remove()
        return removed


def _remove_older(root: Path, seconds: float) -> bool:
    """Remove a folder of packages that was not used for so long. Returns whether it was removed."""
    if _age(root) <= seconds:
        return False
    with exclusive(Workspace(root)):
        if _age(root) <= seconds:
            return False
        shutil.rmtree(root, ignore_errors=True)
        Workspace(root).lock.unlink(missing_ok=True)
    return True


def _age(root: Path) -> float:
    """Return the seconds since a folder of packages was used, or since it was begun if it is not complete."""
    for path in (Workspace(root).ready_marker, root, Workspace(root).lock):
        try:
            return time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
    return 0


def _remove_downloads(folder: Path) -> bool:
    """Remove the cache of an installer unless one uses it now. Returns whether there was one to remove."""
    if not folder.is_dir():
        return False
    with try_locked(Workspace(folder).use) as is_free:
        if is_free:
            disk.remove(folder)
    return is_free


def cache_of(settings: Settings, deployment_id: UUID) -> Path:
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
            used.update(read_untrusted(path, MAX_NAME_BYTES).decode().splitlines())
    large = [path for path in _by_deployment(settings).values() if disk.excess([path], (), MAX_CACHE_BYTES)]
    return _remove(large) + Packages(settings).keep_tidy(used)


def _by_deployment(settings: Settings) -> dict[str, Path]:
    folder = _folder(settings)
    return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}


def _remove(folders: Iterable[Path]) -> int:
    removed = 0
    for path in folders:
        disk.remove(path)
        removed += 1
    return removed
