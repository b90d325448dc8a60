"""The runner: one worker process with its executions, graph hosts, writers and leases.

Notifications carry run ids. The runner claims the runs it can and executes each in its own greenlet
(`workers/runner/execution.py`). One statement renews the leases of all runs. A runner without notifications polls for
waiting runs. A runner that stops hands over the runs that are still live.

Runs of each depth have their own slots (`shared/runs/nesting.py`). Notifications do not name depths. A loop therefore
looks for nested runs every second, and at once after a notification whose runs could not all be claimed. The loop
continues during a drain.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import gevent
import orjson
from gevent.event import Event
from gevent.pool import Group

from shared.deployments import deployments, limits
from shared.errors import Unavailable
from shared.infra import broker, logs, redis
from shared.infra.loops import forever
from shared.infra.postgres import connection
from shared.runs import claims, eligibility, nesting, unsent_events
from shared.runs import limits as run_limits
from shared.runs.claims import Claimed, Stored, Terms
from shared.runs.signals import WIDEN
from shared.settings import Settings
from workers.runner.budgets import Budgets
from workers.runner.claiming import AT_ONCE, Claiming, LimitedId, Taken
from workers.runner.committer import Committer
from workers.runner.deployment_log import DeployLog
from workers.runner.event_writer import Writers
from workers.runner.execution import LOST_AFTER, Execution, Services
from workers.runner.host import Host
from workers.runner.host_calls import HostCalls
from workers.runner.host_pool import HostPool

log = logging.getLogger(__name__)


RETRY_SECONDS = 1.0  # longest pause before a loop repeats a step that failed because a server was unreachable
OVERLOOKED_SECONDS = 2.0
NESTED_SECONDS = 1.0  # longest interval between two searches for waiting nested runs
NESTED_PAUSE_SECONDS = 0.02  # shortest interval: notifications that arrive together cause one search
WARM_AT_START = 2
PASS_ON_SECONDS = 0.2  # until this process's consumer has stopped; it would receive the notification again
MAX_ENDED = 100_000  # ends remembered for the count of the last minute
CLOSE_SECONDS = 5.0  # time to hand over runs when the process exits
LOCKED_SECONDS = 0.05  # pause before the lease of a run whose row was locked is renewed again


class Runner:
    """One runner process: claims runs, executes them and renews their leases."""

    def __init__(self, settings: Settings, hosts: HostPool, deploy_log: DeployLog) -> None:
        self.services = Services(
            settings,
            hosts,
            Writers(retention_seconds=settings.event_retention_seconds),
            Committer(settings.worker),
            deploy_log,
            Budgets(),
        )
        self.host_calls = HostCalls(settings, hosts)
        self.draining = False  # in order to shut down
        self._is_drained = False  # by an operator
        self._drains_until = time.monotonic()  # deadline for executions and for requests to apps
        self._executions: dict[UUID, Execution] = {}
        self._busy: Counter[int] = Counter()  # executions by depth
        self._may_have_nested = Event()  # nested runs may be waiting, and this runner may have slots for them
        self._ended: deque[float] = deque(maxlen=MAX_ENDED)
        self._notified_at = time.monotonic()
        terms = Terms(settings.worker, settings.lease_seconds, settings.run_timeout_seconds, settings.pool)
        self._claiming = Claiming(settings.pool, terms)
        # Slots for runs that are being claimed, by depth; None: the depth is not known yet.
        self._reserved_slots: Counter[int | None] = Counter()
        self._has_backlog = False  # some notified runs found no free slot and may still be waiting
        self._group = Group()
        self._loops = [
            gevent.spawn(forever, step, pause, what=what, retry=(min(pause, RETRY_SECONDS), RETRY_SECONDS))
            for step, pause, what in (
                (self._renew, settings.lease_seconds / 3, "renewing leases"),
                (self._fence_stale, 1.0, "fencing stale runs"),
                (self.services.budgets.learn, 1.0, "learning budgets"),
                (self._claim_overlooked, 1.0, "claiming overlooked runs"),
                (self._give_back_unanswered, 1.0, "giving back unanswered claims"),
                (self._hand_over_starved, 1.0, "handing over starved runs"),
                (self._listen, 1.0, "listening for control messages"),
            )
        ]
        self._loops.append(
            gevent.spawn(forever, self._claim_nested, self._wait_for_nested, what="claiming nested runs")
        )

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def hosts(self) -> HostPool:
        return self.services.hosts

    @property
    def _takes_runs(self) -> bool:
        return not (self.draining or self._is_drained)

    @property
    def free_slots(self) -> int:
        """Free slots for top-level runs (depth 0)."""
        return self._free_slots(0)

    def _free_slots(self, depth: int) -> int:
        reserved = self._reserved_slots[None] + self._reserved_slots[depth]
        return self.settings.runner_slots - self._busy[depth] - reserved

    @property
    def _free_at_each_depth(self) -> int:
        return min(self._free_slots(depth) for depth in range(nesting.MAX_DEPTH + 1))

    def notify(self, run_ids: Iterable[UUID]) -> None:
        """Claim and execute as many of these runs as possible. Returns when they have ended."""
        self._notified_at = time.monotonic()
        if not self._takes_runs:
            self._pass_on(run_ids)
            return
        notified = list(run_ids)
        most = self.free_slots
        wanted = notified[: max(most, 0)]
        self._has_backlog = self._has_backlog or len(wanted) < len(notified)
        if not wanted:
            self._may_have_nested.set()
            return  # the backlog is claimed when a slot becomes free
        if self._has_backlog or len(wanted) > self._free_at_each_depth:
            begun = self._claim_backlog(len(wanted))
        else:
            begun = self._claim(lambda: self._claiming.notified(wanted, most), len(wanted))
        if len(begun) < len(notified):
            self._may_have_nested.set()
        gevent.joinall(begun)

    def _pass_on(self, run_ids: Iterable[UUID]) -> None:
        """Enqueue notifications again that arrive during a drain, so that another runner receives them."""
        gevent.sleep(PASS_ON_SECONDS)
        for run_id in run_ids:
            broker.enqueue_run(self.settings.pool, run_id)

    def notify_next(self, following: eligibility.Next | None) -> None:
        """Start a thread's next run here if it is in this pool and a slot is free; otherwise notify its pool."""
        if following is None:
            return
        if following.pool == self.settings.pool and self._takes_runs and self.free_slots > 0:
            self._group.spawn(self.notify, [following.run_id])
        else:
            broker.enqueue_run(following.pool, following.run_id)

    def _start_next_of(self, line: LimitedId) -> None:
        """Start the next run of a limited deployment or key after one has ended: here if a slot is free.

        Without a free slot other runners are notified. Without a database upkeep notifies them later.
        """
        if self._takes_runs and self.free_slots > 0:
            self._claim(lambda: self._claiming.of([line], self.free_slots), 0)
            return
        try:
            with connection() as conn:
                waiting = run_limits.to_notify(conn, line)
        except Unavailable as error:
            log.warning("nobody is notified, upkeep will: %s", error)
            return
        for run in waiting:
            broker.enqueue_run(run.pool, run.run_id)

    def _claim_overlooked(self) -> None:
        """Claim waiting runs if no notification has arrived for a while.

        An unreachable Redis therefore only delays runs.
        """
        quiet = time.monotonic() - self._notified_at > OVERLOOKED_SECONDS
        most = self.free_slots
        if self._takes_runs and most > 0 and quiet:
            overlooked = partial(self._claiming.overlooked, most, waited_seconds=OVERLOOKED_SECONDS)
            self._claim_in_group(overlooked, most)

    def _wait_for_nested(self) -> None:
        self._may_have_nested.wait(NESTED_SECONDS)
        gevent.sleep(NESTED_PAUSE_SECONDS)

    def _claim_nested(self) -> None:
        """Claim nested runs, the deepest first, as many of each depth as it has free slots."""
        self._may_have_nested.clear()
        if self.draining and not self._drain_seconds_left:
            return
        for waiting in self._claiming.nested_waiting():
            most = self._free_slots(waiting.depth)
            if most > 0 and self._may_claim_nested(waiting.depth):
                claim = partial(self._claiming.nested, waiting, most)
                if len(self._claim_in_group(claim, most, waiting.depth)) >= AT_ONCE:
                    self._may_have_nested.set()

    def _may_claim_nested(self, depth: int) -> bool:
        """Whether nested runs of this depth may be claimed.

        A draining runner claims nested runs that its own runs may be waiting for. If it is the only runner, its runs
        would otherwise wait until the drain ends, and create the same nested runs again on the next runner.
        """
        if self.draining and self._drain_seconds_left <= 0:
            return False
        return self._takes_runs or self._busy[depth - 1] > 0

    def _claim_in_group(
        self, claim: Callable[[], Taken], slots: int, depth: int = 0
    ) -> list[gevent.Greenlet]:
        """Claim in a greenlet that `close` waits for, so that each claimed run is executed or handed over."""
        return self._group.spawn(self._claim, claim, slots, depth).get()

    def _give_back_unanswered(self) -> None:
        """Return runs to the queue that this runner owns in the database but does not execute.

        A claim whose answer was lost may have been committed. Its runs would otherwise wait until their leases expire.
        """
        unsure_for = time.monotonic() - self._claiming.unanswered_at
        if unsure_for > self.settings.lease_seconds:
            return
        with connection() as conn:
            given = claims.give_back_unknown(conn, owner=self.settings.worker, known=list(self._executions))
        for run in given:
            log.warning("run %s: claimed, but the answer was lost: it goes back to the queue", run.run_id)
            broker.enqueue_run(run.pool, run.run_id)

    def _claim_backlog(self, most: int) -> list[gevent.Greenlet]:
        """Claim runs of the backlog in round robin between keys. Fewer runs than `most` mean an empty backlog."""
        self._has_backlog = False  # `notify` sets it again if it finds no free slot meanwhile
        begun = self._claim(lambda: self._claiming.round_robin(most), most, 0)
        self._has_backlog = self._has_backlog or len(begun) >= min(most, AT_ONCE)
        return begun

    def _claim(
        self, claim: Callable[[], Taken], slots: int, depth: int | None = None
    ) -> list[gevent.Greenlet]:
        """Claim runs and start executing them.

        Reserves `slots` slots while the database answers: at this depth, or at each depth if it is None.
        """
        self._reserved_slots[depth] += slots
        try:
            return [self._spawn(*item) for item in claim()]
        finally:
            self._reserved_slots[depth] -= slots

    def _spawn(self, run: Claimed, stored: Stored) -> gevent.Greenlet:
        execution = Execution(self.services, run, stored)
        self._executions[run.run_id] = execution
        self._busy[run.depth] += 1
        return self._group.spawn(self._execute, execution)

    def _execute(self, execution: Execution) -> None:
        run = execution.run
        with logs.bound(run_id=run.run_id, revision_id=run.revision_id):
            try:
                self.notify_next(execution.execute())
            except Exception:  # outermost loop: a bug of the runner; the lease expires and upkeep takes over
                log.exception("run %s: executing it failed", run.run_id)
            finally:
                if self._executions.get(run.run_id) is execution:
                    del self._executions[run.run_id]
                self._busy[run.depth] -= 1
                self._ended.append(time.monotonic())
                if run.depth:
                    self._may_have_nested.set()
            if self._has_backlog and self._takes_runs and self.free_slots > 0:
                self._claim_backlog(self.free_slots)
                return
            if run.limited and not run.depth:
                self._start_next_of(run.deployment_id)
            if run.key_limited and not run.depth:
                self._start_next_of(run.key_id)

    # state for other processes

    def figures(self) -> dict[str, Any]:
        """Return the current state of this runner and its hosts. Also reloads the limits of deployments and keys."""
        self._learn_limits()
        now = time.monotonic()
        while self._ended and self._ended[0] < now - 60:
            self._ended.popleft()
        return {
            "slots": self.settings.runner_slots,
            "running": len(self._executions),
            "ended_a_minute": len(self._ended),
            "hosts": [_shown(host, now) for host in self.hosts.all() if host.died is None],
        }

    def _learn_limits(self) -> None:
        revision_ids = {host.revision_id for host in self.hosts.all()}
        with connection() as conn:
            found = limits.of_hosts(conn, revision_ids) if revision_ids else None
            some_key_is_limited = run_limits.any_key_is_limited(conn)
        self._claiming.learn(some_key_is_limited=some_key_is_limited)
        if found is not None:
            self.hosts.adjust(found)

    # leases

    def _renew(self) -> None:
        """Renew all leases. Retries those whose rows a commit has locked, for a sixth of the lease duration."""
        waiting = dict(self._executions)
        give_up_at = time.monotonic() + self.settings.lease_seconds / 6
        while waiting and time.monotonic() < give_up_at:
            waiting = self._renew_unlocked(waiting)
            if waiting:
                gevent.sleep(LOCKED_SECONDS)

    def _renew_unlocked(self, mine: Mapping[UUID, Execution]) -> dict[UUID, Execution]:
        """Renew these leases once. Returns executions whose rows were locked; fences those that lost their lease."""
        sent_at = time.monotonic()
        with connection() as conn:
            held = claims.renew(
                conn, list(mine), owner=self.settings.worker, lease_seconds=self.settings.lease_seconds
            )
        locked = {}
        for run_id, execution in mine.items():
            if self._executions.get(run_id) is not execution:
                continue  # this execution has ended meanwhile
            hold = held.get(run_id)
            if hold is None or hold.attempt != execution.run.attempt:
                execution.fence("its lease has run out or is somebody else's")
                continue
            if hold.cancel_requested is not None:
                execution.cancel(hold.cancel_requested, hold.cancel_reason)
            if hold.renewed:
                execution.renewed_at = sent_at
            else:
                locked[run_id] = execution
        return locked

    def _fence_stale(self) -> None:
        """Fence executions whose leases were not renewed in time: upkeep may soon return their runs to the queue.

        Runs in its own loop, so that a renewal that hangs does not delay it.
        """
        limit = time.monotonic() - self.settings.lease_seconds * LOST_AFTER
        for execution in tuple(self._executions.values()):
            if execution.renewed_at < limit:
                execution.fence("its lease was not renewed in time")

    def _listen(self) -> None:
        """Receive control messages of runs and revisions to warm up. A lost message only costs time."""
        channels = (redis.control_channel(self.settings.worker), redis.warm_channel(self.settings.pool))
        with redis.broker().pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(*channels)
            while True:
                message = pubsub.get_message(timeout=5.0)
                if message is not None:
                    self._on_control(message["channel"].decode(), message["data"])

    def _on_control(self, channel: str, data: bytes) -> None:
        if channel == redis.warm_channel(self.settings.pool):
            gevent.spawn(self.hosts.warm, UUID(data.decode()))
            return
        message = orjson.loads(data)
        run_id = UUID(message["run_id"])
        if message["action"] == unsent_events.ACTION:
            has_unsent = self.services.writers.has_unsent(run_id)
            gevent.spawn(unsent_events.answer, message["answers"], has_unsent)
            return
        execution = self._executions.get(run_id)
        if execution is None:
            return
        if message["action"] == WIDEN:
            execution.widen(message["stream_mode"])
        else:
            execution.cancel(message["action"], message.get("reason"))

    def warm_up(self) -> None:
        """Start hosts of the most recently used deployments ahead of their first run."""
        try:
            with connection() as conn:
                revision_ids = deployments.recently_used(conn, self.settings.pool, limit=WARM_AT_START)
        except Unavailable as error:
            log.warning("nothing is warmed: %s", error)
            return
        for revision_id in revision_ids:
            self.hosts.warm(revision_id)

    def set_drained(self, is_drained: bool) -> None:
        """Drain this runner for an operator, or resume it.

        A drained runner claims only nested runs of those that run here. Its hosts still answer calls.
        """
        self._is_drained = is_drained
        self._notified_at = -math.inf  # resumed, it looks for waiting runs at once

    def drain(self) -> None:
        """Claim no new runs, except nested runs of the runs that run here.

        After `drain_seconds` the runs that are still live are handed over.
        """
        if self.draining:
            return
        self.draining = True
        self._drains_until = time.monotonic() + self.settings.drain_seconds
        self.host_calls.drain()
        gevent.spawn_later(self.settings.drain_seconds, self._hand_over_all)

    def _hand_over_starved(self) -> None:
        """Hand over runs whose host has no free thread for them while another host has some.

        The threads may be held by runs that wait for these very runs.
        """
        for run_id in tuple(self.hosts.starved()):
            if execution := self._executions.get(run_id):
                log.info("run %s: its host has no thread for it, it goes to another", run_id)
                execution.cancel("handover", None)

    @property
    def _drain_seconds_left(self) -> float:
        return max(self._drains_until - time.monotonic(), 0)

    def _hand_over_all(self) -> None:
        for execution in tuple(self._executions.values()):
            execution.cancel("handover", None)

    def close(self) -> None:
        """Wait for executions until the drain ends, hand over those that remain, and end the hosts.

        Called when the process exits. Celery has waited for its tasks by then, but an execution claimed from the
        backlog belongs to no task. A runner that is not draining hands over at once.
        """
        self.draining = True
        self._group.join(timeout=self._drain_seconds_left)
        self.host_calls.close(self._drain_seconds_left)
        self._hand_over_all()
        self._group.join(timeout=CLOSE_SECONDS)
        self.hosts.close()
        self._group.join(timeout=1.0)  # executions whose hosts did not react end when their hosts are killed


def _shown(host: Host, now: float) -> dict[str, Any]:
    return {
        "revision_id": str(host.revision_id),
        "pid": host.pid,
        "runs": len(host.occupants),
        "memory_mb": host.used_bytes // 1024 // 1024,
        "memory_limit_mb": host.memory_mb,
        "age_seconds": round(now - host.started_at, 1),
        "idle_seconds": 0.0 if host.occupants else round(now - host.last_used, 1),
        "is_healthy": host.is_healthy,
    }
