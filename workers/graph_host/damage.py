"""What a node can do to its process that makes it useless for all runs that come later.

None of it can be undone here. So the host says that it is damaged, and the runner gives it no new runs.
"""

from __future__ import annotations

from math import inf
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from sys import modules
from threading import active_count


class DamageWatch:
    """Knows the process as it was when its graphs were loaded."""

    def __init__(self) -> None:
        self._files = _most(RLIMIT_NOFILE)
        self._threads = _most(RLIMIT_NPROC) / 2

    def found(self) -> str | None:
        """What is wrong with the process now."""
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
