"""The start of a revision's graph host: its command line, environment variables and sandbox."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import orjson

import workers.graph_host
from shared.deployments import limits, secrets
from shared.deployments.next_revision import REPOSITORY
from shared.errors import BuildFailed, HostUnusable
from shared.infra.postgres import connection
from shared.settings import MIB, Settings
from shared.sql import statement
from workers.builder import environments, sources, workspaces
from workers.builder.environments import Environment
from workers.builder.node import modules
from workers.builder.node.runtime import Runtime, network_variables
from workers.builder.python import toolchain
from workers.builder.python.toolchain import Interpreter
from workers.isolation import sandbox
from workers.runner.deployment_log import DeployLog
from workers.runner.host import HostCommand
from workers.runner.host_pool import PreparedHost

GRAPH_HOST = Path(workers.graph_host.__file__).parent
NODE_HOST = Path(workers.__file__).parent / "node_host"
NODE_HEAP = 0.6  # part of a host's memory for JavaScript objects; V8 collects garbage late without a limit
NODE_YOUNG_MB = 16  # 8 costs 6 % more CPU per run for 9 MB less
NODE_VARIABLES = re.compile(r"NODE_OPTIONS|NODE_PATH|npm_.*|NPM_CONFIG_.*")
COMPILE_SECONDS = 60

_OF_HOST = statement("builds.of_host")


def host_command(
    settings: Settings,
    environment: Environment,
    variables: Mapping[str, str],
    *,
    inspect: bool = False,
    memory_mb: int | None = None,
) -> HostCommand:
    """Return the command that starts a graph host of an environment with the deployment's variables.

    `memory_mb` is the host's limit, if it is lower than that of all hosts.
    """
    workspace, manifest = environment.workspace, environment.manifest
    sandbox.give(workspace.root)  # the environment may have been created at another isolation level
    cwd = workspace.project / manifest.directory
    config = {
        **modules.entries(manifest),
        "paths": [str(workspace.project / path) for path in manifest.import_paths],
        "inspect": inspect,
        "secrets": list(variables),
        **manifest.checkpointer.get("serde", {}),
    }
    if settings.dev_debug_port and not inspect:
        config["debug"] = {"port": settings.dev_debug_port, "waits": settings.dev_debug_waits}
    env = {**toolchain.without_variables(settings.passed_on), **manifest.env, **variables}
    if environment.node is not None:
        program = _node_program(settings, environment, environment.node, env, memory_mb)
    else:
        program = _python_program(settings, environment, env)
    env = {**program.env, "HOME": str(workspace.home), "GRAPH_HOST_CONFIG": orjson.dumps(config).decode()}
    argv = sandbox.wrap(
        program.argv,
        settings,
        readonly=[*program.readonly, workspace.project, *environment.folders],
        writable=[workspace.home],
        cwd=cwd,
        memory_bytes=settings.host_memory_mb * MIB,
    )
    return HostCommand(argv, str(cwd), env, home=workspace.home, heap_mb=program.heap_mb)


class _Program(NamedTuple):
    """A graph host's program: its command, environment variables, and folders to read besides the environment's."""

    argv: list[str]
    env: dict[str, str]
    readonly: list[Path]
    heap_mb: int | None = None  # limit of a JavaScript program's heap


def _python_program(settings: Settings, environment: Environment, env: Mapping[str, str]) -> _Program:
    workspace = environment.workspace
    interpreter = toolchain.find_interpreter(settings, environment.python_version)
    keep_bytecode(interpreter, GRAPH_HOST)
    programs = [str(folder / "bin") for folder in environment.folders]
    return _Program(
        graph_host_command(workspace.python, GRAPH_HOST, threads=settings.host_threads),
        {
            **env,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "VIRTUAL_ENV": str(workspace.env),
            "MALLOC_ARENA_MAX": "2",  # one arena per thread would waste memory and look like a leak
            "PATH": os.pathsep.join((*programs, env.get("PATH", os.defpath))),
        },
        [interpreter.prefix, GRAPH_HOST],
    )


def graph_host_command(env_python: Path, package: Path, *, threads: int) -> list[str]:
    """Return a graph host's command. The runner replaces `{socket}` with the descriptor of the inherited socket."""
    return [str(env_python), str(package), "--socket", "{socket}", "--threads", str(threads)]


def _node_program(
    settings: Settings, environment: Environment, node: Runtime, env: Mapping[str, str], memory_mb: int | None
) -> _Program:
    heap_mb = int((memory_mb or settings.host_memory_mb) * NODE_HEAP)
    argv = [
        str(node.program), f"--max-old-space-size={heap_mb}", f"--max-semi-space-size={NODE_YOUNG_MB}",
        *modules.loader_options(environment.workspace, node), str(NODE_HOST / "main.mjs"), "--socket", "{socket}",
    ]  # fmt: skip
    dropped = dropped_variables(env)
    return _Program(
        argv,
        {
            **network_variables(settings.passed_on),
            **{name: value for name, value in env.items() if name not in dropped},
            "PATH": os.pathsep.join((str(node.prefix / "bin"), env.get("PATH", os.defpath))),
        },
        [NODE_HOST, modules.PROGRAMS],
        heap_mb,
    )


def dropped_variables(names: Iterable[str]) -> list[str]:
    """Return the names of variables that would change how Node or npm work, which a JavaScript host does not get."""
    return [name for name in names if NODE_VARIABLES.fullmatch(name)]


@functools.cache
def keep_bytecode(interpreter: Interpreter, package: Path) -> None:
    """Compile the graph host's package for an interpreter, unless it is. Does nothing if its folder is not writable.

    A host cannot write bytecode itself. Without it, each host would compile the package again.
    """
    if not os.access(package, os.W_OK) or toolchain.is_compiled(interpreter.version, package):
        return
    compiling = toolchain.compile_bytecode(interpreter.path, [package])
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            compiling,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=functools.partial(sandbox.confine, runs_as_service=True),
            timeout=COMPILE_SECONDS,
            check=False,
        )


def prepare_host(settings: Settings, deploy_log: DeployLog, revision_id: UUID) -> PreparedHost:
    """Ensure that a revision's environment is on this machine, and return what its host is started with.

    Raises HostUnusable.
    """
    with connection() as conn:
        row = _OF_HOST.row(conn, id=revision_id)
        if row is None or row["archive_digest"] is None:
            raise HostUnusable("the revision is gone")
        variables = secrets.secrets_of(conn, revision_id)
    output = deploy_log.of(row["deployment_id"], revision_id, variables.values())
    if row["source"] == REPOSITORY:
        variables = sources.without_credentials(variables)
    hold = workspaces.lock_shared(workspaces.workspace_of(settings, row["build_id"]))
    try:
        environment = environments.make(
            settings,
            row["build_id"],
            environments.Plan(
                deployment_id=row["deployment_id"],
                digest=row["archive_digest"],
                config_path=row["config_path"],
                requirements=row["requirements"],
                python_version=row["python_version"],
                variables=variables,
            ),
            write_line=lambda level, message: None,  # the build log already has these lines
            deadline_seconds=settings.build_timeout_seconds,
        )
    except BuildFailed as error:
        hold.close()
        raise HostUnusable(f"the environment cannot be made here: {error.message}") from error
    with connection() as conn:  # read last: making the environment may have taken minutes
        bounds = limits.of_hosts(conn, [revision_id])[revision_id]
    memory_mb = min(bounds.memory_mb or settings.host_memory_mb, settings.host_memory_mb)
    command = host_command(settings, environment, variables, memory_mb=memory_mb)
    return PreparedHost(dataclasses.replace(command, hold=hold), output, bounds)
