"""The release before this one, out of the repository's history, and processes of this one beside it."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from cli.machine import procfile
from cli.machine.procfile import PROJECT
from tests.support import runners
from tests.support.stack import Stack, free_port
from tests.support.waiting import wait_until

# Whose processes must go on beside this release's: until there is a release, the last commit before version 0013.
PREVIOUS = "3d30ff060b9b36885e72d3124e30c63974bd9569"
START_SECONDS = 120


def tree() -> Path:
    """Its files, in a folder that user code may be started from; skips where the history is not there."""
    folder = PROJECT / ".cache" / "previous" / PREVIOUS
    if folder.is_dir():
        return folder
    archived = subprocess.run(
        ["git", "archive", "--format=tar", PREVIOUS], cwd=PROJECT, capture_output=True, check=False
    )
    if archived.returncode != 0:
        pytest.skip(f"the previous release, {PREVIOUS[:7]}, is not in this repository's history")
    made = folder.with_name(f"{PREVIOUS}.{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as tar:
        tar.extractall(
            made, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # since 3.11.4
    try:
        made.rename(folder)
    except OSError:
        shutil.rmtree(made)  # another process was faster
    return folder


def environment(stack: Stack) -> dict[str, str]:
    """What a process of this release works with on that platform's servers."""
    return stack.environment | {
        "DATABASE_URL": stack.database_url,
        "REDIS_URL": stack.redis_url,
        "RUNYARD_ENCRYPTION_KEYS": (stack.data_dir / "secret.key").read_text().strip(),
        "RUNYARD_API_KEY": stack.api_key,
        "RUNYARD_URL": stack.url,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }


def migrate(stack: Stack) -> None:
    """Bring the platform's database to this release's version."""
    command = [sys.executable, "-m", "shared.migrations"]
    subprocess.run(command, cwd=PROJECT, env=environment(stack), check=True, timeout=120)


@contextmanager
def web_beside(stack: Stack) -> Iterator[Stack]:
    """This release's web beside the platform's; the platform as it is reached there."""
    reached = copy.copy(stack)
    reached.__dict__.pop("client", None)
    reached.port = free_port()
    reached.url = f"http://127.0.0.1:{reached.port}"
    (line,) = (line for line in procfile.read() if line.name == "web")
    with (stack.data_dir / "web-beside.log").open("ab") as log:
        process = subprocess.Popen(
            line.argv,
            cwd=PROJECT,
            env=environment(stack) | {"RUNYARD_PORT": str(reached.port)},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(reached.is_up, START_SECONDS, what="this release's web")
        yield reached
    finally:
        process.terminate()
        process.wait(40)


@contextmanager
def runner_beside(stack: Stack) -> Iterator[runners.Runner]:
    """This release's runner beside the platform's, at work."""
    runner = runners.start(stack, name="beside")
    try:
        wait_until(lambda: runners.is_there(stack, runner), START_SECONDS, what="this release's runner")
        yield runner
    except BaseException:
        print((stack.data_dir / "beside.log").read_text()[-4000:])
        raise
    finally:
        runners.end(runner)
