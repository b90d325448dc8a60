"""Finds what was left behind and sets it going again; decides nothing a row does not say.

A loop in every runner and builder, one leader at a time by an advisory lock in PostgreSQL. It needs
neither beat nor the broker: doorbells that were lost are rung again, runs and builds whose owner died are
taken over, what was deleted is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event as Signal
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from shared import (
    api_keys,
    claims,
    control,
    crons,
    deployments,
    events,
    expiry,
    finishing,
    key_limits,
    limits,
    organizations,
    queues,
    revision_log,
    run_logs,
    store,
    threads,
    turns,
    workers,
)
from shared.database import connection, dumps, engine, translated
from shared.errors import RunyardError, Unavailable
from shared.finishing import Finish
from shared.models import RunStatus, ThreadStatus
from shared.settings import Settings
from workers.removals import Removals

log = logging.getLogger(__name__)

LOCK = 7_201_942  # the leader's advisory lock: any number nobody else uses in this database
TICK_SECONDS = 1.0
RINGS_A_TICK = 200
POOLS_EVERY = 10
SLOW_EVERY = 60  # ticks between removals
PURGE_EVERY = 5  # … of deleted deployments, whose callers may wait to see them gone


class Upkeep:
    """The loop; `start()` and forget."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ticks = 0
        self._bell = Signal()
        self._removals = Removals(settings)

    def start(self) -> None:
        gevent.spawn(self._run)

    def wake(self) -> None:
        """Begin the next round now."""
        self._bell.set()

    def _pause(self) -> None:
        self._bell.wait(TICK_SECONDS)
        self._bell.clear()

    def _run(self) -> None:
        while True:
            self._pause()
            try:
                self._lead()
            except (Unavailable, DBAPIError) as error:
                log.warning("upkeep waits for the database: %s", error)
            except Exception:  # the outermost loop: what is left behind must be found
                log.exception("upkeep failed, going on")

    def _lead(self) -> None:
        """Work as long as the lock is ours; return when another process leads."""
        with translated(), engine().connect() as conn:
            if not conn.execute(text(f"SELECT pg_try_advisory_lock({LOCK})")).scalar_one():
                return
            conn.commit()
            try:
                while True:
                    conn.execute(text("SELECT 1"))  # the lock lives as long as this connection
                    conn.commit()
                    self.tick()
                    self._pause()
            finally:
                if not conn.closed and not conn.invalidated:
                    conn.execute(text(f"SELECT pg_advisory_unlock({LOCK})"))
                    conn.commit()

    def tick(self) -> None:
        """One round; a step that fails does not keep the others from running."""
        steps: list[Callable[[], Any]] = [self._abandoned_runs, self._unheard_runs, self._crons, self._builds]
        if self._ticks % SLOW_EVERY == 0:
            steps += [self._organizations, self._expired]
        if self._ticks % SLOW_EVERY == 0 or not self._removals.is_done:
            steps += self._removals.steps()
        elif self._ticks % PURGE_EVERY == 0:
            steps.append(self._removals.deleted_deployments)
        if self._ticks % POOLS_EVERY == 0:
            steps += [self._pools, self._statistics]
        self._ticks += 1
        for step in steps:
            try:
                step()
            except Unavailable:
                raise
            except RunyardError as error:
                log.warning("%s: %s", step.__name__.strip("_"), error)
            except Exception:  # one step's bug must not stop the others
                log.exception("%s failed", step.__name__)

    def _unheard_runs(self) -> None:
        with connection() as conn:
            pools = turns.pools(conn)
        full = queues.full_pools(pools)
        with connection() as conn:
            waiting = turns.unheard(conn, full_pools=full, limit=RINGS_A_TICK)
            waiting += limits.startable(conn, limit=RINGS_A_TICK)
            waiting += key_limits.ring(conn, limit=RINGS_A_TICK)
        for run in waiting:
            if run.pool not in full:
                queues.enqueue_run(run.pool, run.run_id)

    def _pools(self) -> None:
        """Runs that missed their deployment's move to another pool, and workers that ended without a word."""
        with connection() as conn:
            limits.move_stragglers(conn)
            gone = workers.sweep(conn)
        for worker in gone:
            queues.forget_worker(worker)

    def _statistics(self) -> None:
        with connection() as conn:
            turns.refresh_statistics(conn)

    def _abandoned_runs(self) -> None:
        with connection() as conn:
            rows = claims.abandoned(conn)
        for row in rows:
            with connection() as conn:
                threads.lock(conn, row["deployment_id"], row["thread_id"])
                if claims.release_abandoned(conn, row["run_id"], max_attempts=self._settings.max_attempts):
                    log.warning("run %s: its owner is gone, it goes back to the queue", row["run_id"])
                    continue
            self._end_abandoned(row)

    def _end_abandoned(self, row: Any) -> None:
        """A run that nobody owns and that may not be tried again."""
        with connection() as conn:
            threads.lock(conn, row["deployment_id"], row["thread_id"])
            run = claims.take_over(conn, row["run_id"], owner=self._settings.worker)
            if run is None:
                return
            end = _final(run)
            if run.cancel_requested == "rollback" and not run.temporary:
                error = {"error": "UserRollback", "message": "rollback requested"}
                following = finishing.roll_back(conn, run, error=error)
            else:
                following = finishing.finish(conn, [end], owner=self._settings.worker).get(run.run_id)
        log.warning("run %s: abandoned by its owner, it ended as %s", run.run_id, end.status)
        payloads = []
        if end.status in (RunStatus.ERROR, RunStatus.TIMEOUT):
            payloads.append(events.payload("error", dumps(end.error).encode()))
        output = dumps({"__error__": end.error} if payloads else None).encode()
        status = "rollback" if run.cancel_requested == "rollback" else str(end.status)
        payloads.append(run_logs.last_event(run, status, output))
        events.close(
            run.run_id,
            attempt=run.attempt,
            owner=run.owner,
            floor=run.floor,
            payloads=payloads,
            retention_seconds=self._settings.event_retention_seconds,
        )
        if following is not None:
            queues.enqueue_run(following.pool, following.run_id)

    def _crons(self) -> None:
        for fired in crons.fire_due(max_pending=self._settings.max_pending_per_thread):
            control.tell(fired.created.displaced, self._settings.event_retention_seconds)
            queues.enqueue_run(fired.created.pool, fired.created.run_id)

    def _builds(self) -> None:
        with connection() as conn:
            moved = deployments.expire_builds(conn)
            due = deployments.due_builds(conn)
        revision_log.announce(moved)
        for revision_id in due:
            queues.enqueue_build(revision_id)

    def _expired(self) -> None:
        """Threads and store items whose time is over."""
        with connection() as conn:
            expiry.sweep(conn)
        with connection() as conn:
            store.sweep(conn)

    def _organizations(self) -> None:
        """What is left of deleted organizations, and keys that ended long ago."""
        with connection() as conn:
            moved = organizations.purge_deleted(conn)
            api_keys.purge_ended(conn)
        revision_log.announce(moved)


def _final(run: claims.Claimed) -> Finish:
    if run.cancel_requested is not None:
        error = {"error": "UserInterrupt", "message": "interrupt requested"}
        return Finish(run, RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, error)
    if run.seconds_left <= 0:
        error = {"error": "TimeoutError", "message": "the run exceeded its time limit"}
        return Finish(run, RunStatus.TIMEOUT, ThreadStatus.ERROR, error)
    message = f"{run.deaths + 1} attempts were lost: the runner or graph host died each time"
    if run.last_death:
        message += f" (last: {run.last_death})"
    return Finish(run, RunStatus.ERROR, ThreadStatus.ERROR, {"error": "RunAbandoned", "message": message})
