"""A revision's environment on this machine: its project and its packages.

An environment is created from the archive and the resolved requirements. These are the same on every machine, so any
builder or runner can create it, and uses a complete one as it is. A file lock prevents two processes from creating the
same environment at the same time. The marker file is written last. An environment without it is left over from a
process that died, and is removed.

The versions that an earlier revision resolved from the same inputs are reused for one day at most.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import gevent
from sqlalchemy import Connection

from shared.deployments import sources
from shared.deployments.revisions import ClaimedRevision
from shared.errors import BuildFailed, NotFound
from shared.infra.postgres import connection
from shared.settings import Settings
from shared.sql import statement
from workers.builder import steps, workspaces
from workers.builder.config import manifest
from workers.builder.config.fields import refused
from workers.builder.config.javascript import NodeProject
from workers.builder.config.manifest import Manifest
from workers.builder.node import modules, shared_sets
from workers.builder.node import resolved as node_resolved
from workers.builder.node import runtime as node_runtime
from workers.builder.node.installer import NodeInstaller
from workers.builder.node.resolved import NO_COMMANDS, Commands, Resolved
from workers.builder.node.runtime import Runtime
from workers.builder.python import installer, packages, toolchain
from workers.builder.python.installer import Inputs, Installer
from workers.builder.python.packages import Packages
from workers.builder.python.requirements import Requirements, from_lock
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace, read_untrusted, write_untrusted
from workers.isolation import disk, sandbox

FRESH = timedelta(days=1)  # a later deployment resolves again and gets newer releases
MAX_REQUIREMENTS_BYTES = 8 * 1024 * 1024  # a lock file of 4 MiB as a JSON string may be twice as large
REUSED = "the requirements are those of the last revision, and so are their versions"

# Returns the requirements that an earlier build resolved from inputs with this digest, if they are to be reused.
FindRequirements = Callable[[str], str | None]
_SAME_SOURCE = statement("builds.same_source")
_COMMANDS = statement("builds.commands")
_SAME_INPUTS = statement("builds.same_inputs")


@dataclass(frozen=True)
class Environment:
    """A complete environment."""

    workspace: Workspace
    manifest: Manifest
    requirements: Requirements | Resolved  # as text, what the revision stores
    packages: Path | None  # the environment with shared wheels, or the folder of a shared set of npm
    python_version: str | None  # None: of a JavaScript project
    inputs: str = ""  # digest of the resolver's inputs
    node: Runtime | None = None  # of a JavaScript project

    @property
    def folders(self) -> list[Path]:
        """The folders that the environment's processes read, besides the project."""
        shared = [] if self.packages is None else [self.packages]
        if self.node is None:
            return [self.workspace.env, *shared]
        own = [self.workspace.env] if modules.are_prepared(self.workspace) else []
        return [*self.node.folders, *own, *shared]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The inputs from which an environment is created."""

    deployment_id: UUID
    digest: str  # of the source archive
    config_path: str | None
    requirements: str | None = None  # None: resolve them
    python_version: str | None = None  # None: the version that the project configures
    commands: Commands = NO_COMMANDS  # of the deployment, for a set that is yet to be resolved
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the deployment


def make(
    settings: Settings,
    build_id: UUID,
    plan: Plan,
    *,
    write_line: WriteLine,
    find_requirements: FindRequirements = lambda inputs: None,
    deadline_seconds: float,
) -> Environment:
    """Return a revision's environment. Creates it on this machine unless it is complete. Raises BuildFailed."""
    workspace = workspaces.workspace_of(settings, build_id)
    maker = _Maker(settings, workspace, plan, write_line)
    timeout = BuildFailed("time", f"the build took more than {deadline_seconds:.0f} s")
    with workspaces.exclusive(workspace), gevent.Timeout(deadline_seconds, timeout):
        try:
            environment = maker.find() or maker.make(find_requirements)
            workspace.require_folders()
            return environment
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
        cache = packages.cache_of(settings, plan.deployment_id)
        self._sandbox = StepSandbox(settings, folder=workspace.root, cache=cache)

    def find(self) -> Environment | None:
        """Return the environment if it is complete and refers to the current folder of shared packages.

        Another environment is created anew and not repaired. A build step may have placed links in it, so the builder
        must not write below it.
        """
        if not self._workspace.ready_marker.exists():
            return None
        manifest = self._manifest(lambda level, message: None)
        text = self._plan.requirements or _read(self._workspace.requirements)
        if manifest.node is not None:
            return self._find_node(manifest, manifest.node, Resolved.parse(text))
        environment = self._with_packages(self._inputs(manifest), Requirements.parse(text))
        return environment if _is_linked(environment) else None

    def _find_node(self, manifest: Manifest, project: NodeProject, resolved: Resolved) -> Environment | None:
        runtime = self._runtime(resolved.node_major)
        packages = None
        if shared_sets.is_linked(self._settings, self._workspace, project):
            packages = self._shared_packages(project, resolved, runtime)
            if packages is None or not shared_sets.links_to(self._workspace, project, packages):
                return None
        inputs = self._node_inputs(project, runtime)
        return Environment(self._workspace, manifest, resolved, packages, None, inputs, runtime)

    def _shared_packages(self, project: NodeProject, resolved: Resolved, runtime: Runtime) -> Path | None:
        """Return the folder of a project's shared set after ensuring that it is installed; None if it has none."""
        shared = shared_sets.of_project(self._workspace.project, project, resolved, runtime)
        if shared is None:
            return None
        folder = shared_sets.ensure(self._settings, shared, runtime, self._write_line)
        self._note_use([*runtime.folders, folder])
        return folder

    def make(self, find_requirements: FindRequirements) -> Environment:
        """Create the environment in an empty folder."""
        disk.remove(self._workspace.root)
        self._workspace.root.mkdir(parents=True, mode=0o700)
        self._workspace.home.mkdir()
        sandbox.give(self._workspace.root)
        self._unpack()
        manifest = self._manifest(self._write_line)
        if manifest.node is not None:
            environment = self._make_node(manifest, manifest.node, find_requirements)
        else:
            environment = self._make_python(manifest, find_requirements)
        write_untrusted(self._workspace.ready_marker, "")
        return environment

    def _make_python(self, manifest: Manifest, find_requirements: FindRequirements) -> Environment:
        for name, command in asdict(self._plan.commands).items():
            if command is not None:
                raise refused(f"{name}_command: only for JavaScript projects")
        inputs = self._inputs(manifest)
        uv = Installer(self._sandbox, inputs.interpreter)
        requirements = self._requirements(uv, inputs, find_requirements)
        environment = self._with_packages(inputs, requirements)
        self._create(uv, environment)
        self._install(uv, environment, requirements)
        folders = [self._workspace.env, self._workspace.project]
        compiling = toolchain.compile_bytecode(inputs.interpreter.path, folders)
        self._sandbox.attempt(compiling, readonly=[inputs.interpreter.prefix])
        return environment

    def _make_node(
        self, manifest: Manifest, project: NodeProject, find_requirements: FindRequirements
    ) -> Environment:
        stored = None if self._plan.requirements is None else Resolved.parse(self._plan.requirements)
        runtime = self._runtime(project.major if stored is None else stored.node_major)
        self._write_line("INFO", f"the project runs on Node {runtime.version}")
        npm = NodeInstaller(
            self._sandbox,
            self._workspace,
            runtime,
            project,
            self._workspace.project / manifest.directory,
            self._plan.variables,
            self._write_line,
        )
        inputs = self._node_inputs(project, runtime)
        if stored is None and project.lock is None:
            earlier = find_requirements(inputs)
            if earlier is not None:
                self._write_line("INFO", REUSED)
                stored = Resolved.parse(earlier)
        resolved = stored or npm.resolved(self._plan.commands)
        packages = self._shared_packages(project, resolved, runtime)
        if packages is None:
            npm.install(resolved)
        else:
            shared_sets.link(self._workspace, project, packages)
        readonly = [*runtime.folders, *([] if packages is None else [packages])]
        modules.prepare(
            self._sandbox, self._workspace, runtime, manifest, self._write_line, readonly=readonly
        )
        write_untrusted(self._workspace.requirements, str(resolved))
        return Environment(self._workspace, manifest, resolved, packages, None, inputs, runtime)

    def _runtime(self, major: int) -> Runtime:
        """Return Node of a major version, installed on this machine, and record that this workspace uses it."""
        runtime = node_runtime.ensure(self._settings, major, self._write_line)
        self._note_use(runtime.folders)
        return runtime

    def _note_use(self, folders: Iterable[Path]) -> None:
        """Record which shared folders the workspace uses. Upkeep leaves these."""
        write_untrusted(self._workspace.packages, "".join(f"{path.name}\n" for path in folders))

    def _node_inputs(self, project: NodeProject, runtime: Runtime) -> str:
        return node_resolved.inputs_digest(
            self._workspace.project, project, self._plan.commands, runtime.version, self._plan.digest
        )

    def _unpack(self) -> None:
        archive = self._workspace.root / "source.tar.gz"
        self._write_line("INFO", "fetching the source archive")
        _fetch(self._plan.digest, archive)
        argv = unpack_command(archive, self._workspace.project)
        self._sandbox.run("unpack", argv, self._write_line, variables={"PYTHONPATH": steps.module_path()})
        archive.unlink()

    def _manifest(self, write_line: WriteLine) -> Manifest:
        """Read the unpacked project's configuration, and write what is remarkable in it."""
        configured = manifest.read(self._workspace.project, self._plan.config_path)
        for note in configured.notes:
            write_line("INFO", note)
        for warning in configured.warnings:
            write_line("WARNING", warning)
        return configured

    def _inputs(self, configured: Manifest) -> Inputs:
        version = self._plan.python_version or configured.python_version
        interpreter = toolchain.find_interpreter(self._settings, version)
        return installer.inputs_of(self._workspace.project, configured, interpreter, self._plan.digest)

    def _requirements(
        self, uv: Installer, inputs: Inputs, find_requirements: FindRequirements
    ) -> Requirements:
        if self._plan.requirements is not None:
            return Requirements.parse(self._plan.requirements)
        earlier = find_requirements(inputs.digest)
        if earlier is not None:
            self._write_line("INFO", REUSED)
            return Requirements.parse(earlier)
        self._write_line("INFO", "resolving requirements")
        lock = installer.resolve(uv, self._workspace, inputs, self._write_line)
        return from_lock(
            _read(lock),
            self._workspace.project,
            [self._workspace.project / path for path in inputs.manifest.packages],
            is_from_operator_index=inputs.is_from_operator_index,
        )

    def _with_packages(self, inputs: Inputs, requirements: Requirements) -> Environment:
        """Return the environment after ensuring that its shared packages are installed."""
        interpreter = inputs.interpreter
        name = self._packages.name(requirements, interpreter)
        if name:
            self._packages.ensure(name, requirements, interpreter, self._write_line)
        packages = self._packages.environment(name) if name else None
        return Environment(
            self._workspace, inputs.manifest, requirements, packages, interpreter.version, inputs.digest
        )

    def _create(self, uv: Installer, environment: Environment) -> None:
        """Create the virtual environment, and link the shared packages into it."""
        env = self._workspace.env
        self._write_line("INFO", f"creating an environment with Python {environment.python_version}")
        # Remove whatever build steps may have put in its place before writing below it.
        disk.remove(env)
        uv.create_environment(env, self._write_line)
        if environment.packages is not None:
            write_untrusted(*_link(environment, environment.packages))
            write_untrusted(self._workspace.packages, environment.packages.parent.name)
        write_untrusted(self._workspace.requirements, str(environment.requirements))

    def _install(self, uv: Installer, environment: Environment, requirements: Requirements) -> None:
        """Install the requirements that may run their own code, and the project's own packages."""
        local = environment.manifest.packages
        if not requirements.built and not local:
            return
        if requirements.built:
            self._write_line(
                "INFO", f"installing {len(requirements.built)} packages of this deployment's own"
            )
        if local:
            self._write_line("INFO", f"installing the project's own: {', '.join(map(str, local))}")
        listed = self._workspace.root / "built.txt"
        write_untrusted(listed, "".join(f"{line}\n" for line in requirements.built))
        uv.install_built(
            listed if requirements.built else None,
            [self._workspace.project / path for path in local],
            self._workspace.env,
            environment.manifest.index and environment.manifest.index.within(self._workspace.project),
            self._write_line,
            project=self._workspace.project,
            readonly=[] if environment.packages is None else [environment.packages],
        )


