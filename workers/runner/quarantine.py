"""Groups of runs that may share a graph host. Replays have hosts of their own. Quarantine separates runs further.

Replays are in no host with ordinary runs, so that a revision that is only tried cannot disturb these, and the runner
can refuse requests of such a host to its deployment. If no call of a replay can need the network, the host has none.
Calls of the project's scorer have other hosts of their own: a scorer that ends or blocks its process disturbs no run.

Quarantine concerns runs whose host has died. The runner cannot tell which of the host's runs caused the death. The runs
are therefore separated step by step. The run's row stores the level (`run.quarantine`):

    0       on a host with all other runs of the revision
    1       after a first death: all of its runs on one host, without other runs
    2, 3 …  each time that host dies, too: split into two halves, on separate hosts
    ALONE   once only a few runs are left: each on its own host

A run that kills its host every time is alone after about log2(n) deaths for n runs, so the other runs share few
deaths with it. Only the death of a run that is alone is certainly its own. That death counts against the limit
(`run.deaths`) and causes a delay. A shared death counts against no run, so no run fails because of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

ALONE = 12
FEW = 4

ORDINARY, REPLAY, OFFLINE_REPLAY, SCORING = range(4)  # kinds of runs, and calls of scorers


class Group(NamedTuple):
    """The runs of a revision that may share a host."""

    level: int
    part: int  # of the runs at this level
    kind: int = ORDINARY

    @property
    def is_open(self) -> bool:
        """Whether it is open to all runs of its kind that are not in quarantine."""
        return self.level == 0

    @property
    def is_replay(self) -> bool:
        return self.kind != ORDINARY

    @property
    def has_network(self) -> bool:
        return self.kind != OFFLINE_REPLAY


DEFAULT_GROUP = Group(0, 0)  # ordinary runs that are not in quarantine
SCORING_GROUP = Group(0, 0, SCORING)


def kind_of(replay: Mapping[str, Any] | None) -> int:
    """Return the kind of a run from its `replay`, None of an ordinary run.

    Live models and executed tools need the network, and cannot be separated from other code of their process. A replay
    therefore has no network only if it does not ask for one, its models are recorded, and no tool may be executed. A
    model call without a recorded answer then fails. In other replays only the host itself refuses connections that
    are not a model's or a tool's (`workers/graph_host/replays/network.py`). Isolation level 0 cannot cut the network.
    """
    if not replay:
        return ORDINARY
    is_live = replay.get("models") != "recorded" or replay.get("tools") == "live" or replay.get("live_tools")
    return REPLAY if is_live or replay.get("network") else OFFLINE_REPLAY


def reserved(group: Group, depth: int) -> Group:
    """Return the group of the reserved host for nested runs of this group and depth. Its level is `-depth`."""
    return Group(-depth, 0 if group.is_open else (group.part << 8) + group.level, group.kind)


def group(run_id: UUID, level: int, kind: int = ORDINARY) -> Group:
    """Return the group of a run: runs of the same revision and group may share a host."""
    if level >= ALONE:
        return Group(ALONE, run_id.int, kind)
    halvings = max(level - 1, 0)
    return Group(level, run_id.int & ((1 << halvings) - 1), kind)


def group_of_call(call_id: UUID, document: Mapping[str, Any]) -> Group:
    """Return the group of the host that answers a call. A scorer's call with `is_alone` has a new host to itself."""
    if document["op"] != "score":
        return DEFAULT_GROUP
    return group(call_id, ALONE, SCORING) if document["is_alone"] else SCORING_GROUP


def after(level: int, together: int) -> int:
    """Return the new level of a run whose host died with `together` runs on it, including this run."""
    is_few = together == 1 or (level > 0 and together <= FEW)
    return ALONE if is_few else min(level + 1, ALONE)
