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
from collections import deque
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
from shared.runs import backlog, claims, end_event
from shared.runs import limits as run_limits
from shared.runs.signals import WIDEN
from shared.settings import Settings
from workers.celery_app import PASS_ON_SECONDS
from workers.runner.claiming import AT_ONCE, UNNOTIFIED_SECONDS, ClaimedRuns, Claims, LimitedQueue
from workers.runner.committer import Committer
from workers.runner.deployment_log import DeployLog
from workers.runner.event_writer import Writers
from workers.runner.execution import Execution, Services
from workers.runner.host import Host
from workers.runner.host_calls import HostCalls
from workers.runner.host_pool import HostPool
from workers.runner.spending import Spending

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # longest pause before a loop repeats a step that failed because a server was unreachable
NESTED_SECONDS = 1.0  # longest interval between two searches for waiting nested runs
NESTED_PAUSE_SECONDS = 0.02  # shortest interval: notifications that arrive together cause one search
WARM_AT_START = 2  # revisions
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
            Spending(),
        )
        self.host_calls = HostCalls(settings, hosts)
        self.draining = False  # in order to shut down
        self._is_drained = False  # by an operator
        self._drains_until = time.monotonic()  # deadline for executions and for requests to apps
        self.executions: dict[UUID, Execution] = {}  # by run
        self._may_have_nested = Event()  # nested runs may be waiting, and this runner may have slots for them
        self._ended: deque[float] = deque(maxlen=MAX_ENDED)
        self._notified_at = time.monotonic()
        self.claims = Claims(settings)
        self._group = Group()
        self._loops = [
            gevent.spawn(forever, step, pause, what=what, retry=(min(pause, RETRY_SECONDS), RETRY_SECONDS))
            for step, pause, what in (
                (self.renew, settings.lease_seconds / 3, "renewing leases"),
                (self._fence_stale, 1.0, "fencing stale runs"),
                (self.services.spending.learn, 1.0, "learning budgets"),
                (self.claim_unnotified, 1.0, "claiming runs without a notification"),
                (self._give_back_unanswered, 1.0, "giving back unanswered claims"),
                (self._hand_over_starved, 1.0, "handing over starved runs"),
                (self._listen, 1.0, "listening for control messages"),
            )
        ]
        self._loops.append(
            gevent.spawn(forever, self.claim_nested, self._wait_for_nested, what="claiming nested runs")
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
    def has_free_slot(self) -> bool:
        """Whether a slot for top-level runs (depth 0) is free."""
        return self.claims.slots.free() > 0

    def notify(self, run_ids: Iterable[UUID]) -> None:
        """Claim and execute as many of these runs as possible. Returns when they have ended."""
        self._notified_at = time.monotonic()
        if not self._takes_runs:
            self._pass_on(run_ids)
            return
        notified = list(run_ids)
        started = self._start(self.claims.claim_notified(notified))
        if len(started) < len(notified):
            self._may_have_nested.set()
        gevent.joinall(started)

    def _pass_on(self, run_ids: Iterable[UUID]) -> None:
        """Enqueue notifications again that arrive during a drain, so that another runner receives them."""
        gevent.sleep(PASS_ON_SECONDS)
        for run_id in run_ids:
            broker.enqueue_run(self.settings.pool, run_id)

    def notify_next(self, following: backlog.NextRun | None) -> None:
        """Start a thread's next run here if it is in this pool and a slot is free; otherwise notify its pool."""
        if following is None:
            return
        if following.pool == self.settings.pool and self._takes_runs and self.has_free_slot:
            self._group.spawn(self.notify, [following.run_id])
        else:
            broker.enqueue_run(following.pool, following.run_id)

    def _start_next_of(self, queue: LimitedQueue) -> None:
        """Start the next run of a limited deployment or key after one has ended: here if a slot is free."""
        if self._takes_runs and self.has_free_slot:
            self._start(self.claims.claim_next_of(queue))
        else:
            self.claims.notify_next_of(queue)

    def claim_unnotified(self) -> None:
        """Claim waiting runs if no notification has arrived for a while.

        An unreachable Redis therefore only delays runs.
        """
        is_quiet = time.monotonic() - self._notified_at > UNNOTIFIED_SECONDS
        if self._takes_runs and is_quiet:
            self._claim_in_group(self.claims.claim_unnotified)

    def _wait_for_nested(self) -> None:
        self._may_have_nested.wait(NESTED_SECONDS)
        gevent.sleep(NESTED_PAUSE_SECONDS)

    def claim_nested(self) -> None:
        """Claim nested runs, the deepest first, as many of each depth as it has free slots."""
        self._may_have_nested.clear()
        if self._is_drain_over:
            return
        for waiting in self.claims.nested_waiting():
            if self._may_claim_nested(waiting.depth):
                started = self._claim_in_group(partial(self.claims.claim_nested, waiting))
                if len(started) >= AT_ONCE:
                    self._may_have_nested.set()

    def _may_claim_nested(self, depth: int) -> bool:
        """Whether nested runs of this depth may be claimed.

        A draining runner claims nested runs that its own runs may be waiting for. If it is the only runner, its runs
        would otherwise wait until the drain ends, and create the same nested runs again on the next runner.
        """
        return not self._is_drain_over and (self._takes_runs or self.claims.slots.busy(depth - 1) > 0)

    def _claim_in_group(self, claim: Callable[[], ClaimedRuns]) -> list[gevent.Greenlet]:
        """Claim in a greenlet that `close` waits for, so that each claimed run is executed or handed over."""
        return self._group.spawn(lambda: self._start(claim())).get()

    def _give_back_unanswered(self) -> None:
        self.claims.give_back_unanswered(self.executions.keys())

    def _start(self, claimed: ClaimedRuns) -> list[gevent.Greenlet]:
        """Start executing claimed runs."""
        for run, _ in claimed:
            self.claims.slots.occupy(run)
        executions = [Execution(self.services, run, stored) for run, stored in claimed]
        self.executions |= {execution.run.run_id: execution for execution in executions}
        return [self._group.spawn(self._execute, execution) for execution in executions]

    def _execute(self, execution: Execution) -> None:
        run = execution.run
        with logs.bound(run_id=run.run_id, revision_id=run.revision_id):
            try:
                self.notify_next(execution.execute())
            except Exception:  # outermost loop: a bug of the runner; the lease expires and upkeep takes over
                log.exception("run %s: executing it failed", run.run_id)
            finally:
                if self.executions.get(run.run_id) is execution:
                    del self.executions[run.run_id]
                self.claims.slots.release(run)
                self._ended.append(time.monotonic())
                if run.depth:
                    self._may_have_nested.set()
            if self.claims.has_backlog and self._takes_runs and self.has_free_slot:
                self._start(self.claims.claim_backlog(self.claims.slots.free()))
                return
            if run.limited and not run.depth:
                self._start_next_of(run.deployment_id)
            if run.key_limited and not run.depth:
                self._start_next_of(run.key_id)

    # state for other processes

    def figures(self) -> dict[str, Any]:
        """Return the current state of this runner and its hosts."""
        now = time.monotonic()
        while self._ended and self._ended[0] < now - 60:
            self._ended.popleft()
        return {
            "slots": self.settings.runner_slots,
            "running": len(self.executions),
            "ended_a_minute": len(self._ended),
            "hosts": [_host_figures(host, now) for host in self.hosts.all() if host.died is None],
        }

    def learn_limits(self) -> None:
        """Read the limits of deployments and keys."""
        revision_ids = {host.revision_id for host in self.hosts.all()}
        with connection() as conn:
            host_limits = limits.of_hosts(conn, revision_ids) if revision_ids else None
            some_key_is_limited = run_limits.any_key_is_limited(conn)
        self.claims.learn(some_key_is_limited=some_key_is_limited)
        if host_limits is not None:
            self.hosts.adjust(host_limits)

    # leases

    def renew(self) -> None:
        """Renew all leases. Retries those whose rows a commit has locked, for a sixth of the lease duration."""
        waiting = dict(self.executions)
        give_up_at = time.monotonic() + self.settings.lease_seconds / 6
        while waiting and time.monotonic() < give_up_at:
            waiting = self._renew_unlocked(waiting)
            if waiting:
                gevent.sleep(LOCKED_SECONDS)

    def _renew_unlocked(self, executions: Mapping[UUID, Execution]) -> dict[UUID, Execution]:
        """Renew these leases once. Returns executions whose rows were locked; fences those that lost their lease."""
        sent_at = time.monotonic()
        with connection() as conn:
            leases = claims.renew(
                conn, list(executions), owner=self.settings.worker, lease_seconds=self.settings.lease_seconds
            )
        locked = {}
        for run_id, execution in executions.items():
            if self.executions.get(run_id) is not execution:
                continue  # this execution has ended meanwhile
            lease = leases.get(run_id)
            if lease is None or lease.attempt != execution.run.attempt:
                execution.hosted.fence("its lease has expired, or another attempt holds it")
                continue
            if lease.cancel_requested is not None:
                execution.hosted.cancel(lease.cancel_requested, lease.cancel_reason)
            if lease.renewed:
                execution.hosted.lease.renewed_at = sent_at
            else:
                locked[run_id] = execution
        return locked

    def _fence_stale(self) -> None:
        """Fence executions whose leases were not renewed in time: upkeep may soon return their runs to the queue.

        Runs in its own loop, so that a renewal that hangs does not delay it.
        """
        for execution in tuple(self.executions.values()):
            if execution.hosted.lease.is_lost:
                execution.hosted.fence("its lease was not renewed in time")

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
        if message["action"] == end_event.UNSENT:
            has_unsent = self.services.writers.has_unsent(run_id)
            gevent.spawn(end_event.answer_unsent, message["answers"], has_unsent)
            return
        execution = self.executions.get(run_id)
        if execution is None:
            return
        if message["action"] == WIDEN:
            execution.hosted.widen(message["stream_mode"])
        else:
            execution.hosted.cancel(message["action"], message.get("reason"))

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
            if execution := self.executions.get(run_id):
                log.info("run %s: its host has no thread for it, it goes to another", run_id)
                execution.hosted.cancel("handover", None)

    @property
    def _drain_seconds_left(self) -> float:
        return max(self._drains_until - time.monotonic(), 0)

    @property
    def _is_drain_over(self) -> bool:
        return self.draining and not self._drain_seconds_left

    def _hand_over_all(self) -> None:
        for execution in tuple(self.executions.values()):
            execution.hosted.cancel("handover", None)

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


def _host_figures(host: Host, now: float) -> dict[str, Any]:
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
