"""The Procfile: the single list of the service's processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]  # root of the clone, or the `app` folder of an installed wheel
LINE = re.compile(r"^(?P<name>[a-z][a-z0-9-]*):\s*(?P<command>\S.*)$")
RELEASE = "release"  # runs to its end before the others start
# Addresses and keys that a process never uses. Withholding them means that a compromised process cannot leak them.
WITHHELD = {
    "beat": (
        "DATABASE_URL", "DATABASE_READ_URL", "DATABASE_DIRECT_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS",
    )
}  # fmt: skip


# Set by honcho. With it `release` keeps running after the migrations, because honcho stops everything when a process
# ends. Under our own supervisor `release` has to end, so the variable is removed.
UNDER_HONCHO = "HONCHO_PROCESS_NAME"


class BadProcfile(ValueError):
    """A line of the Procfile cannot be read."""


@dataclass(frozen=True)
class ProcfileLine:
    name: str
    command: str  # shell syntax; may refer to variables

    @property
    def argv(self) -> list[str]:
        """The command line. The shell replaces itself with the command (`exec`), so the process id is the command's."""
        return ["/bin/sh", "-c", f"exec {self.command}"]

    def environment(self, whole: Mapping[str, str]) -> dict[str, str]:
        """Return the part of the service's environment that this process receives."""
        withheld = {f"{name}{end}" for name in WITHHELD.get(self.name, ()) for end in ("", "_FILE")}
        withheld.add(UNDER_HONCHO)
        return {name: value for name, value in whole.items() if name not in withheld}


def read(path: Path = PROJECT / "Procfile") -> list[ProcfileLine]:
    """Return the lines in order. Raises BadProcfile."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        found = LINE.match(text)
        if found is None:
            raise BadProcfile(f"{path}, line {number}: not `name: command`: {text!r}")
        lines.append(ProcfileLine(found["name"], found["command"].strip()))
    return lines


def surroundings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process needs: search paths of programs and modules, and interpreter options."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
        # Keep modules in the caller's folder or path out, such as a project's own `shared` package.
        "PYTHONPATH": str(PROJECT),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",  # a heap per thread would take memory that is never returned
    }
