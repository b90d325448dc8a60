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

MAIN = Path(workers.__file__).parent / "node_host" / "main.mjs"
PROJECT = Path(__file__).parents[1] / "projects" / "javascript"
PACKAGES = "graphs"  # the folder with the lock file of LangGraph for JavaScript


def project(directory: Path) -> Path:
    """Return a copy of the sample project in a directory, with its packages."""
    copy = directory / "project"
    shutil.copytree(PROJECT, copy)
    place = javascript.installed(PACKAGES)
    (copy / "node_modules").symlink_to(place / "node_modules")
    shutil.copy(place / "package.json", copy)
    return copy


@contextmanager
def node_host(
    directory: Path, graphs: Mapping[str, Any], *, variables: Mapping[str, str] | None = None, **config: Any
) -> Iterator[HostProcess]:
    """Run a host on `directory` while the block runs. Yields it after READY, or after the reason why it cannot work."""
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_SECONDS)
    loader = (javascript.installed(PACKAGES) / "node_modules" / "tsx" / "dist" / "esm" / "index.mjs").as_uri()
    command = [
        str(javascript.NODE / "node"),
        "--max-old-space-size=512",
        "--max-semi-space-size=8",
        "--enable-source-maps",
        "--import",
        loader,
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
