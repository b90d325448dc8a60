"""What a process does without when it starts: all of them start at once, and no run begins until they have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

UNUSED = {
    "web.app": {"celery", "kombu", "sqlalchemy.orm"},
    "workers.__main__, workers.tasks": {"celery.bin.celery", "flask", "sqlalchemy.orm"},
    "workers.beat": {"celery.bin.celery", "flask", "sqlalchemy"},
    "cli.main": {"celery", "psycopg", "sqlalchemy"},
}


@pytest.mark.parametrize("module", UNUSED)
def test_a_process_loads_nothing_that_it_may_never_use(module: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        cwd=PROJECT,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert UNUSED[module] & set(found.stdout.split()) == set()
