"""One run, from claim to end event.

`Execution.run()` is the story: claimed → in a graph host → ended, committed, told. Frames of the host
come in between: events go to the log, checkpoints to the committer, unopened. A run whose lease is lost
is dropped at once; whatever it still sends is refused (`shared/runs/create.py` has the conditions).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gevent
import orjson
from gevent.event import AsyncResult

from shared import thread_stream
from shared.errors import Fenced, HostDied, HostError, HostUnusable, NotBegun, RunyardError, Unavailable
from shared.eventlog import events
from shared.infra import broker
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims, create, end_event, finish
from shared.runs.claims import Claimed, Requeue, Stored
from shared.runs.eligibility import Next
from shared.runs.finish import Finish
from shared.threads import checkpoint_reads
from shared.threads.checkpoints import Write
from workers.graph_host import frames
from workers.runner import quarantine, store_operations
from workers.runner.event_writer import RunLog
from workers.runner.host import Host
from workers.runner.host_pool import GaveUp

if TYPE_CHECKING:
    from workers.runner.runner import Runner

log = logging.getLogger(__name__)

CANCEL_SECONDS = 10.0  # how long a host may take to stop a run
HAND_OVER_SECONDS = 3.0  # and when this process stops, whose own time is short
RETRY_SECONDS = (1.0, 5.0)  # after the first and second death that counts
HOSTS = 3  # that may not begin a run until that counts as a death
FLUSH_SECONDS = 2.0  # how long a run that goes elsewhere may wait for its last events to be sent
LOST_AFTER = 25 / 30  # of a lease without a renewal: we no longer trust it
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0  # between two tries while the database is away

T = TypeVar("T")


class Execution:
    """One attempt of one run in this runner."""

    def __init__(self, runner: Runner, run: Claimed, stored: Stored) -> None:
        self.run = run
        self.held_at = time.monotonic()  # when the last successful renewal was sent
        self._runner = runner
        self._stored = stored  # the thread's newest checkpoint, as the host wants it
        self._id = run.run_id.bytes
        self._host: Host | None = None
        self._outcome: AsyncResult = (
            AsyncResult()
        )  # an _Outcome, None when a stopped run gave none, or an error
        self._stopping: tuple[str, str | None] | None = None
        self._has_begun = False  # a host has sent something of it
        self.log = RunLog(
            runner.writer,
            run.run_id,
            attempt=run.attempt,
            owner=run.owner,
            floor=run.floor,
            reserve=self._reserve,
            on_fenced=lambda: self.fence("another attempt writes its events"),
            wake_channel=thread_stream.channel(run.thread_id),
        )

    # what happens to it from outside

    def cancel(self, action: str, reason: str | None) -> None:
        """Stop the graph; `timeout` and `handover` are the runner's own actions."""
        if self._stopping is not None:
            if action == "rollback":  # wanted after all, of what stops already
                self._stopping = (action, reason)
            return
        self._stopping = (action, reason)
        if self._host is not None:
            try:
                self._host.send(frames.CANCEL, self._id, dumps({"action": action}).encode())
            except HostDied:
                return  # the death is the outcome
            patience = HAND_OVER_SECONDS if action == "handover" else CANCEL_SECONDS
            gevent.spawn_later(patience, self._give_up)
        else:
            self._give_up()  # it waits for a host

    def widen(self, modes: list[str]) -> None:
        """Somebody who has just come wants events of these modes, too."""
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.WIDEN, self._id, dumps({"stream_mode": modes}).encode())
            except HostDied:
                return

    def _give_up(self) -> None:
        """There is no host, or it did not answer a CANCEL: its loop is blocked. The run ends without it."""
        if not self._outcome.ready():
            self._outcome.set(None)

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
            self._runner.committer.store(self, write, head["ask"])
        elif kind == frames.ASK:
            gevent.spawn(self._answer, frames.unpack(body))
        elif kind == frames.DONE:
            self._outcome.set(_Outcome(frames.unpack(body)))

    def _answer(self, parts: list[bytes]) -> None:
        ask = orjson.loads(parts[0])
        try:
            answer = self._tried(lambda: self._looked_up(ask))
        except Unavailable as error:
            self.unwritable(error)
            return
        except Fenced as error:
            self.fence(error.message)
            return
        head = dumps({"ask": ask["ask"]}).encode()
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.REPLY, self._id, frames.pack([head, *answer]))
            except HostDied:
                return

    def _looked_up(self, ask: dict[str, Any]) -> list[bytes]:
        if ask["op"] == "store":
            return store_operations.answer_run(self.run, ask)
        with connection() as conn:
            return checkpoint_reads.answer(conn, self.run.deployment_id, ask, thread_id=self.run.thread_id)

    def _tried(self, step: Callable[[], T]) -> T:
        """What the database answers; asked again while it is away, as long as the run may be ours.

        Raises Unavailable when it no longer is. The step is one that may be repeated.
        """
        pause = PAUSE_SECONDS
        while True:
            try:
                return step()
            except Unavailable:
                if time.monotonic() - self.held_at > self._runner.settings.lease_seconds * LOST_AFTER:
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

    # its story

    def execute(self) -> None:
        """Run the graph and record how it ended; nothing escapes but bugs."""
        run = self.run
        self.log.add_first(events.payload("metadata", create.attempt_metadata(run.run_id, run.attempt)))
        try:
            outcome = self._in_host()
        except Fenced as fenced:
            self._drop(fenced)
        except HostError as death:
            self._lost(death)
        except Unavailable as error:
            log.warning("run %s: it cannot start here now: %s", run.run_id, error)
            self._give_back(delay=RETRY_SECONDS[0], death=None, refund=True)
        except RunyardError as error:
            self._end(RunStatus.ERROR, ThreadStatus.ERROR, error=_error(error))
        else:
            self._ended(outcome or _Outcome(None))

    def _in_host(self) -> _Outcome | None:
        """What the host that executed this run says of it; None when a stopped run gave no answer."""
        deadline = gevent.spawn_later(max(self.run.seconds_left, 0), self.cancel, "timeout", None)
        try:
            order = self._order()
            for _ in range(HOSTS):
                try:
                    return self._in_some_host(order)
                except NotBegun as error:
                    log.warning("run %s: its host %s, it goes to another", self.run.run_id, error.message)
                    if self._stopping is not None:
                        return None
                    if self._has_begun:
                        raise
                    self._outcome = AsyncResult()
            raise HostUnusable(f"{HOSTS} graph hosts in a row did not begin the run")
        finally:
            deadline.kill()

    def _in_some_host(self, order: bytes) -> _Outcome | None:
        run = self.run
        group = quarantine.group(run.run_id, run.quarantine)
        try:
            host = self._runner.hosts.acquire(run.revision_id, group, unless=self._outcome)
        except GaveUp:
            return cast("_Outcome | None", self._outcome.get())
        self._host = host
        try:
            host.enter(self._id, self, order)
            return cast("_Outcome | None", self._outcome.get())
        finally:
            self._host = None
            self._leave(host)

    def _leave(self, host: Host) -> None:
        if not self._outcome.ready() or self._outcome.exception is not None or self._outcome.value is None:
            try:
                host.send(frames.CANCEL, self._id, b'{"action":"interrupt"}')
            except HostDied:
                pass  # nothing to stop any more
        host.leave(self._id)

    def _order(self) -> bytes:
        """The body of the RUN frame."""
        run = self.run
        with_checkpoint = self._stored is not None
        spec = {
            **run.kwargs,
            "run_id": str(run.run_id),
            "thread_id": str(run.thread_id),
            "graph_id": run.graph_id,
            "assistant_id": str(run.assistant_id),
            "attempt": run.attempt,
            "metadata": run.metadata,
            "fresh": not with_checkpoint,
            "resume_from_checkpoint": run.has_checkpoint,
        }
        return frames.pack([dumps(spec).encode(), run.input, *(self._stored or ())])

    def _ended(self, outcome: _Outcome) -> None:
        """The host answered, or a stopped run is ended without its answer."""
        if self._stopping is not None and not outcome.ended_by_itself:
            self._stopped(outcome, *self._stopping)
        elif outcome.status == "success":
            self._end(RunStatus.SUCCESS, ThreadStatus(outcome.thread_status), outcome=outcome)
        else:
            thread_status = None if outcome.keeps_thread else ThreadStatus.ERROR
            self._end(RunStatus.ERROR, thread_status, outcome=outcome, error=outcome.error)

    def _stopped(self, outcome: _Outcome, action: str, reason: str | None) -> None:
        if action == "handover":
            self._hand_over()
        elif action == "rollback":
            self._roll_back(reason)
        elif action == "timeout":
            seconds = self.run.timeout_seconds or self._runner.settings.run_timeout_seconds
            error = {"error": "TimeoutError", "message": f"the run exceeded its limit of {seconds:.0f} s"}
            self.log.add(events.payload("error", dumps(error).encode()))
            outcome.answer = None  # whoever waits gets the error, as of any run that failed
            self._end(RunStatus.TIMEOUT, ThreadStatus.ERROR, outcome=outcome, error=error)
        else:
            error = {"error": "UserInterrupt", "message": reason or "interrupt requested"}
            self._end(RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, outcome=outcome, error=error)

    def _end(
        self,
        status: RunStatus,
        thread_status: ThreadStatus | None,
        *,
        outcome: _Outcome | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        outcome = outcome or _Outcome(None)
        end = Finish(
            self.run,
            status,
            thread_status,
            error,
            outcome.values,
            outcome.state,
            outcome.interrupts,
            outcome.usage,
        )
        try:
            following = self._runner.committer.finish(self, end)
        except Fenced as fenced:
            self._drop(fenced)
            return
        except RunyardError as refusal:
            if outcome.values is None:
                raise  # not the graph's doing: upkeep ends the run
            self.log.add(events.payload("error", dumps(_error(refusal)).encode()))
            self._end(RunStatus.ERROR, ThreadStatus.ERROR, error=_error(refusal))
            return
        self.log.end(_last_event(self.run, status, outcome.answer, error))
        self._runner.goes_on(following)

    def _roll_back(self, reason: str | None) -> None:
        error = {"error": "UserRollback", "message": reason or "rollback requested"}
        if self.run.temporary:
            self._end(RunStatus.INTERRUPTED, ThreadStatus.IDLE)
            return

        def roll_back() -> Next | None:
            with connection() as conn:
                return finish.roll_back(conn, self.run, error=error)

        try:
            following = self._tried(roll_back)
        except (Fenced, Unavailable) as refused:
            self._drop(refused)  # without a database: upkeep rolls it back when its lease has run out
            return
        self.log.end(_last_event(self.run, "rollback"))
        self._runner.goes_on(following)

    def _hand_over(self) -> None:
        """This runner stops: somebody else goes on from the last checkpoint."""
        self._give_back(delay=0.0, death=None, refund=True)

    def _lost(self, death: HostError) -> None:
        """The host died under the run, or could not be started."""
        run = self.run
        if self._stopping is not None:
            self._stopped(_Outcome(None), *self._stopping)
        elif isinstance(death, HostDied) and death.together > 1:
            level = quarantine.after(run.quarantine, death.together)
            log.warning("run %s: its host %s with %d on it", run.run_id, death.message, death.together)
            if level < quarantine.ALONE:  # it starts while they go back to the queue
                self._runner.hosts.expect(run.revision_id, quarantine.group(run.run_id, level))
            self._give_back(delay=0.0, death=death.message, refund=True, level=level)
        elif run.deaths + 1 >= self._runner.settings.max_attempts:
            how = f"the graph host {death.message}" if isinstance(death, HostDied) else death.message
            error = {"error": "RunAbandoned", "message": f"{how} ({run.deaths + 1} times in a row)"}
            self.log.add(events.payload("error", dumps(error).encode()))
            self._end(RunStatus.ERROR, ThreadStatus.ERROR, error=error)
        else:
            log.warning("run %s: its host %s, it goes back to the queue", run.run_id, death.message)
            delay = RETRY_SECONDS[min(run.deaths, len(RETRY_SECONDS) - 1)]
            level = quarantine.ALONE if isinstance(death, HostDied) else None
            self._give_back(delay=delay, death=death.message, refund=False, level=level)

    def _give_back(self, *, delay: float, death: str | None, refund: bool, level: int | None = None) -> None:
        """Back to the queue, with all that this attempt had done; a run to be stopped ends here."""
        run = self.run
        back = Requeue(run, delay, death, refund, level)
        try:
            wish = self._runner.committer.settle(self)
            if wish is not None:
                self._stopping = wish
                self._stopped(_Outcome(None), *wish)
                return
            self.log.hand_over(FLUSH_SECONDS)
            given = self._runner.committer.give_back(self, back)
        except RunyardError as error:
            log.warning("run %s: not given back, its lease will run out: %s", run.run_id, error)
            self.log.abandon()
            return
        if given and not delay:
            broker.enqueue_run(self.run_pool, run.run_id)
        elif given:
            gevent.spawn_later(delay, broker.enqueue_run, self.run_pool, run.run_id)

    @property
    def run_pool(self) -> str:
        return self._runner.settings.pool

    def _drop(self, reason: RunyardError) -> None:
        self.log.abandon()
        log.warning("run %s: dropped attempt %d: %s", self.run.run_id, self.run.attempt, reason.message)


class _Outcome:
    """What a host's DONE frame says; `parts` None: nothing is known."""

    def __init__(self, parts: list[bytes] | None) -> None:
        head: dict[str, Any] = {} if parts is None else orjson.loads(parts[0])
        self.status: str | None = head.get("status")
        self.thread_status: str = head.get("thread_status") or ThreadStatus.IDLE
        self.error: dict[str, Any] | None = head.get("error")
        self.keeps_thread: bool = head.get("keeps_thread", False)
        self.values: str | None = None
        self.state: str | None = None
        self.interrupts: str | None = None
        self.usage: str | None = dumps(head["usage"]) if head.get("usage") else None
        self.answer: bytes | None = None
        if parts is not None:
            self.answer = parts[2]
            if head.get("state") is not None:
                self.values = parts[1].decode()
                self.state = dumps(head["state"])
            if not head.get("unchanged"):
                self.interrupts = dumps(head.get("interrupts") or {})

    @property
    def ended_by_itself(self) -> bool:
        """It was over before the wish to stop it arrived."""
        return self.status in ("success", "error")


def _error(error: RunyardError) -> dict[str, str]:
    return {"error": type(error).__name__, "message": error.message}


def _last_event(
    run: Claimed, status: str, answer: bytes | None = None, error: dict[str, Any] | None = None
) -> bytes:
    if answer is None:
        answer = b"null" if error is None or status == "interrupted" else dumps({"__error__": error}).encode()
    return end_event.last_event(run, status, answer)
