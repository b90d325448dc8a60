"""Upkeep: recovers runs, builds and notifications that were abandoned or lost. All decisions come from rows.

Every runner and builder runs this loop, and one leader at a time is active (`shared/fleet.py`). Upkeep needs
neither beat nor the broker: it repeats lost notifications, releases runs and builds whose owner died, and removes
deleted objects.

A leader may be frozen at any point and wake up after another process has replaced it. It therefore renews its
leadership before each step, and each step is conditional on the rows that it changes. A replaced leader that finishes
its current step does nothing that its successor could not do at the same time.

A cron that acts for a user is authorized in its own greenlet, because user code may take long to answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import gevent
from gevent.event import Event as Signal
from gevent.pool import Pool

from shared import fleet
from shared.access import api_keys, device_logins, organizations, sessions
from shared.crons import firing
from shared.deployments import revision_events, revisions
from shared.errors import RunyardError, Unanswered, Unavailable
from shared.eventlog import events
from shared.figures import folding
from shared.inbox import notices
from shared.infra import broker
from shared.infra.loops import forever
from shared.infra.postgres import connection, driver, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import backlog, claims, end_event, finish, limits, webhooks
from shared.runs.create import Created
from shared.runs.finish import Finish
from shared.settings import Settings
from shared.threads import records
from workers import run_trace
from workers.upkeep.bulk_operations import BulkOperations
from workers.upkeep.questions import Questions
from workers.upkeep.reindexing import Reindexing
from workers.upkeep.removals import Removals
from workers.upkeep.replays import Replays
from workers.upkeep.vector_indexing import VectorIndexing

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
NOTIFICATIONS_A_TICK = 200
POOLS_EVERY = 10
FIGURES_EVERY = 30
FOLDS_A_TICK = 20
SLOW_EVERY = 60  # ticks between removals
PURGE_EVERY = 5  # … of deleted deployments, because callers may wait until they are removed
CLOSE_SECONDS = 2.0  # wait for the current step when the process exits
AUTHORIZED_AT_ONCE = 8
RETRY_SECONDS = 10.0  # pause after an unanswered authorization call
CANDIDATES = 500  # due crons to read: those that wait for a retry must not block the others


class Upkeep:
    """The upkeep loop. After `start()` it runs until `stop()` or `close()`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ticks = 0
        self._wake = Signal()
        self._removals = Removals(settings)
        self._crons = DueCrons(settings)
        self._questions = Questions(settings)
        self._bulk = BulkOperations(settings)
        self._replays = Replays(settings)
        self._reindexing = Reindexing()
        self._vector_indexing = VectorIndexing(settings)
        self._is_stopping = False
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    def stop(self) -> None:
        """Start no further step, and release the leadership."""
        self._is_stopping = True
        self.wake()

    def close(self) -> None:
        """Stop, and wait up to CLOSE_SECONDS for the current step and the release of the leadership.

        The process exits.
        """
        self.stop()
        if self._greenlet is not None:
            self._greenlet.join(CLOSE_SECONDS)

    def _run(self) -> None:
        self._wait()
        forever(self._round, self._wait, what="upkeep", until=lambda: self._is_stopping)
        self._step_down()

    def _wait(self) -> None:
        self._wake.wait(TICK_SECONDS)
        self._wake.clear()

    def _round(self) -> None:
        if self._leads():
            self.tick()

    def _leads(self) -> bool:
        if self._is_stopping:
            return False
        with driver() as conn:
            return fleet.claim_leadership(conn, fleet.UPKEEP, self._settings.worker)

    def _step_down(self) -> None:
        try:
            with driver() as conn:
                fleet.release_leadership(conn, fleet.UPKEEP, self._settings.worker)
        except Unavailable as error:
            log.info("another process leads upkeep when our lease has run out: %s", error)

    def tick(self) -> None:
        """Run one round while this process leads. A failing step does not prevent the others."""
        for step in self._due_steps():
            if not self._leads():
                return
            try:
                step()
            except Unavailable:
                raise
            except RunyardError as error:
                log.warning("%s: %s", step.__name__.strip("_"), error)
            except Exception:  # a defect in one step must not stop the others
                log.exception("%s failed", step.__name__)

    def _due_steps(self) -> list[Callable[[], Any]]:
        steps: list[Callable[[], Any]] = [
            self._abandoned_runs,
            self._notify_again,
            self._crons.fire,
            self._builds,
            self._questions.send_webhooks,
            self._questions.begin_expiries,
            self._bulk.begin,
            self._replays.begin,
        ]
        if self._ticks % SLOW_EVERY == 0:
            steps += [self._organizations, self._reindexing.begin, self._vector_indexing.begin]
        if self._ticks % SLOW_EVERY == 0 or not self._removals.is_done:
            steps += self._removals.steps()
        elif self._ticks % PURGE_EVERY == 0:
            steps.append(self._removals.deleted_deployments)
        if self._ticks % POOLS_EVERY == 0:
            steps += [self._pools, self._statistics, self._clock]
        if self._ticks % FIGURES_EVERY == 0:
            steps.append(self._figures)
        self._ticks += 1
        return steps

    def _notify_again(self) -> None:
        with connection() as conn:
            pools = backlog.pools(conn)
        full = broker.full_pools(pools)
        with connection() as conn:
            waiting = backlog.mark_notified(conn, full_pools=full, limit=NOTIFICATIONS_A_TICK)
            waiting += limits.mark_notified(conn, limit=NOTIFICATIONS_A_TICK)
        for run in waiting:
            if run.pool not in full:
                broker.enqueue_run(run.pool, run.run_id)

    def _pools(self) -> None:
        """Move runs that missed their deployment's move to another pool, and remove dead workers."""
        with connection() as conn:
            backlog.move_stragglers(conn)
            removed = fleet.sweep(conn)
        for worker in removed:
            broker.forget_worker(worker)

    def _figures(self) -> None:
        """Fold ended runs into the figures."""
        for _ in range(FOLDS_A_TICK):
            with connection() as conn:
                if folding.fold(conn) < folding.FOLDED_AT_ONCE:
                    return

    def _statistics(self) -> None:
        with connection() as conn:
            backlog.refresh_statistics(conn)

    def _clock(self) -> None:
        """Shorten leases and pauses between attempts that the database's clock set before it was put back."""
        with connection() as conn:
            seconds = self._settings.lease_seconds
            shortened = claims.shorten_leases(conn, lease_seconds=seconds)
            shortened += revisions.shorten_leases(conn, lease_seconds=seconds)
            shortened += webhooks.shorten_pauses(conn)
            shortened += notices.hasten(conn)
        if shortened:
            log.warning("the database's clock was put back: %d leases and pauses are shortened", shortened)

    def _abandoned_runs(self) -> None:
        with connection() as conn:
            rows = claims.abandoned(conn)
        for row in rows:
            with connection() as conn:
                records.lock(conn, row["deployment_id"], row["thread_id"])
                if claims.release_abandoned(conn, row["run_id"], max_attempts=self._settings.max_attempts):
                    log.warning("run %s: its owner is gone, it goes back to the queue", row["run_id"])
                    continue
            self._end_abandoned(row)

    def _end_abandoned(self, row: Any) -> None:
        """End an abandoned run that has no attempts left, was cancelled or exceeded its time limit."""
        with connection() as conn:
            records.lock(conn, row["deployment_id"], row["thread_id"])
            run = claims.take_over(conn, row["run_id"], owner=self._settings.worker)
            if run is None:
                return
            end = _final(run)
            if run.cancel_requested == "rollback" and not run.temporary:
                following = finish.roll_back(conn, run, error=end_event.cancel_error("rollback"))
            else:
                following = finish.finish_runs(conn, [end], owner=self._settings.worker).get(run.run_id)
        log.warning("run %s: abandoned by its owner, it ended as %s", run.run_id, end.status)
        run_trace.write_run_span(run, end.status)
        payloads = []
        if end.status in (RunStatus.ERROR, RunStatus.TIMEOUT):
            payloads.append(events.payload("error", dumps(end.error).encode()))
        output = dumps({"__error__": end.error} if payloads else None).encode()
        status = "rollback" if run.cancel_requested == "rollback" else str(end.status)
        payloads.append(end_event.last_event(run, status, output))
        events.close(
            run.run_id,
            attempt=run.attempt,
            owner=run.owner,
            floor=run.floor,
            payloads=payloads,
            retention_seconds=self._settings.event_retention_seconds,
        )
        if following is not None:
            broker.enqueue_run(following.pool, following.run_id)

    def _builds(self) -> None:
        with connection() as conn:
            transitions = revisions.expire(conn)
            due = revisions.due(conn)
        revision_events.announce(transitions)
        for revision_id in due:
            broker.enqueue_build(revision_id)

    def _organizations(self) -> None:
        """Purge the data of deleted organizations, and keys and sessions that ended long ago."""
        with connection() as conn:
            transitions = organizations.purge_deleted(conn)
            api_keys.purge_ended(conn)
            sessions.purge_ended(conn, self._settings)
            device_logins.purge_expired(conn)
        revision_events.announce(transitions)


