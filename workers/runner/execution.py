"""One attempt of a run, from claim to end event.

`Execution.execute()` shows the sequence: the graph runs in a graph host (`HostedRun`), `workers/runner/ending.py` decides
how the attempt ends, the end is committed, and the last event is written.

Frames flow from the host to the run's log, or to the committer, which stores checkpoints without decoding them. Answers
flow back. A host that never began the run is replaced by another.

An attempt whose lease is lost is dropped at once, and its later writes are refused (conditions in
`shared/runs/claims.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import gevent
import orjson
from gevent.event import AsyncResult

from shared import thread_stream
from shared.errors import Fenced, HostDied, HostError, HostUnusable, NotBegun, RunyardError, Unavailable
from shared.eventlog import events
from shared.infra import broker
from shared.infra.postgres import connection, dumps
from shared.replays import cases
from shared.runs import claims, create, end_event, finish
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Requeue, Stored
from shared.settings import Settings
from shared.threads.checkpoints import Write
from workers import run_trace
from workers.graph_host import frames
from workers.run_trace import RunTrace
from workers.runner import ending, host_requests, quarantine
from workers.runner.committer import Committer
from workers.runner.deployment_log import DeployLog
from workers.runner.ending import AttemptTimes, Drop, End, Ending, GiveBack, HostOutcome, RollBack, Stop
from workers.runner.event_writer import RunLog, Writers
from workers.runner.host import Host
from workers.runner.host_pool import AcquireCancelled, HostPool
from workers.runner.spending import Spending

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # how long a hand-over waits for the run's last events to be sent
CANCEL_SECONDS = 10.0  # how long a host may take to stop a run
HAND_OVER_SECONDS = 3.0  # … for a hand-over: the process may be shutting down
MAX_HOSTS = 3  # hosts in a row that fail to begin a run before that counts as a death
LOST_AFTER = 25 / 30  # fraction of the lease duration after which a lease without renewal counts as lost
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0  # between two tries while the database is unreachable

T = TypeVar("T")


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
            self._keep_report(end.outcome)
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

    def _keep_report(self, outcome: HostOutcome) -> None:
        """Store the report of a replayed run, before its end is visible. Raises Unavailable if the lease is lost."""
        if outcome.report is None or not self.run.kwargs.get("replay"):
            return
        report = outcome.report

        def keep() -> None:
            with connection() as conn:
                if claims.hold(conn, self.run):
                    cases.keep_report(conn, self.run.run_id, report)

        self.hosted.lease.retry(keep)

    def _record_end(self, status: str, error: Mapping[str, Any] | None = None) -> None:
        """Record the end in the trace and in the deployment's log."""
        if self._trace is not None:
            reason = None if error is None else f"{error.get('error')}: {error.get('message')}"
            if reason is not None:
                self._trace.failed(reason)
            run_trace.write_run_span(self.run, status, reason)
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
                    node_usage=back.outcome.node_usage,
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
            kind = quarantine.kind_of(run.kwargs.get("replay"))
            services.hosts.prestart(run.revision_id, quarantine.group(run.run_id, back.level, kind))
        try:
            cancellation = services.committer.settle(self.hosted)
            if cancellation is not None:
                stop, timeout_seconds = Stop(*cancellation), services.settings.run_timeout_seconds
                return self._commit(ending.stopped(run, stop, timeout_seconds=timeout_seconds))
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


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all executions of a runner process share."""

    settings: Settings
    hosts: HostPool
    writers: Writers
    committer: Committer
    deploy_log: DeployLog
    spending: Spending


class Lease:
    """The lease on a run, as far as this process knows."""

    def __init__(self, seconds: float) -> None:
        self.renewed_at = time.monotonic()  # when the last successful renewal was sent
        self._lost_after = seconds * LOST_AFTER

    @property
    def is_lost(self) -> bool:
        """Whether it was not renewed in time: upkeep may soon return the run to the queue."""
        return time.monotonic() - self.renewed_at > self._lost_after

    def retry(self, query: Callable[[], T]) -> T:
        """Run a query; retry while the database is unavailable and the lease may still hold.

        `query` must be safe to repeat. Raises Unavailable after the lease is lost.
        """
        pause = PAUSE_SECONDS
        while True:
            try:
                return query()
            except Unavailable:
                if self.is_lost:
                    raise
            gevent.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)


class HostedRun:
    """The run as its host, its log and the committer know it: an occupant, a log owner and a commit owner."""

    def __init__(self, services: Services, run: Claimed, stored: Stored, trace: RunTrace | None) -> None:
        self.run = run
        self.lease = Lease(services.settings.lease_seconds)
        self.stop: Stop | None = None
        self.times = AttemptTimes(time.monotonic())
        self.log = RunLog(
            services.writers.of(run.run_id),
            run.run_id,
            self,
            attempt=run.attempt,
            worker=run.owner,
            floor=run.floor,
            wake_channel=events.WakeChannel(run.thread_id, thread_stream.channel(run.thread_id)),
        )
        services.writers.watch(self.log)
        self._services = services
        self._stored = stored  # the thread's newest checkpoint, in the format of the RUN frame
        self._trace = trace
        self._id = run.run_id.bytes
        self._host: Host | None = None
        self._outcome: AsyncResult = AsyncResult()  # HostOutcome or RunyardError, set once for each host
        self._fenced: Fenced | None = None
        self._has_begun = False  # a host has sent a frame of this run
        self._spending = services.spending.of(run)

    def execute(self) -> HostOutcome | RunyardError:
        """Run the graph in a host, and in another one if it never began there.

        Returns the host's outcome, or the error that ended the attempt. A run that was stopped without an answer of the
        host has an empty outcome.
        """
        deadline = gevent.spawn_later(max(self.run.seconds_left, 0), self.cancel, "timeout", None)
        try:
            self._stop_over_budget(self._spending.refusal())
            frame = self._run_frame()
            for _ in range(MAX_HOSTS):
                outcome = self._execute_in_host(frame)
                if not isinstance(outcome, NotBegun):
                    return outcome
                if self.stop is not None:
                    return HostOutcome()
                if self._has_begun:
                    return outcome
                if self._fenced is not None:  # while the run was leaving its host
                    return self._fenced
                log.warning("run %s: its host %s, it goes to another", self.run.run_id, outcome.message)
                self._outcome = AsyncResult()
            return HostUnusable(f"{MAX_HOSTS} graph hosts in a row did not begin the run")
        except RunyardError as error:
            return error
        finally:
            deadline.kill()

    def _execute_in_host(self, frame: bytes) -> HostOutcome | RunyardError:
        """Run the graph in one host. Raises HostError if no host can be had, or the host has just ended."""
        run = self.run
        group = quarantine.group(run.run_id, run.quarantine, quarantine.kind_of(run.kwargs.get("replay")))
        self.times.host_requested_at = time.monotonic()
        try:
            host = self._services.hosts.acquire(run.revision_id, group, depth=run.depth, unless=self._outcome)
        except AcquireCancelled:
            return cast("HostOutcome | RunyardError", self._outcome.get())
        self._host = host
        try:
            host.enter(self._id, self, frame)
            return cast("HostOutcome | RunyardError", self._outcome.get())
        finally:
            self._host = None
            self._leave(host)

    def _leave(self, host: Host) -> None:
        outcome = self._outcome.value
        if not isinstance(outcome, HostOutcome) or outcome.status is None:
            # The host may still be working on the run.
            try:
                host.send(frames.CANCEL, self._id, b'{"action":"interrupt"}')
            except HostDied:
                pass  # the host has ended, and the run's graph with it
        host.leave(self._id)

    def _run_frame(self) -> bytes:
        """Return the body of the RUN frame."""
        run = self.run
        spec = {
            **run.kwargs,
            "joined": run.joined,
            "run_id": str(run.run_id),
            "thread_id": str(run.thread_id),
            "graph_id": run.graph_id,
            "assistant_id": str(run.assistant_id),
            "attempt": run.attempt,
            "depth": run.depth,
            "metadata": run.metadata,
            "fresh": self._stored is None,
            "resume_from_checkpoint": run.has_checkpoint,
        }
        if self._trace is not None:
            spec = _traced(spec, self._trace)
        return frames.pack([dumps(spec).encode(), run.input, *(self._stored or ())])

    # requests of the runner

    def cancel(self, action: str, reason: str | None) -> None:
        """Stop the graph. Clients request `interrupt` or `rollback`; the runner also uses its own actions."""
        if self.stop is not None:
            if action == "rollback":  # a later rollback replaces the action of a run that is already stopping
                self.stop = Stop(action, reason)
            return
        self.stop = Stop(action, reason)
        if self._host is None:
            self._give_up()  # the run is still waiting for a host
            return
        try:
            self._host.send(frames.CANCEL, self._id, dumps({"action": action}).encode())
        except HostDied:
            return  # `host_died` sets the outcome
        gevent.spawn_later(HAND_OVER_SECONDS if action == "handover" else CANCEL_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """End the run without its host.

        Called if the run has no host, or if the host did not answer a CANCEL because its event loop is blocked.
        """
        self._end(HostOutcome())

    def widen(self, modes: list[str]) -> None:
        """Have the host send events of these stream modes, too: a reader that has just joined asks for them."""
        self._send(frames.WIDEN, dumps({"stream_mode": modes}).encode())

    def fence(self, reason: str) -> None:
        """Drop the attempt: another one may own the run."""
        self._fenced = self._fenced or Fenced(reason)
        self._end(self._fenced)

    def _end(self, outcome: HostOutcome | RunyardError) -> None:
        if not self._outcome.ready():
            self._outcome.set(outcome)

    # frames of the host

    def received(self, kind: int, body: bytes) -> None:
        if self._outcome.ready():
            return
        self._has_begun = True
        if kind == frames.EVENT:
            self.log.add(body)
        elif kind in (frames.CHECKPOINT, frames.WRITES):
            parts = frames.unpack(body)
            head = orjson.loads(parts[0])
            write = Write.of(self.run, head, parts[1:])
            self._services.committer.store(self, write, head["ask"])
        elif kind == frames.ASK:
            gevent.spawn(self._answer, frames.unpack(body))
        elif kind == frames.NODE and self._trace is not None:
            self._trace.node(body)
        elif kind == frames.CALL and self._trace is not None:
            self._trace.call(body)
        elif kind == frames.USED:
            tokens, _, models = body.partition(b" ")
            if self._spending.is_limited:
                self._count_usage(int(tokens), orjson.loads(models))
        elif kind == frames.DONE:
            self._services.deploy_log.hurry(self.run.run_id)  # stored while the end is being committed
            self._outcome.set(HostOutcome.read(frames.unpack(body), self.times))

    def host_died(self, error: HostError) -> None:
        self._end(error)

    def wait_until_drained(self) -> None:
        self.log.drained.wait()

    def _count_usage(self, tokens: int, models: dict[str, Any]) -> None:
        """Record what the run has used in total, and stop it if that exceeds a budget."""
        self._stop_over_budget(self._spending.over(tokens, models))
        gevent.spawn(lambda: self._stop_over_budget(self._spending.count(tokens, models)))

    def _stop_over_budget(self, reason: str | None) -> None:
        if reason is not None and not self._outcome.ready():
            self.cancel(ending.BUDGET, reason)

    def _answer(self, parts: list[bytes]) -> None:
        """Answer a question of the graph: a checkpoint to read, or store operations."""
        try:
            ask = orjson.loads(parts[0])
            answer = self.lease.retry(lambda: host_requests.answer_run(self.run, ask))
        except (Fenced, Unavailable) as error:  # the lease is lost
            self.fence(error.message)
        except Exception as error:  # outermost frame of the greenlet: the graph would wait forever
            log.warning("run %s: a lookup of its graph failed", self.run.run_id, exc_info=True)
            self._end(RunyardError(f"a lookup of the graph failed: {error}"))
        else:
            self._reply(ask["ask"], answer)

    def _reply(self, ask: int, parts: list[bytes]) -> None:
        self._send(frames.REPLY, frames.pack([dumps({"ask": ask}).encode(), *parts]))

    def _send(self, kind: int, body: bytes) -> None:
        """Send a frame to the run's host, if it has one. A host that has ended needs none."""
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(kind, self._id, body)
            except HostDied:
                return

    # the log and the committer

    def reserve(self, upto: int) -> bool:
        try:
            with connection() as conn:
                is_reserved = claims.reserve(
                    conn, self.run.run_id, owner=self.run.owner, attempt=self.run.attempt, upto=upto
                )
        except Unavailable:
            return False
        if not is_reserved:
            self.fence("no event numbers are reserved for it any more")
        return is_reserved

    def stored(self, ask: int) -> None:
        self._reply(ask, [])

    def refuse(self, reason: str) -> None:
        self._end(RunyardError(f"a checkpoint cannot be stored: {reason}"))


def _traced(spec: dict[str, Any], trace: RunTrace) -> dict[str, Any]:
    """Return the spec of a traced run: nodes and calls become spans, and the configuration has the trace context."""
    config = spec.get("config") or {}
    configurable = {**(config.get("configurable") or {}), **trace.context.entries}
    return {**spec, "traced": trace.is_sampled, "config": {**config, "configurable": configurable}}
