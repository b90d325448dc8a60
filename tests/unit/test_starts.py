"""What a process does when it starts: all of them start at once, and no run begins until they have."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from shared.infra import collector

PROJECT = Path(__file__).parents[2]

UNUSED = {"workers.beat": {"sqlalchemy", "psycopg"}}


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


def test_garbage_is_collected_once_a_process_has_loaded_what_it_needs() -> None:
    loaded = gc.get_freeze_count()
    gc.disable()
    try:
        collector.keep_what_is_loaded()

        assert gc.isenabled()
        assert gc.get_freeze_count() > loaded
    finally:
        gc.unfreeze()
        gc.enable()
