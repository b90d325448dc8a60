"""The installed `runyard` package: a single top-level name, with the service's own packages below `app`.

Projects also have packages named `cli`, `shared`, `web` or `workers`, so those names are not installed in the
environment. The launcher puts `app` at the front of `sys.path`, ahead of the caller's PYTHONPATH. In a clone, the
repository root takes the place of `app`.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).absolute().parent
CLONE = HERE.parents[2]
APP = HERE / "app" if (HERE / "app").is_dir() else CLONE


def main() -> None:
    """Entry point of the `runyard` program."""
    sys.path.insert(0, str(APP))
    from cli import __main__ as runyard  # importable only after the path is set

    runyard.main()
