"""Packages named like ours that fail on import, and the environment of a user who has them on the path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

RUNYARD = str(Path(sys.executable).with_name("runyard"))
LOADED = "a package of the caller's was loaded"


def write(folder: Path) -> None:
    """Write the packages to the folder."""
    for name in ("cli", "shared", "web", "workers"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError({LOADED!r})\n")


def among(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a user whose own packages are in the folder."""
    return {**environment, "PYTHONPATH": str(folder)}