def _link(environment: Environment, packages: Path) -> tuple[Path, str]:
    """Return the path and content of the file that makes the shared packages importable in an environment."""
    site = f"lib/python{environment.python_version}/site-packages"
    # `addsitedir` also processes `.pth` files of the packages
    line = f"import site; site.addsitedir({str(packages / site)!r})\n"
    return environment.workspace.env / site / "_packages.pth", line


def _is_linked(environment: Environment) -> bool:
    if environment.packages is None:
        return True
    path, line = _link(environment, environment.packages)
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


def unpack_command(archive: Path, target: Path) -> list[str]:
    """Return the command that unpacks the source archive into a new directory."""
    return [sys.executable, "-P", "-X", "utf8", "-m", "workers.builder.unpack", str(archive), str(target)]


def _fetch(digest: str, path: Path) -> None:
    content = hashlib.sha256()
    try:
        with connection() as conn, path.open("wb") as file:
            for chunk in sources.archive_chunks(conn, digest):
                content.update(chunk)
                file.write(chunk)
    except NotFound as error:
        raise BuildFailed("fetch", error.message, status="CREATE_FAILED") from error
    if content.hexdigest() != digest:
        raise BuildFailed("fetch", "the source archive is damaged", status="CREATE_FAILED")


@dataclass(frozen=True)
class ReusableBuild:
    """The build of an earlier, deployed revision."""

    build_id: UUID
    requirements: str
    python_version: str | None
    resolved_at: str