def _final(run: claims.Claimed) -> Finish:
    if run.cancel_requested is not None:
        error = end_event.cancel_error("interrupt")
        return Finish(run, RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, error)
    if run.seconds_left <= 0:
        error = {"error": "TimeoutError", "message": "the run exceeded its time limit"}
        return Finish(run, RunStatus.TIMEOUT, ThreadStatus.ERROR, error)
    message = f"{run.deaths + 1} attempts were lost: the runner or graph host died each time"
    if run.last_death:
        message += f" (last: {run.last_death})"
    return Finish(run, RunStatus.ERROR, ThreadStatus.ERROR, {"error": "RunAbandoned", "message": message})


class DueCrons:
    """Fires due crons."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(AUTHORIZED_AT_ONCE)
        self._authorizing: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}

    def fire(self) -> None:
        """Fire the due crons without authorization, and begin to authorize the others."""
        self.fire_unguarded()
        self.begin_guarded()

    def fire_unguarded(self) -> list[Created]:
        """Fire the due crons without authorization. Returns the created runs."""
        with connection() as conn:
            due = firing.due(conn, guarded=False)
        return [run for cron_id in due if (run := self._fire(cron_id, guarded=False)) is not None]

    def begin_guarded(self) -> None:
        """Begin to authorize and fire the due crons that act for users, while the pool has free slots."""
        now = time.monotonic()
        self._not_before = {id: at for id, at in self._not_before.items() if at > now}
        with connection() as conn:
            due = firing.due(conn, guarded=True, limit=CANDIDATES)
        for cron_id in due:
            if not self._pool.free_count():
                return
            if cron_id not in self._authorizing and cron_id not in self._not_before:
                self._authorizing.add(cron_id)
                self._pool.spawn(self._fire_guarded, cron_id)

    def join(self) -> None:
        """Wait until all crons that are being authorized have fired or not."""
        self._pool.join()

    def _fire(self, cron_id: UUID, *, guarded: bool) -> Created | None:
        """Fire a cron. Skips its run if that raises an unexpected error. Raises Unanswered, Unavailable."""
        try:
            return firing.fire(cron_id, self._settings, guarded=guarded)
        except (Unanswered, Unavailable):
            raise
        except Exception:  # outermost loop over the crons: one that fails must not stop the others
            log.exception("cron %s: skipped this run", cron_id)
            firing.skip(cron_id, guarded=guarded)
            return None

    def _fire_guarded(self, cron_id: UUID) -> None:
        try:
            self._fire(cron_id, guarded=True)
        except (Unanswered, Unavailable) as error:
            log.warning("cron %s: tried again later: %s", cron_id, error)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        finally:
            self._authorizing.discard(cron_id)
