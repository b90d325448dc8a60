"""A Node graph host as a real process, with the runner's end of its socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import workers
from tests.support import javascript
from tests.support.hosts import ANSWER_SECONDS, HostProcess, connected
from workers.builder.node import modules
from workers.builder.node.runtime import TOOLS

MAIN = Path(workers.__file__).parent / "node_host" / "main.mjs"
PROJECT = Path(__file__).parents[1] / "projects" / "javascript"
PACKAGES = "graphs"  # the folder with the lock file of LangGraph for JavaScript


def project(directory: Path, packages: str = PACKAGES) -> Path:
    """Return a copy of the sample project in a directory, with the packages of a lock file.

    Its modules are prepared if the packages are those that the whole project needs.
    """
    copy = directory / "project"
    shutil.copytree(PROJECT, copy)
    place = javascript.installed(packages)
    (copy / "node_modules").symlink_to(place / "node_modules")
    shutil.copy(place / "package.json", copy)
    if packages == PACKAGES:
        prepare(copy, {path.name: f"./{path.name}:graph" for path in PROJECT.glob("*.ts")})
    return copy


def prepare(directory: Path, graphs: Mapping[str, str]) -> None:
    """Prepare the modules of a project as its build does, in a folder beside it."""
    options = {
        "root": str(directory),
        "tools": str(javascript.installed(TOOLS)),
        "folder": str(modules_of(directory)),
        "config": {"graphs": graphs},
    }
    command = [javascript.NODE / "node", modules.PROGRAMS / "prepare.mjs", json.dumps(options)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def loader(directory: Path | None) -> list[str]:
    """Return Node's options that load the prepared modules of a directory, or without these TypeScript with tsx."""
    if directory is not None and modules_of(directory).exists():
        return ["--import", f"{(modules.PROGRAMS / 'loader.mjs').as_uri()}?folder={modules_of(directory)}"]
    tsx = javascript.installed(PACKAGES) / "node_modules" / "tsx" / "dist" / "esm" / "index.mjs"
    return ["--enable-source-maps", "--import", tsx.as_uri()]


def modules_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-modules")


@contextmanager
def node_host(
    directory: Path,
    graphs: Mapping[str, Any],
    *,
    variables: Mapping[str, str] | None = None,
    is_prepared: bool = True,
    node: Path = javascript.NODE / "node",
    **config: Any,
) -> Iterator[HostProcess]:
    """Run a host on `directory` while the block runs. Yields it after READY, or after the reason why it cannot work.

    It loads the prepared modules of the directory if there are any and `is_prepared` is set, and with tsx otherwise.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_SECONDS)
    command = [
        str(node),
        "--max-old-space-size=512",
        "--max-semi-space-size=16",
        *loader(directory if is_prepared else None),
        str(MAIN),
        "--socket",
        str(theirs.fileno()),
    ]
    environment = {
        **(variables or {}),
        "PATH": os.environ["PATH"],
        "TMPDIR": str(directory),
        "GRAPH_HOST_CONFIG": json.dumps({"graphs": graphs, **config}),
    }
    with theirs:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, pass_fds=(theirs.fileno(),), start_new_session=True
        )
    with connected(process, ours) as host:
        yield host
