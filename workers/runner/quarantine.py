"""Which runs share a graph host after one has died under them.

When a host dies nobody knows which of its runs brought it down. So they are kept apart step by step, and the
row says how far (`run.quarantine`, the level):

    0       with all other runs of the revision
    1       after a first death: together on a fresh host, where no run is that had nothing to do with it
    2, 3 …  each time that host dies too, one half of them apart from the other
    ALONE   from a few on, each has a host of its own

A run that kills its host every time is alone after about log2(n) deaths of n runs, and so few of the others
have died with it. Only a death alone is certain: it counts against the limit (`run.deaths`) and is followed by a
delay. A death among others counts for nobody, so no run ends for what another one did.
"""

from __future__ import annotations

from uuid import UUID

ALONE = 12
FEW = 4

Group = tuple[int, int]  # level, and which part of the runs at this level
OPEN: Group = (0, 0)  # runs under which no host died


def reserved(group: Group, depth: int) -> Group:
    """The group of nested runs of this group and depth that no other host has a slot for: its level is `-depth`."""
    return -depth, 0 if group == OPEN else (group[1] << 8) + group[0]


def group(run_id: UUID, level: int) -> Group:
    """The runs of its revision that a run shares a host with."""
    if level >= ALONE:
        return ALONE, run_id.int
    halvings = max(level - 1, 0)
    return level, run_id.int & ((1 << halvings) - 1)


def after(level: int, together: int) -> int:
    """The level of a run whose host died with so many on it, itself included."""
    is_few = together == 1 or (level > 0 and together <= FEW)
    return ALONE if is_few else min(level + 1, ALONE)
