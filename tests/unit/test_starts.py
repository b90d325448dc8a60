"""Modules that processes must not load at start. All processes start at once, and no run begins before they have."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from cli.machine.fork_server import SHARED

PROJECT = Path(__file__).parents[2]

UNUSED = {
    "web.app, gunicorn.workers.ggevent": {"celery", "kombu", "sqlalchemy.orm"},
    "workers.__main__, workers.tasks": {"celery.bin.celery", "flask", "sqlalchemy.orm"},
    "workers.beat": {"celery.bin.celery", "flask", "sqlalchemy"},
}


@pytest.mark.parametrize("module", UNUSED)
def test_a_process_loads_nothing_that_it_may_never_use(module: str) -> None:
    assert UNUSED[module] & modules_after(f"import {module}") == set()


@cache
def modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after executing the code."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=PROJECT,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(found.stdout.split())


def test_the_fork_server_loads_what_several_processes_do_and_nothing_that_reads_its_settings_then() -> None:
    loaded = {
        name: modules_after(code)
        for name, code in {
            "forks": f"import {', '.join(SHARED)}",
            "web": "import web.app, gunicorn.workers.ggevent",
            "worker": "import workers.__main__, workers.tasks",
        }.items()
    }

    assert loaded["web"] & loaded["worker"] - loaded["forks"] == set()
    assert loaded["forks"] & {"web.wsgi", "workers.app", "workers.beat"} == set()
    # prometheus_client decides at import whether several web processes share their counters.
    assert "prometheus_client" not in loaded["forks"]
