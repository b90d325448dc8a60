"""Claiming runs: the runs of a notification or, with a backlog, runs in round robin between keys.

Notifications carry no order. A runner with a free slot for each notified run claims exactly those runs. A runner
that had no slot for some of them claims waiting runs in round robin between keys, so that one key's queue does not
delay the runs of other keys. Each runner remembers in memory which keys it has served, so a claim writes no row for it.
Limited runs are claimed one deployment or key at a time (`shared/runs/limits.py`). Nested runs are claimed one depth at a time (`shared/runs/nesting.py`).

If the database is unreachable, or another run of the same thread has just started elsewhere, nothing is claimed and
upkeep notifies again. If the answer of a claim is lost, the claimed runs are unknown here. `unanswered_at` records
the time, and the runner searches for them.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from psycopg.errors import UniqueViolation

from shared.errors import OutcomeUnknown, Unavailable
from shared.infra.postgres import Driver, driver
from shared.runs import claims, limits, nesting
from shared.runs.claims import Claimed, Stored, Terms
from shared.runs.limits import LimitedId
from shared.runs.nesting import WaitingDepth

log = logging.getLogger(__name__)

MAX_SERVED = 1_000  # remembered keys
AT_ONCE = 50  # most runs of one claim that no notification names

Taken = list[tuple[Claimed, Stored]]
T = TypeVar("T")


class Claiming:
    """Claims runs for one runner, and remembers which keys it served."""

    def __init__(self, pool: str, terms: Terms) -> None:
        self._pool = pool
        self._terms = terms
        self._served: dict[str, None] = {}  # keys in the order of their latest claims, the oldest first
        self._limited_first = False
        self.unanswered_at = -math.inf  # monotonic time of the latest claim whose answer was lost

    def learn(self, *, some_key_is_limited: bool) -> None:
        """Set whether any API key has a limit. Without one, claims skip the check of keys."""
        self._terms = dataclasses.replace(self._terms, some_key_is_limited=some_key_is_limited)

    def notified(self, run_ids: Sequence[UUID], most: int) -> Taken:
        """Claim the eligible ones of these runs, at most `most` runs in all.

        For runs that a limit held back, the oldest waiting runs of the same deployment or key are claimed instead.
        """
        taken = self._free(run_ids)
        if len(taken) < len(run_ids):
            left = list(set(run_ids) - {run.run_id for run, _ in taken})
            lines = self._tried(lambda conn: limits.with_capacity(conn, left))
            taken += self.of(lines, most - len(taken))
        return taken

    def _free(self, run_ids: Sequence[UUID]) -> Taken:
        try:
            with driver() as conn:
                return claims.claim(conn, run_ids, self._terms)
        except UniqueViolation:
            if len(run_ids) == 1:
                return []
            return [item for run_id in run_ids for item in self._free([run_id])]
        except Unavailable as error:
            self._failed(error)
            return []

    def of(self, lines: Iterable[LimitedId], most: int, depth: int = 0) -> Taken:
        """Claim the first waiting runs of these limited deployments and keys, as many as their limits allow."""
        taken: Taken = []
        for line in lines:
            taken += self._of(line, most - len(taken), depth)
        return taken

    def _of(self, line: LimitedId, most: int, depth: int) -> Taken:
        if most <= 0:
            return []
        if isinstance(line, str):
            return self._served_by(
                lambda conn: limits.claim_of_key(conn, line, self._pool, self._terms, most=most, depth=depth)
            )
        served = list(self._served)
        return self._served_by(
            lambda conn: limits.claim_of_deployment(
                conn, line, self._pool, self._terms, most=most, served=served, depth=depth
            )
        )

    def nested_waiting(self) -> list[WaitingDepth]:
        """Return the depths at which nested runs wait, the deepest first."""
        return self._tried(lambda conn: nesting.waiting(conn, self._pool))

    def nested(self, waiting: WaitingDepth, most: int) -> Taken:
        """Claim at most `most` nested runs of one depth."""
        most = min(most, AT_ONCE)
        taken: Taken = []
        if waiting.has_unlimited:
            taken += self._free_round_robin(most, waiting.depth)
        return taken + self.of([*waiting.deployments, *waiting.keys], most - len(taken), waiting.depth)

    def round_robin(self, most: int) -> Taken:
        """Claim at most `most` waiting runs. Limited and unlimited runs take turns at going first."""
        most = min(most, AT_ONCE)
        self._limited_first = not self._limited_first
        steps = [self._limited_round_robin, self._free_round_robin]
        taken: Taken = []
        for step in steps if self._limited_first else reversed(steps):
            if len(taken) < most:
                taken += step(most - len(taken))
        return taken

    def _free_round_robin(self, most: int, depth: int = 0) -> Taken:
        served = list(self._served)
        return self._served_by(
            lambda conn: claims.claim_round_robin(
                conn, self._pool, self._terms, limit=most, served=served, depth=depth
            )
        )

    def _limited_round_robin(self, most: int) -> Taken:
        lines = self._lines(waited_seconds=0)
        random.shuffle(lines)
        return self.of(lines, most)

    def overlooked(self, most: int, *, waited_seconds: float) -> Taken:
        """Claim runs that have waited this long because no notification of them has reached a runner."""
        taken: Taken = self._tried(
            lambda conn: claims.claim_waiting(
                conn, self._pool, self._terms, limit=min(most, AT_ONCE), waited_seconds=waited_seconds
            )
        )
        return taken + self.of(self._lines(waited_seconds=waited_seconds), most - len(taken))

    def _lines(self, *, waited_seconds: float) -> list[LimitedId]:
        return self._tried(lambda conn: limits.overlooked(conn, self._pool, waited_seconds=waited_seconds))

    def _served_by(self, claim: Callable[[Driver], Taken]) -> Taken:
        taken: Taken = self._tried(claim)
        for run, _ in taken:
            self._served.pop(run.key_id, None)
            self._served[run.key_id] = None
        while len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]
        return taken

    def _tried(self, ask: Callable[[Driver], list[T]]) -> list[T]:
        try:
            with driver() as conn:
                return ask(conn)
        except UniqueViolation:
            return []
        except Unavailable as error:
            self._failed(error)
            return []

    def _failed(self, error: Unavailable) -> None:
        log.warning("cannot claim runs: %s", error)
        if isinstance(error, OutcomeUnknown):
            self.unanswered_at = time.monotonic()
