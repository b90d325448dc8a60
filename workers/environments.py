"""A revision's environment on this machine: its project, its packages, and how its graph host starts.

It is made from the archive and the resolved requirements, which are the same everywhere, so any builder or
runner can make it; whoever finds it whole uses it as it is. A file lock keeps two from making it at once,
and a mark says that it is whole: what a dead process left half-done is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import gevent
import gevent.subprocess
import orjson
from sqlalchemy import text
from uv import find_uv_bin

import workers.graph_host
from shared import archives, deployments
from shared.database import connection
from shared.errors import BuildFailed, HostUnusable, NotFound
from shared.settings import Settings
from workers import commands, manifest, sandbox, unpack
from workers.deploy_log import DeployLog
from workers.hosts import HostCommand, Output
from workers.manifest import Manifest

GRAPH_HOST = Path(workers.graph_host.__file__).parent
LAST_LINES = 30
LOCK_PAUSE_SECONDS = 0.1

Say = Callable[[str, str], None]  # level, message


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
    def mark(self) -> Path:
        return self.root / "whole"


@dataclass(frozen=True)
class Made:
    """An environment that is whole."""

    workspace: Workspace
    manifest: Manifest
    requirements: str


def workspace_of(settings: Settings, revision_id: UUID) -> Workspace:
    return Workspace(settings.data_dir / "revisions" / str(revision_id))


@contextmanager
def exclusive(workspace: Workspace) -> Iterator[None]:
    """Hold the workspace against other processes of this machine."""
    workspace.root.parent.mkdir(parents=True, exist_ok=True)
    path = workspace.root.with_suffix(".lock")
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                gevent.sleep(LOCK_PAUSE_SECONDS)  # a blocking flock would stop every greenlet
        yield


def make(
    settings: Settings,
    revision_id: UUID,
    *,
    digest: str,
    config_path: str | None,
    requirements: str | None,
    say: Say,
    deadline_seconds: float,
) -> Made:
    """The revision's environment, made here unless it is whole already; raises BuildFailed.

    `requirements` None: they are resolved now, and are part of the answer.
    """
    workspace = workspace_of(settings, revision_id)
    with exclusive(workspace):
        if workspace.mark.exists():
            found = manifest.read(workspace.project, config_path)
            return Made(workspace, found, workspace.requirements.read_text())
        shutil.rmtree(workspace.root, ignore_errors=True)
        try:
            workspace.root.mkdir(parents=True, mode=0o700)
            workspace.home.mkdir()
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
            archive = self._workspace.root / "source.tar.gz"
            self._say("INFO", "fetching the source archive")
            _fetch(digest, archive)
            count = unpack.unpack(archive, self._workspace.project)
            archive.unlink()
            self._say("INFO", f"unpacked {count} files")
            found = manifest.read(self._workspace.project, config_path)
            for warning in found.warnings:
                self._say("WARNING", warning)
            self._say("INFO", f"creating an environment with Python {sys.version.split()[0]}")
            self._run(
                "environment", commands.create_environment(self._uv, self._workspace.env, sys.executable)
            )
            if requirements is None:
                self._resolve(found)
            else:
                self._workspace.requirements.write_text(requirements)
            # A first build is followed by an inspection, which leaves the bytecode of what is imported.
            self._install(found, compile_bytecode=requirements is not None)
            return Made(self._workspace, found, self._workspace.requirements.read_text())

    def _resolve(self, found: Manifest) -> None:
        self._say("INFO", "resolving requirements")
        wanted = self._workspace.root / "wanted.in"
        wanted.write_text("\n".join((*commands.BASE_REQUIREMENTS, *found.requirements)) + "\n")
        inputs = [wanted]
        for path in (*found.plain, *found.packages):
            for name in ("requirements.txt",) if path in found.plain else ("pyproject.toml", "setup.py"):
                file = self._workspace.project / path / name
                if file.is_file():
                    inputs.append(file)
                    break
        python = str(self._workspace.python)
        argv = commands.resolve(self._uv, inputs, self._workspace.requirements, python, found.index)
        self._run("requirements", argv)

    def _install(self, found: Manifest, *, compile_bytecode: bool) -> None:
        names = self._workspace.requirements.read_text().split("\n")
        self._say("INFO", f"installing {sum('==' in name or '@' in name for name in names)} packages")
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
        for path in found.packages:
            directory = self._workspace.project / path
            self._say("INFO", f"installing the package in {str(path)!r}")
            self._run("install", commands.install_package(self._uv, directory, python, found.index))

    def _run(self, step: str, argv: list[str]) -> None:
        """Run one command in the sandbox, its output to the log; raises BuildFailed."""
        cache = self._settings.cache_dir / "uv"
        cache.mkdir(parents=True, exist_ok=True)
        env = {
            **self._settings.passed_on,
            "HOME": str(self._workspace.home),
            "UV_CACHE_DIR": str(cache),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",  # packages come from where the operator or pip_config_file says
            "UV_NO_PROGRESS": "1",
        }
        if "PIP_INDEX_URL" in env and "UV_DEFAULT_INDEX" not in env:
            env.setdefault("UV_INDEX_URL", env["PIP_INDEX_URL"])
        confined = sandbox.wrap(
            argv,
            isolation=self._settings.isolation,
            readonly=[Path(self._uv), Path(sys.prefix)],
            writable=[self._workspace.root, cache],
            cwd=self._workspace.root,
        )
        code, last = _execute(confined, self._workspace.root, env, self._say)
        if code != 0:
            raise BuildFailed(step, "\n".join(last) or f"{argv[0]} ended with code {code}")


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


def _execute(argv: list[str], cwd: Path, env: Mapping[str, str], say: Say) -> tuple[int, deque[str]]:
    """Run to the end, a line of output at a time; the exit code and the last lines."""
    process = gevent.subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=sandbox.confine,
    )
    last: deque[str] = deque(maxlen=LAST_LINES)
    assert process.stdout is not None
    try:
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            last.append(line)
            say("INFO", line)
        return process.wait(), last
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# --- graph hosts ---------------------------------------------------------------------------------


def host_command(
    settings: Settings, made: Made, variables: Mapping[str, str], *, inspect: bool = False
) -> HostCommand:
    """How to start a graph host of an environment, with the deployment's own variables."""
    workspace = made.workspace
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
            variables = deployments.secrets_of(conn, revision_id)
        output = deploy_log.of(row.deployment_id, revision_id, variables.values())
        try:
            made = make(
                settings,
                revision_id,
                digest=row.archive_digest,
                config_path=row.source_revision_config.get("langgraph_config_path"),
                requirements=row.requirements,
                say=lambda level, message: output(level, message, None),
                deadline_seconds=settings.build_timeout_seconds,
            )
        except BuildFailed as error:
            raise HostUnusable(f"the environment cannot be made here: {error.message}") from error
        return host_command(settings, made, variables), output

    return prepare


REVISION = text(
    "SELECT deployment_id, archive_digest, source_revision_config, requirements FROM revision WHERE id = :id"
)


def remove_unknown(settings: Settings) -> int:
    """Remove the environments of revisions that are no more; how many."""
    folder = settings.data_dir / "revisions"
    if not folder.is_dir():
        return 0
    here = {path.stem: path for path in folder.iterdir() if path.is_dir()}
    with connection() as conn:
        known = conn.execute(text("SELECT id FROM revision WHERE id = ANY(:ids)"), {"ids": _uuids(here)})
        alive = {str(id) for id in known.scalars()}
    gone = [path for name, path in here.items() if name not in alive]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
    return len(gone)


def _uuids(names: Mapping[str, Path]) -> list[UUID]:
    return [UUID(name) for name in names if len(name) == 36]
