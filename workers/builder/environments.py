"""A revision's environment on this machine: its project, its packages, and how its graph host starts.

It is made from the archive and the resolved requirements, which are the same everywhere, so any builder or
runner can make it; whoever finds it whole uses it as it is. A file lock keeps two from making it at once,
and a mark says that it is whole: what a dead process left half-done is removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import gevent
import orjson
from sqlalchemy import text

import workers.graph_host
from shared.deployments import archives, deployments, secrets
from shared.errors import BuildFailed, HostUnusable, NotFound, Unavailable
from shared.infra.postgres import connection
from shared.settings import MIB, Settings
from workers.builder import commands, interpreters, resolving, sources, steps, uv, workspaces
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest
from workers.builder.installer import Installer
from workers.builder.interpreters import Interpreter
from workers.builder.packages import Packages
from workers.builder.requirements import Requirements, from_lock
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace
from workers.isolation import sandbox
from workers.runner.deployment_log import DeployLog
from workers.runner.host import HostCommand, Output

GRAPH_HOST = Path(workers.graph_host.__file__).parent
MAX_REQUIREMENTS_BYTES = 4 * 1024 * 1024
MAX_CACHE_BYTES = 2 * 1024**3
GONE_SECONDS = 10.0
TIDY_SECONDS = 600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """An environment that is whole."""

    workspace: Workspace
    manifest: Manifest
    requirements: Requirements
    packages: Path | None  # the environment with the wheels it shares with others
    python_version: str
    inputs: str = ""  # a digest of what was asked for, when it was resolved now

    @property
    def folders(self) -> list[Path]:
        """What its processes read beside the project."""
        return [self.workspace.env, *([] if self.packages is None else [self.packages])]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an environment is made from."""

    deployment_id: UUID
    digest: str  # of the source archive
    config_path: str | None
    requirements: str | None = None  # None: they are resolved
    python_version: str | None = None  # None: as the project says


# The requirements an earlier build settled on for the same inputs, if they are to be kept.
Settled = Callable[[str], str | None]


