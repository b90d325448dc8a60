"""`runyard` as it is installed: the one name among everybody's packages, and the service's own folders in `app`.

Why: `cli`, `shared`, `web` and `workers` are names that projects have too. Here they are no packages of the environment;
the launcher puts the folder that holds them before whatever the caller's PYTHONPATH names. A clone is such a folder itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).absolute().parent
CLONE = HERE.parents[2]
APP = HERE / "app" if (HERE / "app").is_dir() else CLONE


def main() -> None:
    """What the program `runyard` does."""
    sys.path.insert(0, str(APP))
    from cli import __main__ as runyard  # found only now

    runyard.main()
