"""Replays: keeps the benches of open replays supplied with runs, and judges the ended ones.

Each replay has its own greenlet. A replaced leader may still work at a replay: each step is one transaction that locks
the replay, and a case is started and judged once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

import gevent
from gevent.pool import Pool

from shared.errors import Unavailable
from shared.infra import broker
from shared.infra.postgres import Row, connection
from shared.replays import cases
from shared.replays.cases import Judged, Prepared
from shared.replays.comparison import Outcome
from shared.replays.records import Status
from shared.runs import signals
from shared.runs.cancel import Displaced
from shared.settings import Settings

log = logging.getLogger(__name__)

REPLAYS_AT_ONCE = 8
CALLS_AT_ONCE = 8  # calls to graph hosts for the cases of one replay
TURN_SECONDS = 30.0  # then the greenlet of a replay ends, because others may wait, or another process leads
PAUSE_SECONDS = 0.2
NOTIFY_SECONDS = 1.0  # between notifications of runs that wait although the bench has capacity
INTERNAL_ERROR = "an internal error: see the log of the service"

Result = TypeVar("Result")


class Replays:
    """The step of upkeep for replays."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(REPLAYS_AT_ONCE)
        self._handled: set[UUID] = set()

    def begin(self) -> None:
        """Begin to work at open replays, while the pool has free slots."""
        with connection() as conn:
            due = [id for id in cases.due(conn) if id not in self._handled]
        for replay_id in due[: self._pool.free_count()]:
            self._handled.add(replay_id)
            self._pool.spawn(self._work_at, replay_id)

    def join(self) -> None:
        """Wait until the begun turns of replays have ended."""
        self._pool.join()

    def _work_at(self, replay_id: UUID) -> None:
        turn = Turn(replay_id, self._settings)
        try:
            turn.take()
        except Unavailable as error:
            log.warning("replay %s: continues later: %s", replay_id, error)
        except Exception:  # outermost loop over the replays: one that fails must not stop the others
            log.exception("replay %s failed", replay_id)
            turn.end(Status.FAILED, INTERNAL_ERROR)
        finally:
            self._handled.discard(replay_id)


class Turn:
    """Works at one replay for TURN_SECONDS."""

    def __init__(self, replay_id: UUID, settings: Settings) -> None:
        self._replay_id = replay_id
        self._settings = settings
        self._calls = Pool(CALLS_AT_ONCE)
        self._notified_at = 0.0

    def take(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        while time.monotonic() < until and (worked := self.step()) is not None:
            if not worked:
                gevent.sleep(PAUSE_SECONDS)

    def step(self) -> bool | None:
        """Execute the next steps of the replay. Returns whether there was work, or None if the replay is over."""
        with connection() as conn:
            replay = cases.find(conn, self._replay_id)
        if replay is None:
            return None
        if replay["has_ended"]:
            self._stop_runs(replay)
            return None
        if replay["revision_status"] is None:
            self.end(Status.FAILED, "the revision of the replay was removed")
            return None
        if replay["status"] == Status.PREPARING:
            with connection() as conn:
                return cases.select(conn, replay)
        try:
            worked = self._judge(replay) + self._start(replay)
        finally:  # a bound is also kept while no host answers
            with connection() as conn:
                stopped = cases.end_if_over(conn, replay)
            self._publish(stopped)
        self._notify(replay)
        return bool(worked)

    def end(self, status: Status, reason: str) -> None:
        with connection() as conn:
            replay = cases.find(conn, self._replay_id)
            stopped = [] if replay is None else cases.end(conn, replay, status, reason)
        self._publish(stopped)

    def _judge(self, replay: Row) -> int:
        with connection() as conn:
            rows = cases.ended(conn, replay)
        judged, unavailable = self._each(rows, partial(cases.judge, replay), self._not_judged)
        if judged:
            with connection() as conn:
                cases.record(conn, replay, judged)
        if unavailable is not None:
            raise unavailable
        return len(judged)

    def _start(self, replay: Row) -> int:
        with connection() as conn:
            rows = cases.waiting(conn, replay)
        prepared, unavailable = self._each(rows, partial(cases.prepare, replay), self._not_prepared)
        if prepared:
            with connection() as conn:
                cases.start(conn, replay, prepared, run_timeout_seconds=self._settings.run_timeout_seconds)
        if unavailable is not None:
            raise unavailable
        return len(prepared)

    def _each(
        self, rows: Sequence[Row], function: Callable[[Row], Result], otherwise: Callable[[Row], Result]
    ) -> tuple[list[Result], Unavailable | None]:
        """Apply a function that may call graph hosts to several rows at once.

        Returns the results, and the error of a row for which no host was available.
        """

        def result(row: Row) -> Result | Unavailable:
            try:
                return function(row)
            except Unavailable as error:
                return error
            except Exception:  # outermost loop over the cases: one that fails must not stop the others
                log.exception("replay %s: case %s", self._replay_id, row["position"])
                return otherwise(row)

        results = list(self._calls.map(result, rows))
        errors = (each for each in results if isinstance(each, Unavailable))
        return [each for each in results if not isinstance(each, Unavailable)], next(errors, None)

    def _not_judged(self, row: Row) -> Judged:
        return Judged(row["position"], Outcome.FAILED, INTERNAL_ERROR)

    def _not_prepared(self, row: Row) -> Prepared:
        return Prepared(row, skipped=INTERNAL_ERROR)

    def _notify(self, replay: Row) -> None:
        """Notify runners of cases that wait although the bench has capacity: it was refused while ordinary runs waited."""
        now = time.monotonic()
        if now - self._notified_at < NOTIFY_SECONDS or replay["pool"] in broker.full_pools([replay["pool"]]):
            return
        self._notified_at = now
        with connection() as conn:
            waiting = cases.mark_notified(conn, replay)
        for run in waiting:
            broker.enqueue_run(run.pool, run.run_id)

    def _stop_runs(self, replay: Row) -> None:
        with connection() as conn:
            stopped = cases.stop_runs(conn, replay)
            cases.retire_bench(conn, replay)
        self._publish(stopped)

    def _publish(self, stopped: Sequence[Displaced]) -> None:
        signals.publish_cancels(stopped, self._settings.event_retention_seconds)
