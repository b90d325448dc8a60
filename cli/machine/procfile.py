"""The Procfile: the single list of the service's processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]  # a clone, or the `app` of what is installed
LINE = re.compile(r"^(?P<name>[a-z][a-z0-9-]*):\s*(?P<command>\S.*)$")
RELEASE = "release"  # runs to its end before the others start
# Addresses and keys that a process never uses: what it does not have, nobody takes from it.
WITHHELD = {
    "beat": (
        "DATABASE_URL", "DATABASE_READ_URL", "DATABASE_DIRECT_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS",
    )
}  # fmt: skip


UNDER_HONCHO = "HONCHO_PROCESS_NAME"  # honcho sets it: its `release` waits, where ours has to end


class BadProcfile(ValueError):
    """A line of the Procfile cannot be read."""


@dataclass(frozen=True)
class ProcfileLine:
    name: str
    command: str  # for a shell: it may name variables

    @property
    def argv(self) -> list[str]:
        """The shell hands over to the command, so that its process is the command's own."""
        return ["/bin/sh", "-c", f"exec {self.command}"]

    def environment(self, whole: Mapping[str, str]) -> dict[str, str]:
        """What of the service's environment this process gets."""
        withheld = {f"{name}{end}" for name in WITHHELD.get(self.name, ()) for end in ("", "_FILE")}
        withheld.add(UNDER_HONCHO)
        return {name: value for name, value in whole.items() if name not in withheld}


def read(path: Path = PROJECT / "Procfile") -> list[ProcfileLine]:
    """The lines in order; raises BadProcfile."""
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
    """The variables by which a process of ours finds its programs and modules, and those that are good for each."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
        # What the caller has in its folder or on its path, as a project's own `shared`, is not for us.
        "PYTHONPATH": str(PROJECT),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",  # each thread's own heap costs memory that is never given back
    }
