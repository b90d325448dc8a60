"""The database functions that this release calls. A migration creates each of them."""

from __future__ import annotations

from shared.infra.routines import Routine
from shared.runs import claims, commits

CURRENT: tuple[Routine, ...] = (claims.CLAIM_RUNS, commits.COMMIT_RUNS)
