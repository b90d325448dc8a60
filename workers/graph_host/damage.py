"""What a node can do to its process that makes it useless for all runs that come later.

Neither can be undone here. So the host says that it is damaged, and the runner gives it no new runs.
"""

from __future__ import annotations

from math import inf
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from sys import modules


class DamageWatch:
    """Knows the process as it was when its graphs were loaded."""

    def __init__(self) -> None:
        self._files = _most_files()

    def found(self) -> str | None:
        """What is wrong with the process now."""
        if _most_files() < self._files:
            return "a node lowered the limit of open files"
        if __name__ not in modules:
            return "a node removed loaded modules"
        return None


def _most_files() -> float:
    most, _ = getrlimit(RLIMIT_NOFILE)
    return inf if most == RLIM_INFINITY else most
