"""One attempt of a run, from claim to end event.

`Execution.execute()` shows the sequence: the graph runs in a graph host, `workers/runner/ending.py` decides how the
attempt ends, the end is committed, and the last event is written. Meanwhile the host sends frames. Events go to the
log, and checkpoints go to the committer without being decoded.

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
from shared.figures.sums import MOST_TOKENS
from shared.infra import broker
from shared.infra.postgres import connection, dumps
from shared.runs import claims, create, end_event, finish
from shared.runs.claims import Claimed, Requeue, Stored
from shared.runs.eligibility import Next
from shared.settings import Settings
from shared.threads.checkpoints import Write
from workers import run_trace
from workers.graph_host import frames
from workers.run_trace import RunTrace
from workers.runner import ending, host_lookups, quarantine
from workers.runner.budgets import Budgets
from workers.runner.committer import Committer
from workers.runner.deployment_log import DeployLog
from workers.runner.ending import Done, Drop, End, Ending, GiveBack, RollBack, Stop
from workers.runner.event_writer import RunLog, Writers
from workers.runner.host import Host
from workers.runner.host_pool import GaveUp, HostPool

log = logging.getLogger(__name__)

CANCEL_SECONDS = 10.0  # how long a host may take to stop a run
HAND_OVER_SECONDS = 3.0  # how long for a hand-over: a process that stops has little time
HOSTS = 3  # hosts in a row that fail to begin a run before that counts as a death
FLUSH_SECONDS = 2.0  # how long a hand-over waits for the run's last events to be sent
LOST_AFTER = 25 / 30  # fraction of the lease duration after which a lease without renewal counts as lost
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0  # between two tries while the database is unreachable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all executions of a runner process share."""

    settings: Settings
    hosts: HostPool
    writers: Writers
    committer: Committer
    deploy_log: DeployLog
    budgets: Budgets


