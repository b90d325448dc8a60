"""A revision's environment on this machine: its project, its packages, and how its graph host starts.

It is made from the archive and the resolved requirements, which are the same everywhere, so any builder or
runner can make it; whoever finds it whole uses it as it is. A file lock keeps two from making it at once,
and a mark says that it is whole: what a dead process left half-done is removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import gevent
import orjson
from sqlalchemy import text
from uv import find_uv_bin

import shared
import workers.graph_host
from shared import archives, secrets
from shared.database import connection
from shared.errors import BuildFailed, HostUnusable, NotFound
from shared.settings import Settings
from workers import commands, manifest, sandbox, steps, workspaces
from workers.deploy_log import DeployLog
from workers.hosts import HostCommand, Output
from workers.manifest import Manifest
from workers.steps import Say
from workers.workspaces import Workspace

GRAPH_HOST = Path(workers.graph_host.__file__).parent
OWN = (GRAPH_HOST.parent, Path(shared.__file__).parent)  # for the steps that are ours
MAX_REQUIREMENTS_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Made:
    """An environment that is whole."""

    workspace: Workspace
    manifest: Manifest
    requirements: str


def make(
    settings: Settings,
    build_id: UUID,
    *,
    digest: str,
    config_path: str | None,
    requirements: str | None,
    say: Say,
    deadline_seconds: float,
) -> Made:
    """A revision's environment, made here unless it is whole already; raises BuildFailed.

    `requirements` None: they are resolved now, and are part of the answer.
    """
    workspace = workspaces.workspace_of(settings, build_id)
    with workspaces.exclusive(workspace):
        if workspace.mark.exists():
            found = manifest.read(workspace.project, config_path)
            return Made(workspace, found, requirements or _read(workspace.requirements))
        shutil.rmtree(workspace.root, ignore_errors=True)
        try:
            workspace.root.mkdir(parents=True, mode=0o700)
            workspace.home.mkdir()
            sandbox.give(workspace.root)
            maker = _Maker(settings, workspace, say, deadline_seconds)
            made = maker.make(digest, config_path, requirements)
            workspace.mark.touch()
            return made
        except OSError as error:
            shutil.rmtree(workspace.root, ignore_errors=True)
            raise BuildFailed("files", f"cannot write the environment: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(workspace.root, ignore_errors=True)
            raise


class _Maker:
    """The steps of making one environment."""

    def __init__(self, settings: Settings, workspace: Workspace, say: Say, seconds: float) -> None:
        self._settings = settings
        self._workspace = workspace
        self._say = say
        self._timeout = gevent.Timeout(
            seconds, BuildFailed("time", f"the build took more than {seconds:.0f} s")
        )
        self._uv = find_uv_bin()

    def make(self, digest: str, config_path: str | None, requirements: str | None) -> Made:
        with self._timeout:
            self._unpack(digest)
            found = manifest.read(self._workspace.project, config_path)
            for warning in found.warnings:
                self._say("WARNING", warning)
            self._say("INFO", f"creating an environment with Python {sys.version.split()[0]}")
            self._run(
                "environment", commands.create_environment(self._uv, self._workspace.env, sys.executable)
            )
            is_first = requirements is None
            if requirements is None:
                requirements = self._resolve(found)
            _write(self._workspace.requirements, requirements)
            # A first build is followed by an inspection, which leaves the bytecode of what is imported.
            self._install(found, requirements, compile_bytecode=not is_first)
            return Made(self._workspace, found, requirements)

    def _unpack(self, digest: str) -> None:
        archive = self._workspace.root / "source.tar.gz"
        self._say("INFO", "fetching the source archive")
        _fetch(digest, archive)
        argv = commands.unpack(sys.executable, archive, self._workspace.project)
        self._run("unpack", argv, PYTHONPATH=os.pathsep.join(dict.fromkeys(str(p.parent) for p in OWN)))
        archive.unlink()

    def _resolve(self, found: Manifest) -> str:
        """The exact versions of everything, but of the project's own packages, which are its source."""
        self._say("INFO", "resolving requirements")
        wanted, output = self._workspace.root / "wanted.in", self._workspace.root / "resolved.txt"
        packages = [f"--editable {self._workspace.project / path}" for path in found.packages]
        wanted.write_text("\n".join((*commands.BASE_REQUIREMENTS, *found.requirements, *packages)) + "\n")
        listed = [self._workspace.project / path / "requirements.txt" for path in found.plain]
        inputs = [wanted, *(file for file in listed if file.is_file())]
        python = str(self._workspace.python)
        self._run("requirements", commands.resolve(self._uv, inputs, output, python, found.index))
        lines = _read(output).splitlines()
        return "".join(f"{line}\n" for line in lines if not line.startswith(("-e ", "--editable")))

    def _install(self, found: Manifest, requirements: str, *, compile_bytecode: bool) -> None:
        count = sum("==" in line or "@" in line for line in requirements.splitlines())
        self._say("INFO", f"installing {count} packages")
        python = self._workspace.python
        # Across the mounts of a sandbox files cannot be linked.
        link_mode = "hardlink" if sandbox.level(self._settings.isolation) < 2 else "copy"
        argv = commands.install(
            self._uv,
            self._workspace.requirements,
            python,
            found.index,
            link_mode=link_mode,
            compile_bytecode=compile_bytecode,
        )
        self._run("install", argv)
        if found.packages:
            self._say("INFO", f"installing the project's own: {', '.join(map(str, found.packages))}")
            directories = [self._workspace.project / path for path in found.packages]
            self._run("install", commands.install_packages(self._uv, directories, python, found.index))

    def _run(self, step: str, argv: list[str], **variables: str) -> None:
        """Run one command in the sandbox, its output to the log; raises BuildFailed."""
        cache = self._settings.cache_dir / sandbox.cache_name()
        cache.mkdir(parents=True, exist_ok=True)
        sandbox.give(cache)
        env = {
            **self._settings.passed_on,
            "HOME": str(self._workspace.home),
            "UV_CACHE_DIR": str(cache),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",  # packages come from where the operator or pip_config_file says
            "UV_NO_PROGRESS": "1",
            **variables,
        }
        if "PIP_INDEX_URL" in env and "UV_DEFAULT_INDEX" not in env:
            env.setdefault("UV_INDEX_URL", env["PIP_INDEX_URL"])
        confined = sandbox.wrap(
            argv,
            isolation=self._settings.isolation,
            readonly=[Path(self._uv), Path(sys.prefix), *OWN],
            writable=[self._workspace.root, cache],
            cwd=self._workspace.root,
        )
        if reason := steps.execute(confined, self._workspace.root, env, self._say):
            raise BuildFailed(step, reason)


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
    config = {
        "graphs": made.manifest.graphs,
        "paths": [str(workspace.project / path) for path in made.manifest.import_paths],
        "inspect": inspect,
    }
    env = {
        **{name: value for name, value in settings.passed_on.items() if not name.startswith(("UV_", "PIP_"))},
        **made.manifest.env,
        **variables,
        "HOME": str(workspace.home),
        "PYTHONUNBUFFERED": "1",
        **({} if inspect else {"PYTHONDONTWRITEBYTECODE": "1"}),
        "VIRTUAL_ENV": str(workspace.env),
        "MALLOC_ARENA_MAX": "2",  # many threads, each with an arena of its own, would look like a leak
        "GRAPH_HOST_CONFIG": orjson.dumps(config).decode(),
    }
    env["PATH"] = f"{workspace.env / 'bin'}:{env.get('PATH', os.defpath)}"
    argv = sandbox.wrap(
        commands.graph_host(workspace.python, GRAPH_HOST, threads=settings.host_threads),
        isolation=settings.isolation,
        readonly=[workspace.project, GRAPH_HOST, *([] if inspect else [workspace.env])],
        writable=[workspace.home, *([workspace.env] if inspect else [])],
        cwd=cwd,
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
        output = deploy_log.of(row.deployment_id, revision_id, variables.values())
        hold = workspaces.hold(workspaces.workspace_of(settings, row.build_id))
        try:
            made = make(
                settings,
                row.build_id,
                digest=row.archive_digest,
                config_path=row.source_revision_config.get("langgraph_config_path"),
                requirements=row.requirements,
                say=lambda level, message: output(level, message, None),
                deadline_seconds=settings.build_timeout_seconds,
            )
        except BuildFailed as error:
            hold.close()
            raise HostUnusable(f"the environment cannot be made here: {error.message}") from error
        return dataclasses.replace(host_command(settings, made, variables), hold=hold), output

    return prepare


REVISION = text(
    "SELECT deployment_id, archive_digest, source_revision_config, requirements,"
    " coalesce(build_id, id) AS build_id FROM revision WHERE id = :id"
)
