"""The database functions that this release calls. A migration creates each of them."""

from __future__ import annotations

from shared.infra.routines import Routine
from shared.runs import commits

CURRENT: tuple[Routine, ...] = (commits.COMMIT_RUNS,)