class Execution:
    """One attempt of one run in this runner."""

    def __init__(self, services: Services, run: Claimed, stored: Stored) -> None:
        self.run = run
        self._claimed_at = time.monotonic()
        self.renewed_at = time.monotonic()  # when the last successful renewal was sent
        self._services = services
        self._stored = stored  # the thread's newest checkpoint, in the format of the RUN frame
        self._id = run.run_id.bytes
        self._host: Host | None = None
        self._outcome: AsyncResult = AsyncResult()  # Done, or an error
        self._stop: Stop | None = None
        self._has_begun = False  # a host has sent a frame of this run
        self.trace = run_trace.begin(run)
        self._used = 0  # tokens used so far, as the host reports after each model call
        self.log = RunLog(
            services.writers.of(run.run_id),
            run.run_id,
            attempt=run.attempt,
            owner=run.owner,
            floor=run.floor,
            reserve=self._reserve,
            on_fenced=lambda: self.fence("another attempt writes its events"),
            wake_channel=events.WakeChannel(run.thread_id, thread_stream.channel(run.thread_id)),
        )
        services.writers.watch(self.log)

    # called by other components

    def cancel(self, action: str, reason: str | None) -> None:
        """Stop the graph. Clients request `interrupt` or `rollback`; the runner also uses its own actions."""
        if self._stop is not None:
            if action == "rollback":  # a later rollback replaces the action of a run that is already stopping
                self._stop = Stop(action, reason)
            return
        self._stop = Stop(action, reason)
        if self._host is not None:
            try:
                self._host.send(frames.CANCEL, self._id, dumps({"action": action}).encode())
            except HostDied:
                return  # `host_died` sets the outcome
            patience = HAND_OVER_SECONDS if action == "handover" else CANCEL_SECONDS
            gevent.spawn_later(patience, self._give_up)
        else:
            self._give_up()  # the run is still waiting for a host

    def widen(self, modes: list[str]) -> None:
        """Have the host send events of these stream modes, too: a reader that has just joined asks for them."""
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.WIDEN, self._id, dumps({"stream_mode": modes}).encode())
            except HostDied:
                return

    def _give_up(self) -> None:
        """End the run without its host.

        Called if the run has no host, or if the host did not answer a CANCEL because its event loop is blocked.
        """
        if not self._outcome.ready():
            self._outcome.set(Done())

    def fence(self, why: str) -> None:
        if not self._outcome.ready():
            self._outcome.set_exception(Fenced(why))

    def written(self, ask: int) -> None:
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.REPLY, self._id, frames.pack([dumps({"ask": ask}).encode()]))
            except HostDied:
                return

    def unwritable(self, error: Exception) -> None:
        if not self._outcome.ready():
            self._outcome.set_exception(RunyardError(f"a checkpoint cannot be stored: {error}"))

    def host_died(self, error: HostError) -> None:
        if not self._outcome.ready():
            self._outcome.set_exception(error)

    def wait_until_drained(self) -> None:
        self.log.drained.wait()

    def received(self, kind: int, body: bytes) -> None:
        if self._outcome.ready():
            return
        self._has_begun = True
        if kind == frames.EVENT:
            self.log.add(body)
        elif kind in (frames.CHECKPOINT, frames.WRITES):
            parts = frames.unpack(body)
            head = orjson.loads(parts[0])
            write = Write.of(self.run, kind, head, parts[1:])
            self._services.committer.store(self, write, head["ask"])
        elif kind == frames.ASK:
            gevent.spawn(self._answer, frames.unpack(body))
        elif kind == frames.NODE and self.trace is not None:
            self.trace.node(body)
        elif kind == frames.USED:
            self._count(min(int(body), MOST_TOKENS))
        elif kind == frames.DONE:
            self._services.deploy_log.hurry(self.run.run_id)  # beside the commit of the end, not after it
            self._outcome.set(Done.of(frames.unpack(body)))

    def _count(self, used: int) -> None:
        """Record that the run has used `used` tokens in total, and stop it if that exceeds a budget."""
        tokens, self._used = max(used - self._used, 0), max(used, self._used)
        budgets = self._services.budgets
        self._stop_over(budgets.over(self.run, used))
        if tokens and budgets.counts_days_of(self.run):
            gevent.spawn(lambda: self._stop_over(budgets.spend(self.run, tokens)))

    def _stop_over(self, reason: str | None) -> None:
        if reason is not None and not self._outcome.ready():
            self.cancel(ending.BUDGET, reason)

    def _answer(self, parts: list[bytes]) -> None:
        try:
            ask = orjson.loads(parts[0])
            answer = self._tried(lambda: host_lookups.answer_run(self.run, ask))
        except Unavailable as error:
            self.unwritable(error)
            return
        except Fenced as error:
            self.fence(error.message)
            return
        except Exception as error:  # nothing else would report it, and the graph would wait forever
            log.warning("run %s: what its graph asks has no answer", self.run.run_id, exc_info=True)
            if not self._outcome.ready():
                self._outcome.set_exception(RunyardError(f"what the graph asks has no answer: {error}"))
            return
        head = dumps({"ask": ask["ask"]}).encode()
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.REPLY, self._id, frames.pack([head, *answer]))
            except HostDied:
                return

    def _tried(self, step: Callable[[], T]) -> T:
        """Call `step` and retry while the database is unreachable and the lease may still be valid.

        `step` must be safe to repeat. Raises Unavailable once the lease counts as lost.
        """
        pause = PAUSE_SECONDS
        while True:
            try:
                return step()
            except Unavailable:
                if time.monotonic() - self.renewed_at > self._services.settings.lease_seconds * LOST_AFTER:
                    raise
            gevent.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _reserve(self, upto: int) -> bool:
        try:
            with connection() as conn:
                reserved = claims.reserve(
                    conn, self.run.run_id, owner=self.run.owner, attempt=self.run.attempt, upto=upto
                )
        except Unavailable:
            return False
        if not reserved:
            self.fence("no event numbers are reserved for it any more")
        return reserved

    # from start to end

    def execute(self) -> Next | None:
        """Run the graph and record how it ended. Returns the thread's run that may start next.

        Raises nothing, except for bugs in the runner.
        """
        run = self.run
        self.log.add_first(events.payload("metadata", create.attempt_metadata(run.run_id, run.attempt)))
        outcome: Done | RunyardError
        try:
            outcome = self._in_host()
        except RunyardError as error:
            outcome = error
        try:
            return self._carried_out(outcome)
        finally:
            if self.trace is not None:
                self.trace.end()

    def _carried_out(self, outcome: Done | RunyardError) -> Next | None:
        run, settings = self.run, self._services.settings
        return self._carry_out(
            ending.of(
                run,
                outcome,
                self._stop,
                max_attempts=settings.max_attempts,
                timeout_seconds=settings.run_timeout_seconds,
            )
        )

    def _carry_out(self, how: Ending) -> Next | None:
        match how:
            case End():
                return self._end(how)
            case RollBack():
                return self._roll_back(how)
            case GiveBack():
                return self._give_back(how)
            case Drop():
                return self._drop(how.reason)

    def _in_host(self) -> Done:
        """Run the graph in a host and return what the host reports. An empty Done means a stopped run without answer.

        Raises Fenced, HostError, or another RunyardError that ends the attempt.
        """
        deadline = gevent.spawn_later(max(self.run.seconds_left, 0), self.cancel, "timeout", None)
        try:
            self._stop_over(self._services.budgets.refusal(self.run))
            order = self._order()
            for _ in range(HOSTS):
                try:
                    return self._in_some_host(order)
                except NotBegun as error:
                    log.warning("run %s: its host %s, it goes to another", self.run.run_id, error.message)
                    if self._stop is not None:
                        return Done()
                    if self._has_begun:
                        raise
                    self._outcome = AsyncResult()
            raise HostUnusable(f"{HOSTS} graph hosts in a row did not begin the run")
        finally:
            deadline.kill()

    def _in_some_host(self, order: bytes) -> Done:
        run = self.run
        group = quarantine.group(run.run_id, run.quarantine)
        try:
            host = self._services.hosts.acquire(run.revision_id, group, depth=run.depth, unless=self._outcome)
        except GaveUp:
            return cast("Done", self._outcome.get())
        self._host = host
        try:
            host.enter(self._id, self, order)
            return cast("Done", self._outcome.get())
        finally:
            self._host = None
            self._leave(host)

    def _leave(self, host: Host) -> None:
        done = self._outcome.value
        if not isinstance(done, Done) or done.status is None:  # the host may still be working on the run
            try:
                host.send(frames.CANCEL, self._id, b'{"action":"interrupt"}')
            except HostDied:
                pass  # the host has ended, and the run's graph with it
        host.leave(self._id)

    def _order(self) -> bytes:
        """Return the body of the RUN frame."""
        run = self.run
        with_checkpoint = self._stored is not None
        spec = {
            **run.kwargs,
            "run_id": str(run.run_id),
            "thread_id": str(run.thread_id),
            "graph_id": run.graph_id,
            "assistant_id": str(run.assistant_id),
            "attempt": run.attempt,
            "depth": run.depth,
            "metadata": run.metadata,
            "fresh": not with_checkpoint,
            "resume_from_checkpoint": run.has_checkpoint,
        }
        if self.trace is not None:
            spec = _traced(spec, self.trace)
        return frames.pack([dumps(spec).encode(), run.input, *(self._stored or ())])

    def _end(self, end: End) -> Next | None:
        if end.is_announced:
            self.log.add(events.payload("error", dumps(end.error).encode()))
        try:
            following = self._services.committer.finish(self, end.finish(self.run, end_seq=self.log.next_seq))
        except Fenced as fenced:
            return self._drop(fenced)
        except RunyardError as refusal:
            if end.done.values is None:
                raise  # not caused by the graph's values: upkeep ends the run
            return self._end(ending.unstorable(refusal))
        self._note_end(end.status, end.error)
        self.log.end(end.last_event(self.run))
        return following

    def _note_end(self, status: str, error: Mapping[str, Any] | None = None) -> None:
        if self.trace is not None:
            why = None if error is None else f"{error.get('error')}: {error.get('message')}"
            if why is not None:
                self.trace.failed(why)
            run_trace.ended(self.run, status, why)
        # The lines are stored before the end event is written: a client that has read it finds the run's lines.
        self._services.deploy_log.settle(self.run.run_id)
        self._services.deploy_log.add_end(self.run, status, time.monotonic() - self._claimed_at)

    def _roll_back(self, back: RollBack) -> Next | None:
        def roll_back() -> Next | None:
            with connection() as conn:
                return finish.roll_back(
                    conn,
                    self.run,
                    error=back.error,
                    usage=back.done.usage,
                    first_token_ago=back.done.first_token_ago,
                )

        try:
            following = self._tried(roll_back)
        except (Fenced, Unavailable) as refused:
            # If the database is unreachable, upkeep rolls the run back after its lease has expired.
            return self._drop(refused)
        self._note_end("rolled back")
        self.log.end(end_event.last_event(self.run, end_event.ROLLBACK, back.done.answer or b"null"))
        return following

    def _give_back(self, back: GiveBack) -> Next | None:
        """Return the run to the queue after everything this attempt wrote is stored.

        A run for which a cancellation has been requested ends here instead.
        """
        run, services = self.run, self._services
        if self.trace is not None:
            self.trace.failed(back.death or claims.HANDED_OVER)
        if back.why is not None:
            log.warning("run %s: %s, it goes back to the queue", run.run_id, back.why)
        if back.level is not None and back.level < quarantine.ALONE:  # the host starts while the runs requeue
            services.hosts.expect(run.revision_id, quarantine.group(run.run_id, back.level))
        try:
            wish = services.committer.settle(self)
            if wish is not None:
                timeout_seconds = services.settings.run_timeout_seconds
                return self._carry_out(ending.stopped(run, Stop(*wish), timeout_seconds=timeout_seconds))
            self.log.hand_over(FLUSH_SECONDS)
            returned = Requeue(run, back.delay_seconds, back.death, back.refund, back.level)
            given = services.committer.give_back(self, returned)
        except RunyardError as error:
            log.warning("run %s: not given back, its lease will run out: %s", run.run_id, error)
            self.log.abandon()
            return None
        if given:
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
        self.log.abandon()
        if self.trace is not None:
            self.trace.failed(reason.message)
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


def _traced(spec: dict[str, Any], trace: RunTrace) -> dict[str, Any]:
    """Return the spec of a traced run: nodes become spans, and the configuration carries the trace context."""
    config = spec.get("config") or {}
    configurable = {**(config.get("configurable") or {}), **trace.place.entries}
    return {**spec, "traced": True, "config": {**config, "configurable": configurable}}
