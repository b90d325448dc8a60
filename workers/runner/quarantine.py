"""Quarantine: which runs share a graph host after a host has died under them.

When a host dies, the runner cannot tell which of its runs caused the death. The runs are therefore separated step by
step. The run's row stores the level (`run.quarantine`):

    0       on a host with all other runs of the revision
    1       after a first death: all of its runs on one host, without other runs
    2, 3 …  each time that host dies, too: split into two halves, on separate hosts
    ALONE   once only a few runs are left: each on its own host

A run that kills its host every time is alone after about log2(n) deaths for n runs, so the other runs share few
deaths with it. Only the death of a run that is alone is certainly its own. That death counts against the limit
(`run.deaths`) and causes a delay. A shared death counts against no run, so no run fails because of another.
"""

from __future__ import annotations

from uuid import UUID

ALONE = 12
FEW = 4

Group = tuple[int, int]  # the level, and the part of the runs at this level
DEFAULT_GROUP: Group = (0, 0)  # runs that are not in quarantine


def reserved(group: Group, depth: int) -> Group:
    """Return the group of the reserved host for nested runs of this group and depth. Its level is `-depth`."""
    return -depth, 0 if group == DEFAULT_GROUP else (group[1] << 8) + group[0]


def group(run_id: UUID, level: int) -> Group:
    """Return the group of a run: runs of the same revision and group may share a host."""
    if level >= ALONE:
        return ALONE, run_id.int
    halvings = max(level - 1, 0)
    return level, run_id.int & ((1 << halvings) - 1)


def after(level: int, together: int) -> int:
    """Return the new level of a run whose host died with `together` runs on it, including this run."""
    is_few = together == 1 or (level > 0 and together <= FEW)
    return ALONE if is_few else min(level + 1, ALONE)
