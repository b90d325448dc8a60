"""Bundles of the components of generative UI, made in a step of the build.

The page that shows a component runs the bundle of its set as a script. For a Python project, the step also installs the
packages of the components; graph hosts do not need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import gevent
import orjson

from shared.deployments.components import Bundle, global_name
from shared.errors import BuildFailed
from shared.settings import MIB, Settings
from workers.builder import steps
from workers.builder.config.manifest import Components
from workers.builder.environments import Environment
from workers.builder.node import runtime as node_runtime
from workers.builder.node.installer import NodeInstaller
from workers.builder.node.resolved import NO_COMMANDS
from workers.builder.node.runtime import Runtime
from workers.builder.python import packages
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import read_untrusted
from workers.isolation import sandbox

BUNDLER = Path(__file__).with_suffix(".mjs")
STEP = "ui"
RESULT = "components.json"
SECONDS = 120
MEMORY_MB = 1024
MAX_RESULT_BYTES = 16 * MIB


def bundle(
    settings: Settings,
    deployment_id: UUID,
    environment: Environment,
    variables: Mapping[str, str],
    write_line: WriteLine,
) -> list[Bundle]:
    """Return the bundles of the project's components. Raises BuildFailed. `variables` are those of the deployment."""
    components = environment.manifest.components
    if components is None:
        return []
    seconds = settings.build_timeout_seconds
    with gevent.Timeout(seconds, BuildFailed("time", f"the build took more than {seconds:.0f} s")):
        runtime = environment.node or _install(
            settings, deployment_id, environment, components, variables, write_line
        )
        write_line("INFO", f"bundling the components of {', '.join(components.sets)}")
        return _bundled(settings, environment, components, runtime)


def _install(
    settings: Settings,
    deployment_id: UUID,
    environment: Environment,
    components: Components,
    variables: Mapping[str, str],
    write_line: WriteLine,
) -> Runtime:
    """Install the packages of a Python project's components into its folder. Returns the Node for them."""
    workspace, project = environment.workspace, components.node
    runtime = node_runtime.ensure(settings, project.major, write_line)
    step_sandbox = StepSandbox(
        settings, folder=workspace.root, cache=packages.cache_of(settings, deployment_id)
    )
    root = workspace.project / project.root
    installer = NodeInstaller(step_sandbox, workspace, runtime, project, root, variables, write_line)
    installer.install(installer.resolved(NO_COMMANDS))
    return runtime


def _bundled(
    settings: Settings, environment: Environment, components: Components, runtime: Runtime
) -> list[Bundle]:
    workspace = environment.workspace
    result = workspace.home / RESULT
    cwd = workspace.project / environment.manifest.directory
    options = {
        "tools": str(runtime.tools_folder),
        "sets": {
            name: {"entry": str(workspace.project / path), "global": global_name(name)}
            for name, path in components.sets.items()
        },
        "shared": components.shared,
        "result": str(result),
    }
    argv = sandbox.wrap(
        [str(runtime.program), f"--max-old-space-size={MEMORY_MB}", str(BUNDLER), orjson.dumps(options).decode()],
        settings,
        readonly=[*environment.folders, *runtime.folders, workspace.project, BUNDLER],
        writable=[workspace.home],
        cwd=cwd,
        memory_bytes=2 * MEMORY_MB * MIB,
    )  # fmt: skip
    result.unlink(missing_ok=True)
    try:
        with gevent.Timeout(SECONDS, BuildFailed(STEP, f"the bundling took more than {SECONDS} s")):
            reason = steps.execute(
                argv, workspace.home, {"HOME": str(workspace.home)}, lambda level, message: None, cwd=cwd
            )
        if reason is not None:
            raise BuildFailed(STEP, reason.replace(f"{workspace.project}/", ""))
        return _read(result, components)
    finally:
        result.unlink(missing_ok=True)


def _read(result: Path, components: Components) -> list[Bundle]:
    """Return the bundles that the step has written. Plugins of the project may have written others."""
    try:
        content = read_untrusted(result, MAX_RESULT_BYTES + 1)
        if len(content) > MAX_RESULT_BYTES:
            raise BuildFailed(STEP, f"the bundles are larger than {MAX_RESULT_BYTES // MIB} MiB")
        files = orjson.loads(content)
        return [
            Bundle(name, kind, files[name][kind].encode())
            for name in components.sets
            for kind in Bundle.KINDS
            if kind in files[name]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildFailed(STEP, "the bundles cannot be read") from error