def make(
    settings: Settings,
    build_id: UUID,
    plan: Plan,
    *,
    write_line: WriteLine,
    settled: Settled = lambda inputs: None,
    deadline_seconds: float,
) -> Made:
    """A revision's environment, made here unless it is whole already; raises BuildFailed."""
    workspace = workspaces.workspace_of(settings, build_id)
    maker = _Maker(settings, workspace, plan, write_line)
    timeout = BuildFailed("time", f"the build took more than {deadline_seconds:.0f} s")
    with workspaces.exclusive(workspace), gevent.Timeout(deadline_seconds, timeout):
        try:
            return maker.find() or maker.make(settled)
        except OSError as error:
            shutil.rmtree(workspace.root, ignore_errors=True)
            raise BuildFailed("files", f"cannot write the environment: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(workspace.root, ignore_errors=True)
            raise


class _Maker:
    """The steps of making one environment."""

    def __init__(self, settings: Settings, workspace: Workspace, plan: Plan, write_line: WriteLine) -> None:
        self._settings = settings
        self._workspace = workspace
        self._plan = plan
        self._write_line = write_line
        self._packages = Packages(settings)
        cache = cache_of(settings, plan.deployment_id)
        self._sandbox = StepSandbox(settings, folder=workspace.root, cache=cache)

    def find(self) -> Made | None:
        """The environment if it is whole already."""
        if not self._workspace.mark.exists():
            return None
        found = manifest.read(self._workspace.project, self._plan.config_path)
        interpreter = self._interpreter(found)
        asked = resolving.asked(self._workspace.project, found, interpreter, self._plan.digest)
        requirements = Requirements.parse(self._plan.requirements or _read(self._workspace.requirements))
        return self._made(found, requirements, interpreter, asked.digest)

    def make(self, settled: Settled) -> Made:
        shutil.rmtree(self._workspace.root, ignore_errors=True)
        self._workspace.root.mkdir(parents=True, mode=0o700)
        self._workspace.home.mkdir()
        sandbox.give(self._workspace.root)
        self._unpack()
        found = manifest.read(self._workspace.project, self._plan.config_path)
        for warning in found.warnings:
            self._write_line("WARNING", warning)
        interpreter = self._interpreter(found)
        asked = resolving.asked(self._workspace.project, found, interpreter, self._plan.digest)
        installer = Installer(self._sandbox, interpreter)
        requirements = self._requirements(installer, asked, settled)
        made = self._made(found, requirements, interpreter, asked.digest)
        self._create(installer, made)
        self._install(installer, made)
        folders = [self._workspace.env, self._workspace.project]
        compiling = commands.compile_bytecode(str(interpreter.path), folders)
        self._sandbox.attempt(compiling, readonly=[interpreter.prefix])
        self._workspace.mark.touch()
        return made

    def _unpack(self) -> None:
        archive = self._workspace.root / "source.tar.gz"
        self._write_line("INFO", "fetching the source archive")
        _fetch(self._plan.digest, archive)
        argv = commands.unpack(sys.executable, archive, self._workspace.project)
        self._sandbox.run("unpack", argv, self._write_line, variables={"PYTHONPATH": steps.own_path()})
        archive.unlink()

    def _interpreter(self, found: Manifest) -> Interpreter:
        return interpreters.find(self._settings, self._plan.python_version or found.python_version)

    def _requirements(self, installer: Installer, asked: resolving.Asked, settled: Settled) -> Requirements:
        if self._plan.requirements is not None:
            return Requirements.parse(self._plan.requirements)
        kept = settled(asked.digest)
        if kept is not None:
            self._write_line(
                "INFO", "the requirements are those of the last revision, and so are their versions"
            )
            return Requirements.parse(kept)
        self._write_line("INFO", "resolving requirements")
        lock = resolving.resolve(installer, self._workspace, asked, self._write_line)
        own = [self._workspace.project / path for path in asked.manifest.packages]
        return from_lock(_read(lock), self._workspace.project, own, is_ours=asked.is_ours)

    def _made(
        self, found: Manifest, requirements: Requirements, interpreter: Interpreter, inputs: str
    ) -> Made:
        """The answer, once the packages it shares are here."""
        name = self._packages.name(requirements, interpreter)
        if name:
            self._packages.ensure(name, requirements, interpreter, self._write_line)
        packages = self._packages.environment(name) if name else None
        return Made(self._workspace, found, requirements, packages, interpreter.version, inputs)

    def _create(self, installer: Installer, made: Made) -> None:
        """An environment that has the shared packages, and room for its own."""
        env = self._workspace.env
        self._write_line("INFO", f"creating an environment with Python {made.python_version}")
        # What build steps may have put in its place is gone before we write below it.
        shutil.rmtree(env, ignore_errors=True)
        installer.create_environment(env, self._write_line)
        site = f"lib/python{made.python_version}/site-packages"
        if made.packages is not None:
            # addsitedir: `.pth` files among the packages count too
            line = f"import site; site.addsitedir({str(made.packages / site)!r})\n"
            _write(env / site / "_packages.pth", line)
            _write(self._workspace.packages, made.packages.parent.name)
        _write(self._workspace.requirements, str(made.requirements))

    def _install(self, installer: Installer, made: Made) -> None:
        """What may run code of its own, and the project's packages."""
        own = made.manifest.packages
        if not made.requirements.built and not own:
            return
        if made.requirements.built:
            self._write_line(
                "INFO", f"installing {len(made.requirements.built)} packages of this deployment's own"
            )
        if own:
            self._write_line("INFO", f"installing the project's own: {', '.join(map(str, own))}")
        listed = self._workspace.root / "built.txt"
        _write(listed, "".join(f"{line}\n" for line in made.requirements.built))
        installer.install_built(
            listed if made.requirements.built else None,
            [self._workspace.project / path for path in own],
            self._workspace.env,
            made.manifest.index and made.manifest.index.within(self._workspace.project),
            self._write_line,
            project=self._workspace.project,
            readonly=[] if made.packages is None else [made.packages],
        )


def cache_of(settings: Settings, deployment_id: UUID) -> Path:
    """The installer's cache of one deployment: its build steps may fill it, and nobody else reads it."""
    return settings.data_dir / "caches" / str(deployment_id)


def _read(path: Path) -> str:
    """A file that a build step wrote: one that it made a link to elsewhere is not followed."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(MAX_REQUIREMENTS_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildFailed("requirements", "their list cannot be read") from error


def _write(path: Path, content: str) -> None:
    """Write a file anew, whatever a build step has put in its place."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(content)


def _fetch(digest: str, path: Path) -> None:
    found = hashlib.sha256()
    try:
        with connection() as conn, path.open("wb") as file:
            for chunk in archives.chunks(conn, digest):
                found.update(chunk)
                file.write(chunk)
    except NotFound as error:
        raise BuildFailed("fetch", error.message, status="CREATE_FAILED") from error
    if found.hexdigest() != digest:
        raise BuildFailed("fetch", "the source archive is damaged", status="CREATE_FAILED")


def host_command(
    settings: Settings, made: Made, variables: Mapping[str, str], *, inspect: bool = False
) -> HostCommand:
    """How to start a graph host of an environment, with the deployment's own variables."""
    workspace = made.workspace
    sandbox.give(workspace.root)  # it may have been made at another level
    cwd = workspace.project / made.manifest.directory
    interpreter = interpreters.find(settings, made.python_version)
    config = {
        "graphs": made.manifest.graphs,
        "paths": [str(workspace.project / path) for path in made.manifest.import_paths],
        "inspect": inspect,
        "store": made.manifest.store,
    }
    env = {
        **uv.without_variables(settings.passed_on),
        **made.manifest.env,
        **variables,
        "HOME": str(workspace.home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VIRTUAL_ENV": str(workspace.env),
        "MALLOC_ARENA_MAX": "2",  # many threads, each with an arena of its own, would look like a leak
        "GRAPH_HOST_CONFIG": orjson.dumps(config).decode(),
    }
    programs = [str(folder / "bin") for folder in made.folders]
    env["PATH"] = os.pathsep.join((*programs, env.get("PATH", os.defpath)))
    argv = sandbox.wrap(
        commands.graph_host(workspace.python, GRAPH_HOST, threads=settings.host_threads),
        settings,
        readonly=[interpreter.prefix, workspace.project, GRAPH_HOST, *made.folders],
        writable=[workspace.home],
        cwd=cwd,
        memory_bytes=settings.host_memory_mb * MIB,
    )
    return HostCommand(argv, str(cwd), env)


def host_of(settings: Settings, deploy_log: DeployLog) -> Callable[[UUID], tuple[HostCommand, Output]]:
    """What a runner's host pool calls to start a host of a revision."""

    def prepare(revision_id: UUID) -> tuple[HostCommand, Output]:
        with connection() as conn:
            row = conn.execute(REVISION, {"id": revision_id}).one_or_none()
            if row is None or row.archive_digest is None:
                raise HostUnusable("the revision is gone")
            variables = secrets.secrets_of(conn, revision_id)
        hidden = variables.values()
        if row.source == deployments.REPOSITORY:
            variables = sources.without_credentials(variables)
        output = deploy_log.of(row.deployment_id, revision_id, hidden)
        hold = workspaces.hold(workspaces.workspace_of(settings, row.build_id))
        try:
            made = make(
                settings,
                row.build_id,
                Plan(
                    deployment_id=row.deployment_id,
                    digest=row.archive_digest,
                    config_path=row.source_revision_config.get("langgraph_config_path"),
                    requirements=row.requirements,
                    python_version=row.python_version,
                ),
                write_line=lambda level, message: None,  # the build's log has it all
                deadline_seconds=settings.build_timeout_seconds,
            )
        except BuildFailed as error:
            hold.close()
            raise HostUnusable(f"the environment cannot be made here: {error.message}") from error
        return dataclasses.replace(host_command(settings, made, variables), hold=hold), output

    return prepare


REVISION = text(
    "SELECT deployment_id, source, archive_digest, source_revision_config, requirements, python_version,"
    " coalesce(build_id, id) AS build_id FROM revision WHERE id = :id"
)


def keep_tidy(settings: Settings) -> None:
    """Remove packages and caches nobody uses any more, for as long as the process lives."""
    tidied_at = time.monotonic()
    while True:
        gevent.sleep(GONE_SECONDS)
        try:
            remove_caches_of_deleted(settings)
            if time.monotonic() - tidied_at > TIDY_SECONDS:
                tidied_at = time.monotonic()
                remove_unused(settings)
        except Unavailable as error:
            log.info("packages and caches stay for now: %s", error)
        except Exception:  # the outermost loop: it must not end for one odd folder
            log.exception("removing packages and caches failed, going on")


def remove_caches_of_deleted(settings: Settings) -> int:
    """Remove the caches of deployments that are gone; how many."""
    caches = _caches(settings)
    if not caches:
        return 0
    with connection() as conn:
        alive = conn.execute(ALIVE, {"ids": list(caches)}).scalars().all()
    return _removed(path for name, path in caches.items() if name not in alive)


def remove_unused(settings: Settings) -> int:
    """Remove shared packages no environment here refers to, and caches that have grown too large; how many."""
    used = set()
    for path in workspaces.folder(settings).glob("*/packages"):
        with suppress(BuildFailed):
            used.add(_read(path))
    large = [path for path in _caches(settings).values() if steps.disk_bytes(path) > MAX_CACHE_BYTES]
    return _removed(large) + Packages(settings).keep_tidy(used)


def _caches(settings: Settings) -> dict[str, Path]:
    folder = settings.data_dir / "caches"
    return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}


def _removed(folders: Iterable[Path]) -> int:
    removed = 0
    for path in folders:
        workspaces.delete(path)
        removed += 1
    return removed


ALIVE = text(
    "SELECT CAST(id AS text) FROM deployment WHERE CAST(id AS text) = ANY(:ids) AND deleted_at IS NULL"
)
