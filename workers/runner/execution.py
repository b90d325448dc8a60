"""One attempt of a run, from claim to end event.

`Execution.execute()` shows the sequence: the graph runs in a graph host (`workers/runner/hosted_run.py`),
`workers/runner/ending.py` decides how the attempt ends, the end is committed, and the last event is written.

An attempt whose lease is lost is dropped at once, and its later writes are refused (conditions in
`shared/runs/claims.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import gevent

from shared.errors import Fenced, RunyardError, Unavailable
from shared.eventlog import events
from shared.infra import broker
from shared.infra.postgres import connection, dumps
from shared.runs import claims, create, end_event, finish
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Requeue, Stored
from workers import run_trace
from workers.runner import ending, quarantine
from workers.runner.ending import Drop, End, Ending, GiveBack, RollBack, Stop
from workers.runner.hosted_run import HostedRun, Services

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # how long a hand-over waits for the run's last events to be sent


class Execution:
    """One attempt of one run in this runner: run the graph in a host, decide how the attempt ended, commit the end."""

    def __init__(self, services: Services, run: Claimed, stored: Stored) -> None:
        self.run = run
        self._trace = run_trace.begin(run)
        self.hosted = HostedRun(services, run, stored, self._trace)
        self._log = self.hosted.log
        self._services = services
        self._claimed_at = time.monotonic()

    def execute(self) -> NextRun | None:
        """Run the graph and record how it ended. Returns the thread's run that may start next.

        Raises nothing, except for bugs in the runner.
        """
        run, settings = self.run, self._services.settings
        metadata = create.attempt_metadata(run.run_id, run.attempt)
        self._log.add_first(events.payload("metadata", metadata))
        try:
            outcome = self.hosted.execute()
            return self._commit(
                ending.decide(
                    run,
                    outcome,
                    self.hosted.stop,
                    max_attempts=settings.max_attempts,
                    timeout_seconds=settings.run_timeout_seconds,
                )
            )
        finally:
            if self._trace is not None:
                self._trace.end()

    def _commit(self, decision: Ending) -> NextRun | None:
        match decision:
            case End():
                return self._end(decision)
            case RollBack():
                return self._roll_back(decision)
            case GiveBack():
                return self._give_back(decision)
            case Drop():
                return self._drop(decision.reason)

    def _end(self, end: End) -> NextRun | None:
        if end.is_announced:
            self._log.add(events.payload("error", dumps(end.error).encode()))
        try:
            following = self._services.committer.finish(
                self.hosted, end.finish(self.run, end_seq=self._log.next_seq)
            )
        except Fenced as fenced:
            return self._drop(fenced)
        except RunyardError as refusal:
            if end.outcome.values is None:
                raise  # not caused by the graph's values: upkeep ends the run
            return self._end(ending.unstorable(refusal))
        self._record_end(end.status, end.error)
        self._log.end(end.last_event(self.run))
        return following

    def _record_end(self, status: str, error: Mapping[str, Any] | None = None) -> None:
        """Record the end in the trace and in the deployment's log."""
        if self._trace is not None:
            reason = None if error is None else f"{error.get('error')}: {error.get('message')}"
            if reason is not None:
                self._trace.failed(reason)
            run_trace.ended(self.run, status, reason)
        # The lines are stored before the end event is written: a client that has read it finds the run's lines.
        self._services.deploy_log.settle(self.run.run_id)
        self._services.deploy_log.add_end(self.run, status, time.monotonic() - self._claimed_at)

    def _roll_back(self, back: RollBack) -> NextRun | None:
        def roll_back() -> NextRun | None:
            with connection() as conn:
                return finish.roll_back(
                    conn,
                    self.run,
                    error=back.error,
                    usage=back.outcome.usage,
                    first_token_ago=back.outcome.first_token_ago,
                )

        try:
            following = self.hosted.lease.retry(roll_back)
        except (Fenced, Unavailable) as refusal:
            # If the database is unreachable, upkeep rolls the run back after its lease has expired.
            return self._drop(refusal)
        self._record_end("rolled back")
        self._log.end(end_event.last_event(self.run, end_event.ROLLBACK, back.outcome.answer or b"null"))
        return following

    def _give_back(self, back: GiveBack) -> NextRun | None:
        """Return the run to the queue after everything this attempt wrote is stored.

        A run for which a cancellation has been requested ends here instead.
        """
        run, services = self.run, self._services
        if self._trace is not None:
            self._trace.failed(back.death or claims.HANDED_OVER)
        if back.why is not None:
            log.warning("run %s: %s, it goes back to the queue", run.run_id, back.why)
        if back.level is not None and back.level < quarantine.ALONE:  # the host starts while the runs requeue
            services.hosts.prestart(run.revision_id, quarantine.group(run.run_id, back.level))
        try:
            request = services.committer.settle(self.hosted)
            if request is not None:
                timeout_seconds = services.settings.run_timeout_seconds
                return self._commit(ending.stopped(run, Stop(*request), timeout_seconds=timeout_seconds))
            self._log.hand_over(FLUSH_SECONDS)
            requeue = Requeue(run, back.delay_seconds, back.death, back.refund, back.level)
            is_requeued = services.committer.give_back(self.hosted, requeue)
        except RunyardError as error:
            log.warning("run %s: not given back, its lease will run out: %s", run.run_id, error)
            self._log.abandon()
            return None
        if is_requeued:
            self._notify_after(back.delay_seconds)
        return None

    def _notify_after(self, seconds: float) -> None:
        pool, run_id = self._services.settings.pool, self.run.run_id
        if seconds:
            gevent.spawn_later(seconds, broker.enqueue_run, pool, run_id)
        else:
            broker.enqueue_run(pool, run_id)

    def _drop(self, reason: RunyardError) -> None:
        run = self.run
        self._log.abandon()
        if self._trace is not None:
            self._trace.failed(reason.message)
        if isinstance(reason, Fenced) and self._is_deleted():
            log.info("run %s: deleted, attempt %d is dropped", run.run_id, run.attempt)
            return
        log.warning("run %s: dropped attempt %d: %s", run.run_id, run.attempt, reason.message)

    def _is_deleted(self) -> bool:
        try:
            with connection() as conn:
                return claims.is_deleted(conn, self.run.run_id)
        except Unavailable:
            return False
