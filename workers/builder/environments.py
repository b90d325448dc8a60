"""A revision's environment on this machine: its project and its packages.

An environment is created from the archive and the resolved requirements. These are the same on every machine, so any
builder or runner can create it, and uses a complete one as it is. A file lock prevents two processes from creating the
same environment at the same time. A mark file shows that the environment is complete. Without the mark it is left over
from a process that died, and is removed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import gevent

from shared.deployments import archives
from shared.errors import BuildFailed, NotFound
from shared.infra.postgres import connection
from shared.settings import Settings
from workers.builder import caches, commands, interpreters, resolving, steps, workspaces
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest
from workers.builder.installer import Installer
from workers.builder.interpreters import Interpreter
from workers.builder.packages import Packages
from workers.builder.requirements import Requirements, from_lock
from workers.builder.source_tree import read_untrusted, write_untrusted
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace
from workers.isolation import disk, sandbox

MAX_REQUIREMENTS_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Environment:
    """A complete environment."""

    workspace: Workspace
    manifest: Manifest
    requirements: Requirements
    packages: Path | None  # the environment with the shared wheels
    python_version: str
    inputs: str = ""  # digest of the resolver's inputs

    @property
    def folders(self) -> list[Path]:
        """The folders that the environment's processes read, besides the project."""
        return [self.workspace.env, *([] if self.packages is None else [self.packages])]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The inputs from which an environment is created."""

    deployment_id: UUID
    digest: str  # of the source archive
    config_path: str | None
    requirements: str | None = None  # None: resolve them
    python_version: str | None = None  # None: the version that the project configures


# Returns the requirements that an earlier build resolved from inputs with this digest, if they are to be reused.
Settled = Callable[[str], str | None]


def make(
    settings: Settings,
    build_id: UUID,
    plan: Plan,
    *,
    write_line: WriteLine,
    settled: Settled = lambda inputs: None,
    deadline_seconds: float,
) -> Environment:
    """Return a revision's environment. Creates it on this machine unless it is complete. Raises BuildFailed."""
    workspace = workspaces.workspace_of(settings, build_id)
    maker = _Maker(settings, workspace, plan, write_line)
    timeout = BuildFailed("time", f"the build took more than {deadline_seconds:.0f} s")
    with workspaces.exclusive(workspace), gevent.Timeout(deadline_seconds, timeout):
        try:
            return maker.find() or maker.make(settled)
        except OSError as error:
            disk.remove(workspace.root)
            raise BuildFailed("files", f"cannot write the environment: {error.strerror}") from error
        except BaseException:
            disk.remove(workspace.root)
            raise


class _Maker:
    """The steps that create one environment."""

    def __init__(self, settings: Settings, workspace: Workspace, plan: Plan, write_line: WriteLine) -> None:
        self._settings = settings
        self._workspace = workspace
        self._plan = plan
        self._write_line = write_line
        self._packages = Packages(settings)
        cache = caches.of_deployment(settings, plan.deployment_id)
        self._sandbox = StepSandbox(settings, folder=workspace.root, cache=cache)

    def find(self) -> Environment | None:
        """Return the environment if it is complete and refers to the current folder of shared packages.

        Another environment is created anew and not repaired. A build step may have placed links in it, so the builder
        must not write below it.
        """
        if not self._workspace.mark.exists():
            return None
        found = manifest.read(self._workspace.project, self._plan.config_path)
        interpreter = self._interpreter(found)
        inputs = resolving.inputs_of(self._workspace.project, found, interpreter, self._plan.digest)
        requirements = Requirements.parse(self._plan.requirements or _read(self._workspace.requirements))
        made = self._made(found, requirements, interpreter, inputs.digest)
        return made if _is_linked(made) else None

    def make(self, settled: Settled) -> Environment:
        disk.remove(self._workspace.root)
        self._workspace.root.mkdir(parents=True, mode=0o700)
        self._workspace.home.mkdir()
        sandbox.give(self._workspace.root)
        self._unpack()
        found = manifest.read(self._workspace.project, self._plan.config_path)
        for note in found.notes:
            self._write_line("INFO", note)
        for warning in found.warnings:
            self._write_line("WARNING", warning)
        interpreter = self._interpreter(found)
        inputs = resolving.inputs_of(self._workspace.project, found, interpreter, self._plan.digest)
        installer = Installer(self._sandbox, interpreter)
        requirements = self._requirements(installer, inputs, settled)
        made = self._made(found, requirements, interpreter, inputs.digest)
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

    def _requirements(self, installer: Installer, inputs: resolving.Inputs, settled: Settled) -> Requirements:
        if self._plan.requirements is not None:
            return Requirements.parse(self._plan.requirements)
        kept = settled(inputs.digest)
        if kept is not None:
            self._write_line(
                "INFO", "the requirements are those of the last revision, and so are their versions"
            )
            return Requirements.parse(kept)
        self._write_line("INFO", "resolving requirements")
        lock = resolving.resolve(installer, self._workspace, inputs, self._write_line)
        own = [self._workspace.project / path for path in inputs.manifest.packages]
        return from_lock(_read(lock), self._workspace.project, own, is_ours=inputs.is_ours)

    def _made(
        self, found: Manifest, requirements: Requirements, interpreter: Interpreter, inputs: str
    ) -> Environment:
        """Return the environment after ensuring that its shared packages are installed."""
        name = self._packages.name(requirements, interpreter)
        if name:
            self._packages.ensure(name, requirements, interpreter, self._write_line)
        packages = self._packages.environment(name) if name else None
        return Environment(self._workspace, found, requirements, packages, interpreter.version, inputs)

    def _create(self, installer: Installer, made: Environment) -> None:
        """Create the virtual environment, and link the shared packages into it."""
        env = self._workspace.env
        self._write_line("INFO", f"creating an environment with Python {made.python_version}")
        # Remove whatever build steps may have put in its place before writing below it.
        disk.remove(env)
        installer.create_environment(env, self._write_line)
        if made.packages is not None:
            write_untrusted(*_link(made, made.packages))
            write_untrusted(self._workspace.packages, made.packages.parent.name)
        write_untrusted(self._workspace.requirements, str(made.requirements))

    def _install(self, installer: Installer, made: Environment) -> None:
        """Install the requirements that may run their own code, and the project's own packages."""
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
        write_untrusted(listed, "".join(f"{line}\n" for line in made.requirements.built))
        installer.install_built(
            listed if made.requirements.built else None,
            [self._workspace.project / path for path in own],
            self._workspace.env,
            made.manifest.index and made.manifest.index.within(self._workspace.project),
            self._write_line,
            project=self._workspace.project,
            readonly=[] if made.packages is None else [made.packages],
        )


def _link(made: Environment, packages: Path) -> tuple[Path, str]:
    """Return the path and content of the file that makes the shared packages importable in an environment."""
    site = f"lib/python{made.python_version}/site-packages"
    # `addsitedir` also processes `.pth` files of the packages
    line = f"import site; site.addsitedir({str(packages / site)!r})\n"
    return made.workspace.env / site / "_packages.pth", line


def _is_linked(made: Environment) -> bool:
    if made.packages is None:
        return True
    path, line = _link(made, made.packages)
    try:
        return read_untrusted(path, len(line.encode()) + 1) == line.encode()
    except OSError:
        return False


def _read(path: Path) -> str:
    """Read a list of requirements that a build step wrote. Raises BuildFailed."""
    try:
        return read_untrusted(path, MAX_REQUIREMENTS_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildFailed("requirements", "their list cannot be read") from error


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
