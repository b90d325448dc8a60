"""Time the deploy command: a first deploy, the same project again, and a rollback.

The lower bound of a first deploy is the time of the package installer alone, with an empty cache.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from bench.measuring import milliseconds
from bench.session import Session
from bench.targets import TargetError

AGAIN = 5
LAST_BYTES = 2000


async def measure(session: Session) -> None:
    """Measure the wall time of `--deploy-command`, `--rollback-command` and the installer for `--requirements`."""
    options = session.options
    if not options.deploy_command:
        raise TargetError("deploying needs --deploy-command")
    limit = options.start_seconds
    if options.requirements:
        alone = [await _installer_alone(Path(options.requirements), limit)]
        session.emit("deploying", "installer_alone", milliseconds("command", alone))
    first = [await _timed(shlex.split(options.deploy_command), limit)]
    session.emit("deploying", "first", milliseconds("command", first))
    again = [await _timed(shlex.split(options.deploy_command), limit) for _ in range(AGAIN)]
    session.emit("deploying", "again", milliseconds("command", again))
    if options.rollback_command:
        back = [await _timed(shlex.split(options.rollback_command), limit) for _ in range(AGAIN)]
        session.emit("deploying", "rollback", milliseconds("command", back))


async def _installer_alone(requirements: Path, limit: float) -> float:
    """Return the seconds to create an environment with these requirements from an empty cache."""
    uv = find_uv_bin()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        env = {**os.environ, "UV_CACHE_DIR": f"{folder}/cache"}
        made = await _timed([uv, "venv", "--quiet", "--python", sys.executable, f"{folder}/env"], limit, env)
        install = [uv, "pip", "install", "--quiet", "--python", f"{folder}/env/bin/python"]
        return made + await _timed([*install, "--requirement", str(requirements)], limit, env)


async def _timed(argv: Sequence[str], limit: float, env: Mapping[str, str] | None = None) -> float:
    """Return the seconds until a command succeeds. Raises TargetError if it fails or exceeds the limit."""
    started_at = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit)
    except TimeoutError as error:
        process.kill()
        raise TargetError(f"{argv[0]} took more than {limit:.0f} seconds") from error
    if process.returncode != 0:
        said = output.decode(errors="replace")[-LAST_BYTES:]
        raise TargetError(f"{shlex.join(argv)} ended with {process.returncode}:\n{said}")
    return time.perf_counter() - started_at
