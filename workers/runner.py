"""What one runner process has: its executions, its hosts, its writers, and the leases it keeps.

Bells bring run ids; those that are ours to claim are executed, each in a greenlet of its own
(`workers/runs.py` is the story of one). Leases are renewed for all in one statement. A runner that hears
no bell looks for itself, and one that stops hands over what still runs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import gevent
import orjson
from gevent.pool import Group
from psycopg.errors import UniqueViolation
from redis.exceptions import RedisError

from shared import bus, checkpoints, claims, deployments, limits, logs, queues
from shared.claims import Claimed, Stored, Terms
from shared.database import connection, driver
from shared.errors import Unavailable
from shared.settings import Settings
from workers.checkpoints import Committer
from workers.events import Writer
from workers.host import Host
from workers.hosts import HostPool
from workers.runs import Execution

log = logging.getLogger(__name__)

LOST_AFTER = 25 / 30  # of a lease without a renewal: we no longer trust it
UNHEARD_SECONDS = 2.0
WARM_AT_START = 2
PASS_ON_SECONDS = 0.2  # until our own consumer has stopped, or the bell would come back
MAX_ENDED = 100_000  # ends that are remembered for a minute
CLOSE_SECONDS = 5.0  # for runs to be handed over when the process exits


class Runner:
    """Everything one runner process has: its executions, its hosts, its writers."""

    def __init__(self, settings: Settings, hosts: HostPool) -> None:
        self.settings = settings
        self.hosts = hosts
        self.writer = Writer(bus.client(), retention_seconds=settings.event_retention_seconds)
        self.committer = Committer(settings.worker)
        self.draining = False
        self._executions: dict[UUID, Execution] = {}
        self._ended: deque[float] = deque(maxlen=MAX_ENDED)
        self._heard_at = time.monotonic()
        self._terms = Terms(
            settings.worker, settings.lease_seconds, settings.run_timeout_seconds, settings.pool
        )
        self._group = Group()
        self._loops = [
            gevent.spawn(self._forever, self._renew, settings.lease_seconds / 3),
            gevent.spawn(self._forever, self._fence_stale, 1.0),
            gevent.spawn(self._forever, self._claim_unheard, 1.0),
            gevent.spawn(self._listen),
        ]

    @property
    def free_slots(self) -> int:
        return self.settings.runner_slots - len(self._executions)

    def ring(self, run_ids: Iterable[UUID]) -> None:
        """Execute those of these runs that are ours to claim; returns when they have ended."""
        self._heard_at = time.monotonic()
        if self.draining:
            self._pass_on(run_ids)
            return
        wanted = list(run_ids)[: max(self.free_slots, 0)]
        if not wanted:
            return  # upkeep rings again
        taken = self._claim(wanted)
        if len(taken) < len(wanted):
            taken += self._claim_limited(set(wanted) - {run.run_id for run, _ in taken})
        gevent.joinall([self._spawn(*item) for item in taken])

    def _pass_on(self, run_ids: Iterable[UUID]) -> None:
        """Bells that reached us on our way out are for others."""
        gevent.sleep(PASS_ON_SECONDS)
        for run_id in run_ids:
            queues.enqueue_run(self.settings.pool, run_id)

    def goes_on(self, following: claims.Next | None) -> None:
        """A thread's next run may start: here if it is our pool's, else by its doorbell."""
        if following is None:
            return
        if following.pool == self.settings.pool and not self.draining and self.free_slots > 0:
            self._group.spawn(self.ring, [following.run_id])
        else:
            queues.enqueue_run(following.pool, following.run_id)

    def _claim(self, run_ids: Sequence[UUID]) -> list[tuple[Claimed, Stored]]:
        """Claim and load what was claimed; the database away: nothing, upkeep rings again."""
        try:
            with driver() as conn:
                return claims.claim(conn, run_ids, self._terms)
        except UniqueViolation:
            if len(run_ids) == 1:
                return []
            return [item for run_id in run_ids for item in self._claim([run_id])]
        except Unavailable as error:
            log.warning("cannot claim runs: %s", error)
            return []

    def _claim_limited(self, rung: Iterable[UUID]) -> list[tuple[Claimed, Stored]]:
        """Of limited deployments, whose runs these are: those that are first in line."""
        try:
            with driver() as conn:
                waiting = limits.with_room(conn, list(rung))
        except Unavailable as error:
            log.warning("cannot claim runs: %s", error)
            return []
        return [item for deployment_id in waiting for item in self._claim_of(deployment_id)]

    def _claim_of(self, deployment_id: UUID) -> list[tuple[Claimed, Stored]]:
        if self.draining or self.free_slots <= 0:
            return []
        try:
            with driver() as conn:
                return limits.claim(
                    conn, deployment_id, self.settings.pool, self._terms, most=self.free_slots
                )
        except UniqueViolation:
            return []  # a run of that thread has just started elsewhere; upkeep rings again
        except Unavailable as error:
            log.warning("cannot claim runs: %s", error)
            return []

    def _let_in(self, deployment_id: UUID) -> None:
        """A run of a limited deployment has ended: the next one starts, here if there is room."""
        if not self.draining and self.free_slots > 0:
            for item in self._claim_of(deployment_id):
                self._spawn(*item)
            return
        try:
            with connection() as conn:
                waiting = limits.startable(conn, deployment_id)
        except Unavailable as error:
            log.warning("nobody is rung for, upkeep will: %s", error)
            return
        for run in waiting:
            queues.enqueue_run(run.pool, run.run_id)

    def _claim_unheard(self) -> None:
        """Nobody rang for a while: look for ourselves. Redis away delays runs, no more."""
        quiet = time.monotonic() - self._heard_at > UNHEARD_SECONDS
        if self.draining or self.free_slots <= 0 or not quiet:
            return
        try:
            with driver() as conn:
                found = claims.claim_waiting(
                    conn,
                    self.settings.pool,
                    self._terms,
                    limit=min(self.free_slots, 50),
                    waited_seconds=UNHEARD_SECONDS,
                )
                waiting = limits.unheard(conn, self.settings.pool, waited_seconds=UNHEARD_SECONDS)
        except UniqueViolation:
            return  # a run of that thread has just started elsewhere
        for item in found:
            self._spawn(*item)
        for deployment_id in waiting:
            for item in self._claim_of(deployment_id):
                self._spawn(*item)

    def _spawn(self, run: Claimed, stored: Stored) -> gevent.Greenlet:
        execution = Execution(self, run, stored)
        self._executions[run.run_id] = execution
        return self._group.spawn(self._execute, execution)

    def _execute(self, execution: Execution) -> None:
        run = execution.run
        with logs.bound(run_id=run.run_id, revision_id=run.revision_id):
            try:
                execution.execute()
            except Exception:  # the outermost loop: our bug; the lease runs out and upkeep ends the run
                log.exception("run %s: executing it failed", run.run_id)
            finally:
                if self._executions.get(run.run_id) is execution:
                    del self._executions[run.run_id]
                self._ended.append(time.monotonic())
            if run.limited:
                self._let_in(run.deployment_id)

    def has_checkpoint(self, run: Claimed) -> bool:
        """Whether an earlier attempt of this run got as far as a checkpoint."""
        with connection() as conn:
            return checkpoints.has_checkpoint_of_run(conn, run.run_id)

    # what others see of it

    def figures(self) -> dict[str, Any]:
        """What this runner does just now; its hosts learn of their deployments' limits on the way."""
        self._adjust_hosts()
        now = time.monotonic()
        while self._ended and self._ended[0] < now - 60:
            self._ended.popleft()
        return {
            "slots": self.settings.runner_slots,
            "running": len(self._executions),
            "ended_a_minute": len(self._ended),
            "hosts": [_shown(host, now) for host in self.hosts.all() if host.died is None],
        }

    def _adjust_hosts(self) -> None:
        if revision_ids := {host.revision_id for host in self.hosts.all()}:
            with connection() as conn:
                found = limits.of_hosts(conn, revision_ids)
            self.hosts.adjust(found)

    # keeping what is ours

    def _forever(self, step: Any, pause_seconds: float) -> None:
        while True:
            gevent.sleep(pause_seconds)
            try:
                step()
            except Unavailable as error:
                log.warning("%s: %s", step.__name__.strip("_"), error)
            except Exception:  # the outermost loop: leases and bells must go on
                log.exception("%s failed, going on", step.__name__)

    def _renew(self) -> None:
        mine = dict(self._executions)
        if not mine:
            return
        sent_at = time.monotonic()
        with connection() as conn:
            held = claims.renew(
                conn, list(mine), owner=self.settings.worker, lease_seconds=self.settings.lease_seconds
            )
        for run_id, execution in mine.items():
            hold = held.get(run_id)
            if hold is None or hold.attempt != execution.run.attempt:
                execution.fence("its lease is somebody else's")
                continue
            execution.held_at = sent_at
            if hold.cancel_requested is not None:
                execution.cancel(hold.cancel_requested, hold.cancel_reason)

    def _fence_stale(self) -> None:
        """Stop what upkeep may soon give to somebody else; a renewal that hangs does not hold this up."""
        limit = time.monotonic() - self.settings.lease_seconds * LOST_AFTER
        for execution in tuple(self._executions.values()):
            if execution.held_at < limit:
                execution.fence("its lease was not renewed in time")

    def _listen(self) -> None:
        """Hear of cancels and of revisions to warm at once; a lost message costs only time."""
        channels = (bus.control_channel(self.settings.worker), bus.warm_channel(self.settings.pool))
        while True:
            try:
                with bus.client().pubsub(ignore_subscribe_messages=True) as pubsub:
                    pubsub.subscribe(*channels)
                    while True:
                        message = pubsub.get_message(timeout=5.0)
                        if message is not None:
                            self._heard(message["channel"].decode(), message["data"])
            except (RedisError, OSError) as error:
                log.debug("the control channel is away: %s", error)
                gevent.sleep(1.0)
            except Exception:  # the outermost loop
                log.exception("listening for control messages failed, going on")
                gevent.sleep(1.0)

    def _heard(self, channel: str, data: bytes) -> None:
        if channel == bus.warm_channel(self.settings.pool):
            gevent.spawn(self.hosts.warm, UUID(data.decode()))
            return
        message = orjson.loads(data)
        execution = self._executions.get(UUID(message["run_id"]))
        if execution is not None:
            execution.cancel(message["action"], message.get("reason"))

    def warm_up(self) -> None:
        """Start hosts of the deployments that were in use last, before anybody asks."""
        try:
            with connection() as conn:
                revision_ids = deployments.recently_used(conn, self.settings.pool, limit=WARM_AT_START)
        except Unavailable as error:
            log.warning("nothing is warmed: %s", error)
            return
        for revision_id in revision_ids:
            self.hosts.warm(revision_id)

    def drain(self) -> None:
        """Take nothing new; after a while hand over what still runs."""
        if self.draining:
            return
        self.draining = True
        gevent.spawn_later(self.settings.drain_seconds, self._hand_over_all)

    def _hand_over_all(self) -> None:
        for execution in tuple(self._executions.values()):
            execution.cancel("handover", None)

    def close(self) -> None:
        """Hand over what is left and end the hosts; called when the process exits."""
        self.draining = True
        self._hand_over_all()
        self._group.join(timeout=CLOSE_SECONDS)
        self.hosts.close()
        self._group.join(timeout=1.0)  # what a host that did not listen was working on


def _shown(host: Host, now: float) -> dict[str, Any]:
    return {
        "revision_id": str(host.revision_id),
        "pid": host.pid,
        "runs": len(host.guests),
        "memory_mb": host.used_bytes // 1024 // 1024,
        "memory_limit_mb": host.memory_mb,
        "age_seconds": round(now - host.started_at, 1),
        "idle_seconds": 0.0 if host.guests else round(now - host.last_used, 1),
        "is_healthy": host.is_healthy,
    }
