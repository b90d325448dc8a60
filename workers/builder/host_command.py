"""The start of a revision's graph host: its command line, environment variables and sandbox."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
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
from workers.builder.python import toolchain
from workers.isolation import sandbox
from workers.runner.deployment_log import DeployLog
from workers.runner.host import HostCommand
from workers.runner.host_pool import PreparedHost

GRAPH_HOST = Path(workers.graph_host.__file__).parent
COMPILE_SECONDS = 60

_OF_HOST = statement("builds.of_host")


def host_command(
    settings: Settings, environment: Environment, variables: Mapping[str, str], *, inspect: bool = False
) -> HostCommand:
    """Return the command that starts a graph host of an environment with the deployment's variables."""
    workspace = environment.workspace
    sandbox.give(workspace.root)  # the environment may have been created at another isolation level
    cwd = workspace.project / environment.manifest.directory
    interpreter = toolchain.find_interpreter(settings, environment.python_version)
    keep_bytecode(interpreter.path, GRAPH_HOST)
    config = {
        "graphs": environment.manifest.graphs,
        "paths": [str(workspace.project / path) for path in environment.manifest.import_paths],
        "inspect": inspect,
        "store": environment.manifest.store,
        "auth": {"path": environment.manifest.auth["path"]} if environment.manifest.auth else None,
        "http": environment.manifest.http or None,
        "secrets": list(variables),
        **environment.manifest.checkpointer.get("serde", {}),
    }
    env = {
        **toolchain.without_variables(settings.passed_on),
        **environment.manifest.env,
        **variables,
        "HOME": str(workspace.home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VIRTUAL_ENV": str(workspace.env),
        "MALLOC_ARENA_MAX": "2",  # one arena per thread would waste memory and look like a leak
        "GRAPH_HOST_CONFIG": orjson.dumps(config).decode(),
    }
    programs = [str(folder / "bin") for folder in environment.folders]
    env["PATH"] = os.pathsep.join((*programs, env.get("PATH", os.defpath)))
    argv = sandbox.wrap(
        graph_host_command(workspace.python, GRAPH_HOST, threads=settings.host_threads),
        settings,
        readonly=[interpreter.prefix, workspace.project, GRAPH_HOST, *environment.folders],
        writable=[workspace.home],
        cwd=cwd,
        memory_bytes=settings.host_memory_mb * MIB,
    )
    return HostCommand(argv, str(cwd), env, home=workspace.home)


def graph_host_command(env_python: Path, package: Path, *, threads: int) -> list[str]:
    """Return a graph host's command. The runner replaces `{socket}` with the descriptor of the inherited socket."""
    return [str(env_python), str(package), "--socket", "{socket}", "--threads", str(threads)]


@functools.cache
def keep_bytecode(python: Path, package: Path) -> None:
    """Compile the graph host's package for an interpreter. Does nothing if the package's folder is not writable.

    A host cannot write bytecode itself. Without it, each host would compile the package again.
    """
    if not os.access(package, os.W_OK):
        return
    compiling = toolchain.compile_bytecode(python, [package])
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
            ),
            write_line=lambda level, message: None,  # the build log already has these lines
            deadline_seconds=settings.build_timeout_seconds,
        )
    except BuildFailed as error:
        hold.close()
        raise HostUnusable(f"the environment cannot be made here: {error.message}") from error
    command = dataclasses.replace(host_command(settings, environment, variables), hold=hold)
    with connection() as conn:  # read last: making the environment may have taken minutes
        return PreparedHost(command, output, limits.of_hosts(conn, [revision_id])[revision_id])
