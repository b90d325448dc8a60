"""A folder with packages under our names, which fail when they are imported, and who starts `runyard` there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

RUNYARD = str(Path(sys.executable).with_name("runyard"))
LOADED = "a package of the caller's was loaded"


def write(folder: Path) -> None:
    """Put the packages into the folder."""
    for name in ("cli", "shared", "web", "workers"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError({LOADED!r})\n")


def among(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of somebody whose own packages are in the folder."""
    return {**environment, "PYTHONPATH": str(folder)}
