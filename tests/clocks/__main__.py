"""`python -m tests.clocks up`: `runyard up`, whose processes have wrong clocks (see sitecustomize.py)."""

from __future__ import annotations

import os
from pathlib import Path

from cli.machine import up
from cli.main import app
from shared.settings import Settings

environment_of = up.environment_of


def with_clocks(settings: Settings) -> dict[str, str]:
    found = environment_of(settings)
    return found | {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), found["PYTHONPATH"]))}


if __name__ == "__main__":
    up.environment_of = with_clocks
    up.start_fork_server = lambda settings, supervisor: None  # a fork has the clock it was loaded with
    app()
