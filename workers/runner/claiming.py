"""Claiming runs: which runs of its pool this runner claims, in which order, and for which slots.

Notifications carry no order. A runner with a free slot for each notified run claims exactly those runs. A runner that
had no slot for some of them claims from the backlog, in round robin between keys, so that one key's queue does not
delay the runs of other keys. Each runner remembers in memory which keys it has served, so a claim writes no row for it.
Limited runs are claimed one deployment or key at a time (`shared/runs/limits.py`), and nested runs one depth at a time
(`shared/runs/nesting.py`).

If the database is unreachable, or another run of the same thread has just started elsewhere, nothing is claimed and
upkeep notifies again. If the answer of a claim is lost, the claimed runs are unknown here, and
`give_back_unanswered` searches for them.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from uuid import UUID

from psycopg.errors import UniqueViolation

from shared.errors import OutcomeUnknown, Unavailable
from shared.infra import broker
from shared.infra.postgres import Driver, connection, driver
from shared.runs import claims, limits, nesting
from shared.runs.claims import Claimed, Stored, Terms
from shared.runs.limits import LimitedQueue
from shared.runs.nesting import WaitingDepth
from shared.settings import Settings

log = logging.getLogger(__name__)

MAX_SERVED = 1_000  # remembered keys
AT_ONCE = 50  # most runs of one claim that no notification names
SPARE_OF_SECOND = 10 * AT_ONCE  # the runs that ten other runners may be claiming
UNNOTIFIED_SECONDS = 2.0  # how long a run waits before it is claimed without a notification

ClaimedRuns = list[tuple[Claimed, Stored]]
T = TypeVar("T")


class Slots:
    """The slots of a runner. The runs of each depth have their own. Replays use at most half of the slots."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: Counter[int] = Counter()  # by depth
        # Slots for runs that are being claimed, by depth; None: the depth is not known yet.
        self._reserved: Counter[int | None] = Counter()
        self._free_for_replays = max(most // 2, 1)

    def free(self, depth: int = 0) -> int:
        return self._most - self._busy[depth] - self._reserved[None] - self._reserved[depth]

    @property
    def free_at_each_depth(self) -> int:
        return min(self.free(depth) for depth in range(nesting.MAX_DEPTH + 1))

    def claimed_within_replays(self, claim: Callable[[Callable[[int], int]], ClaimedRuns]) -> ClaimedRuns:
        """Claim runs, with the slots of replays reserved meanwhile.

        `claim` passes to its argument how many runs a replay could start, and gets how many it may start. A claimed run
        of a replay keeps its slot until `release`.
        """
        reserved = 0

        def reserve(most: int) -> int:
            nonlocal reserved
            reserved = max(min(most, self._free_for_replays), 0)
            self._free_for_replays -= reserved
            return reserved

        claimed: ClaimedRuns = []
        try:
            claimed = claim(reserve)
        finally:
            self._free_for_replays += reserved - sum(run.is_replay for run, _ in claimed)
        return claimed

    def busy(self, depth: int) -> int:
        return self._busy[depth]

    def occupy(self, run: Claimed) -> None:
        self._busy[run.depth] += 1

    def release(self, run: Claimed) -> None:
        self._busy[run.depth] -= 1
        self._free_for_replays += run.is_replay

    @contextmanager
    def reserved(self, count: int, depth: int | None = None) -> Iterator[None]:
        """Reserve slots while the database answers a claim: at this depth, or at each depth if it is None.

        The caller must occupy the slots of the claimed runs before another greenlet runs.
        """
        self._reserved[depth] += count
        try:
            yield
        finally:
            self._reserved[depth] -= count


class Claims:
    """Claims runs for one runner, and remembers which keys it served."""

    def __init__(self, settings: Settings) -> None:
        self.slots = Slots(settings.runner_slots)
        self.has_backlog = False  # some notified runs found no free slot and may still be waiting
        self._pool = settings.pool
        self._terms = Terms(
            settings.worker, settings.lease_seconds, settings.run_timeout_seconds, settings.pool
        )
        self._served: dict[str, None] = {}  # keys in the order of their latest claims, the oldest first
        self._limited_first = False
        self._unanswered_at = -math.inf  # monotonic time of the latest claim whose answer was lost

    def learn(self, *, some_key_is_limited: bool) -> None:
        """Set whether any API key has a limit. Without one, claims skip the check of keys."""
        self._terms = dataclasses.replace(self._terms, some_key_is_limited=some_key_is_limited)

    def claim_notified(self, run_ids: Sequence[UUID]) -> ClaimedRuns:
        """Claim the notified runs, as many as there are free slots. Claims from the backlog instead if there is one."""
        most = self.slots.free()
        named = run_ids[: max(most, 0)]
        self.has_backlog = self.has_backlog or len(named) < len(run_ids)
        if not named:
            return []  # the backlog is claimed when a slot becomes free
        if self.has_backlog or len(named) > self.slots.free_at_each_depth:
            return self.claim_backlog(len(named))
        with self.slots.reserved(len(named)):
            return self._claim_named(named, most)

    def claim_backlog(self, most: int) -> ClaimedRuns:
        """Claim runs of the backlog in round robin between keys. Fewer runs than `most` mean an empty backlog.

        Limited and unlimited runs take turns at going first.
        """
        self.has_backlog = False  # `claim_notified` sets it again if it finds no free slot meanwhile
        self._limited_first = not self._limited_first
        steps = [self._claim_limited_queues, self._claim_unlimited]
        limit = min(most, AT_ONCE)
        claimed: ClaimedRuns = []
        with self.slots.reserved(most, 0):
            for step in steps if self._limited_first else reversed(steps):
                if len(claimed) < limit:
                    claimed += step(limit - len(claimed))
        self.has_backlog = self.has_backlog or len(claimed) >= limit
        return claimed

    def claim_unnotified(self) -> ClaimedRuns:
        """Claim runs that have waited for UNNOTIFIED_SECONDS because no notification of them has reached a runner."""
        most = self.slots.free()
        if most <= 0:
            return []
        with self.slots.reserved(most, 0):
            claimed = self._query(
                lambda conn: claims.claim_waiting(
                    conn, self._pool, self._terms, limit=min(most, AT_ONCE), waited_seconds=UNNOTIFIED_SECONDS
                )
            )
            queues = self._limited_queues(waited_seconds=UNNOTIFIED_SECONDS)
            return claimed + self._claim_limited(queues, most - len(claimed))

    def claim_next_of(self, queue: LimitedQueue) -> ClaimedRuns:
        """Claim the first waiting runs of a limited deployment or key, as many as its limit and the slots allow."""
        return self._claim_limited([queue], self.slots.free())

    def notify_next_of(self, queue: LimitedQueue) -> None:
        """Notify other runners of the first waiting runs of a limited deployment or key.

        Without a database, upkeep notifies them later.
        """
        try:
            with connection() as conn:
                waiting = limits.mark_notified(conn, queue)
        except Unavailable as error:
            log.warning("nobody is notified, upkeep will: %s", error)
            return
        for run in waiting:
            broker.enqueue_run(run.pool, run.run_id)

    def nested_waiting(self) -> list[WaitingDepth]:
        """Return the depths at which nested runs wait, the deepest first."""
        return self._query(lambda conn: nesting.waiting(conn, self._pool))

    def claim_nested(self, waiting: WaitingDepth) -> ClaimedRuns:
        """Claim nested runs of one depth, as many as it has free slots."""
        most = self.slots.free(waiting.depth)
        if most <= 0:
            return []
        limit = min(most, AT_ONCE)
        claimed: ClaimedRuns = []
        with self.slots.reserved(most, waiting.depth):
            if waiting.has_unlimited:
                claimed += self._claim_unlimited(limit, waiting.depth)
            queues = [*waiting.deployments, *waiting.keys]
            return claimed + self._claim_limited(queues, limit - len(claimed), waiting.depth)

    def give_back_unanswered(self, executions: Collection[UUID]) -> None:
        """Return runs to the queue that this runner owns in the database but does not execute.

        A claim whose answer was lost may have been committed. Its runs would otherwise wait until their leases expire.
        `executions` are the runs that this runner executes at any time.
        """
        if time.monotonic() - self._unanswered_at > self._terms.lease_seconds:
            return
        with connection() as conn:
            # Listed once the connection is open: a run that starts meanwhile must not be given back.
            returned = claims.give_back_unknown(conn, owner=self._terms.owner, known=list(executions))
        for run in returned:
            log.warning("run %s: claimed, but the answer was lost: it goes back to the queue", run.run_id)
            broker.enqueue_run(run.pool, run.run_id)

    def _claim_named(self, run_ids: Sequence[UUID], most: int) -> ClaimedRuns:
        """Claim the eligible ones of these runs, at most `most` runs in all.

        For runs that a limit held back, the oldest waiting runs of the same deployment or key are claimed instead.
        """
        claimed = self._claim_exactly(run_ids)
        if len(claimed) < len(run_ids):
            others = list(set(run_ids) - {run.run_id for run, _ in claimed})
            queues = self._query(lambda conn: limits.with_capacity(conn, others))
            claimed += self._claim_limited(queues, most - len(claimed))
        return claimed

    def _claim_exactly(self, run_ids: Sequence[UUID]) -> ClaimedRuns:
        try:
            with driver() as conn:
                return claims.claim(conn, run_ids, self._terms)
        except UniqueViolation:
            if len(run_ids) == 1:
                return []
            return [item for run_id in run_ids for item in self._claim_exactly([run_id])]
        except Unavailable as error:
            self._note_failure(error)
            return []

    def _claim_limited(self, queues: Iterable[LimitedQueue], most: int, depth: int = 0) -> ClaimedRuns:
        """Claim the first waiting runs of these limited deployments and keys, as many as their limits allow."""
        claimed: ClaimedRuns = []
        for queue in queues:
            claimed += self._claim_head(queue, most - len(claimed), depth)
        return claimed

    def _claim_head(self, queue: LimitedQueue, most: int, depth: int) -> ClaimedRuns:
        if most <= 0:
            return []
        if isinstance(queue, str):
            return self._claim_fairly(
                lambda conn: limits.claim_of_key(conn, queue, self._pool, self._terms, most=most, depth=depth)
            )
        served = list(self._served)
        return self.slots.claimed_within_replays(
            lambda replay_slots: self._claim_fairly(
                lambda conn: limits.claim_of_deployment(
                    conn,
                    queue,
                    self._pool,
                    self._terms,
                    most=most,
                    replay_slots=replay_slots,
                    served=served,
                    depth=depth,
                )
            )
        )

    def _claim_unlimited(self, most: int, depth: int = 0) -> ClaimedRuns:
        """Claim runs of unlimited queues. Fewer runs than `most` mean that no more are waiting.

        Other runners that claim at the same time lock the first runs. If that leaves too few, the second claim
        considers many more. The runner would otherwise take the backlog for empty, and its slots would stay free.
        """
        claimed: ClaimedRuns = []
        for spare in (claims.SPARE, SPARE_OF_SECOND):
            if len(claimed) < most:
                claimed += self._claim_round_robin(most - len(claimed), spare, depth)
        return claimed

    def _claim_round_robin(self, most: int, spare: int, depth: int) -> ClaimedRuns:
        served = list(self._served)
        return self._claim_fairly(
            lambda conn: claims.claim_round_robin(
                conn, self._pool, self._terms, limit=most, served=served, spare=spare, depth=depth
            )
        )

    def _claim_limited_queues(self, most: int) -> ClaimedRuns:
        queues = self._limited_queues(waited_seconds=0)
        random.shuffle(queues)
        return self._claim_limited(queues, most)

    def _limited_queues(self, *, waited_seconds: float) -> list[LimitedQueue]:
        return self._query(lambda conn: limits.overlooked(conn, self._pool, waited_seconds=waited_seconds))

    def _claim_fairly(self, claim: Callable[[Driver], ClaimedRuns]) -> ClaimedRuns:
        """Claim runs, and remember their keys as those served last."""
        claimed: ClaimedRuns = self._query(claim)
        for run, _ in claimed:
            self._served.pop(run.key_id, None)
            self._served[run.key_id] = None
        while len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]
        return claimed

    def _query(self, query: Callable[[Driver], list[T]]) -> list[T]:
        try:
            with driver() as conn:
                return query(conn)
        except UniqueViolation:
            return []
        except Unavailable as error:
            self._note_failure(error)
            return []

    def _note_failure(self, error: Unavailable) -> None:
        log.warning("cannot claim runs: %s", error)
        if isinstance(error, OutcomeUnknown):
            self._unanswered_at = time.monotonic()
