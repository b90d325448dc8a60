"""Detection of damage: changes that a node made to the process and that would break all later runs.

The host cannot undo such changes. It reports the damage, and the runner sends it no new runs.
"""

from __future__ import annotations

from math import inf
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from sys import modules
from threading import active_count


class DamageWatch:
    """Compares the process with its state when the graphs were loaded."""

    def __init__(self) -> None:
        self._files = _most(RLIMIT_NOFILE)
        self._threads = _most(RLIMIT_NPROC) / 2

    def found(self) -> str | None:
        """Return a description of the damage; None if there is none."""
        if _most(RLIMIT_NOFILE) < self._files:
            return "a node lowered the limit of open files"
        if __name__ not in modules:
            return "a node removed loaded modules"
        if active_count() > self._threads:
            return "nodes left more threads than half of what it may have"
        return None


def _most(resource: int) -> float:
    most, _ = getrlimit(resource)
    return inf if most == RLIM_INFINITY else most
