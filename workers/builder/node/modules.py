"""The prepared modules of a JavaScript revision, with which its graph hosts start faster and without tsx.

A step of the build compiles the project's scripts and follows their static imports. `workers/node_host/modules` holds
the program of that step and the loader of hosts. Where the step fails, hosts load TypeScript with tsx.

Each workspace has its own modules, which only steps of its own build have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

import workers
from shared.errors import BuildFailed
from workers.builder.config.manifest import Manifest
from workers.builder.node.runtime import Runtime
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace
from workers.isolation import disk

PROGRAMS = Path(workers.__file__).parent / "node_host" / "modules"
INDEX = "modules-1.json"  # as in index.mjs; written last
STEP = "modules"


def prepare(
    sandbox: StepSandbox,
    workspace: Workspace,
    runtime: Runtime,
    manifest: Manifest,
    write_line: WriteLine,
    *,
    readonly: Sequence[Path],
) -> None:
    """Prepare the modules in the workspace's `env`. A failure is written to the log and ends nothing.

    `readonly` are the folders to read besides the workspace.
    """
    disk.remove(workspace.env)  # whatever build steps may have put in its place
    options = {
        "root": str(workspace.project),
        "tools": str(runtime.tools_folder),
        "folder": str(workspace.env),
        "config": entries(manifest),
    }
    argv = [str(runtime.program), str(PROGRAMS / "prepare.mjs"), orjson.dumps(options).decode()]
    try:
        sandbox.run(
            STEP,
            argv,
            lambda level, message: None,
            readonly=readonly,
            cwd=workspace.project / manifest.directory,
        )
    except BuildFailed as error:
        disk.remove(workspace.env)
        reason = error.message.replace(f"{workspace.project}/", "")
        write_line("INFO", f"the graphs are loaded with tsx: {reason}")


def entries(manifest: Manifest) -> dict[str, object]:
    """Return the part of a graph host's configuration that names files of the project."""
    return {
        "graphs": manifest.graphs,
        "store": manifest.store,
        "auth": {"path": manifest.auth["path"]} if manifest.auth else None,
        "http": manifest.http or None,
        "replay": manifest.replay or None,
    }


def are_prepared(workspace: Workspace) -> bool:
    return not workspace.env.is_symlink() and (workspace.env / INDEX).is_file()


def loader_options(workspace: Workspace, runtime: Runtime) -> list[str]:
    """Return Node's options with which a graph host loads the project."""
    if not are_prepared(workspace):
        return ["--enable-source-maps", "--import", str(runtime.loader)]
    return ["--import", f"{(PROGRAMS / 'loader.mjs').as_uri()}?folder={workspace.env}"]