def same_source(conn: Connection, claimed: ClaimedRevision, commands: Commands) -> ReusableBuild | None:
    """Return the newest fresh build of the same archive with the same configuration file and commands; None if there is none."""
    rows = _SAME_SOURCE.rows(
        conn,
        deployment_id=claimed.deployment_id,
        digest=claimed.archive_digest,
        config_path=claimed.config.get("langgraph_config_path"),
    )
    return _newest_fresh(row for row in rows if node_resolved.commands_of(row["requirements"]) == commands)


def commands_of(conn: Connection, deployment_id: UUID) -> Commands:
    """Return the commands that the deployment's `source_config` names for the builds of JavaScript projects."""
    row = _COMMANDS.row(conn, id=deployment_id)
    return NO_COMMANDS if row is None else Commands(**row)


def same_inputs(conn: Connection, claimed: ClaimedRevision, inputs: str) -> ReusableBuild | None:
    """Return the newest fresh build that resolved the same inputs; None if there is none."""
    return _newest_fresh(_SAME_INPUTS.rows(conn, deployment_id=claimed.deployment_id, inputs=inputs))


def _newest_fresh(rows: Iterable[dict[str, Any]]) -> ReusableBuild | None:
    return next((ReusableBuild(**row) for row in rows if _is_fresh(row["resolved_at"])), None)


def _is_fresh(resolved_at: str) -> bool:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(resolved_at) < FRESH
    except (TypeError, ValueError):  # the row has no `resolved_at`, or not a valid one
        return False
