"""A later release: a copy of this tree with one more database version and a changed database function.

No release precedes this tree, so tests of rolling upgrades upgrade to an invented next release.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.machine import procfile
from cli.machine.procfile import PROJECT
from shared.infra import database_version
from tests.support import runners
from tests.support.stack import Stack, free_port
from tests.support.waiting import wait_until

START_SECONDS = 120
NUMBER = f"{int(database_version.needed()) + 1:04}"
COLUMN, INDEX = "later", "ix_run_later"
VERSION = f'''
import sqlalchemy as sa
from alembic import op

from shared import migrations

revision = "{NUMBER}"
down_revision = "{database_version.needed()}"


def upgrade() -> None:
    op.add_column("run", sa.Column("{COLUMN}", sa.BigInteger(), nullable=True), if_not_exists=True)
    migrations.create_index("{INDEX}", "run", ["{COLUMN}"])
'''


def tree(folder: Path) -> Path:
    """Copy the product to `folder`, add a migration that adds a column and an index to runs, and renumber the claim."""
    for name in ("shared", "web", "workers", "cli"):
        # With the compiled modules, except those that another process writes at this moment.
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("Procfile", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    (folder / "shared" / "migrations" / "versions" / f"{NUMBER}_later.py").write_text(VERSION)
    claim = folder / "shared" / "sql" / "claim.sql"
    of_this_release = claim.read_text()
    (claim.parent / "previous").mkdir()
    (claim.parent / "previous" / "claim.sql").write_text(of_this_release)
    claim.write_text(of_this_release.replace("claim_runs_1", "claim_runs_2"))
    return folder


def environment(stack: Stack, code: Path) -> dict[str, str]:
    """Return the environment of a process of the release in `code` that uses the platform's servers."""
    return stack.environment | {
        "DATABASE_URL": stack.database_url,
        "REDIS_URL": stack.redis_url,
        "RUNYARD_ENCRYPTION_KEYS": (stack.data_dir / "secret.key").read_text().strip(),
        "RUNYARD_API_KEY": stack.api_key,
        "RUNYARD_URL": stack.url,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(code),  # takes precedence over this tree, which is installed in the environment
    }


def migrate(stack: Stack, code: Path) -> None:
    """Migrate the platform's database to the version of the release in `code`."""
    command = [sys.executable, "-m", "shared.migrations"]
    subprocess.run(command, cwd=code, env=environment(stack, code), check=True, timeout=120)


@contextmanager
def web_beside(stack: Stack, code: Path) -> Iterator[Stack]:
    """Start the web process of `code` beside the platform's. Yields the platform with the URL of that process."""
    reached = copy.copy(stack)
    reached.__dict__.pop("client", None)
    reached.port = free_port()
    reached.url = f"http://127.0.0.1:{reached.port}"
    (line,) = (line for line in procfile.read() if line.name == "web")
    with (stack.data_dir / "web-beside.log").open("ab") as log:
        process = subprocess.Popen(
            line.argv,
            cwd=code,
            env=environment(stack, code) | {"RUNYARD_PORT": str(reached.port)},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(reached.is_up, START_SECONDS, what="the later release's web")
        yield reached
    finally:
        process.terminate()
        process.wait(40)


@contextmanager
def runner_beside(stack: Stack, code: Path) -> Iterator[runners.Runner]:
    """Start the runner of `code` beside the platform's."""
    runner = runners.start(stack, name="beside", code=code)
    try:
        wait_until(lambda: runners.is_there(stack, runner), START_SECONDS, what="the later release's runner")
        yield runner
    except BaseException:
        print((stack.data_dir / "beside.log").read_text()[-4000:])
        raise
    finally:
        runners.end(runner)
