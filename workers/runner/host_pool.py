"""The pool of graph hosts (`workers/runner/host.py`): start, choose, watch, evict. All user code runs through it.

Each host takes a slot. A runner has `max_hosts` slots for hosts that are open to all runs, and half as many for runs in
quarantine (`workers/runner/quarantine.py`), so that crashes of one deployment take no slots from another. Nested runs
of each depth have one reserved slot more (`shared/runs/nesting.py`): the runs that occupy all other slots may be
waiting for a nested run.

At most two hosts of a revision start at the same time. A start without a free slot waits. The revision with the fewest
hosts goes first, then the start that has waited longest. The host that has been idle longest gives up its slot, unless
a caller waits for a host of its group. If no host becomes idle, the host whose longest run is oldest takes no new runs.

A start belongs to the pool, not to the caller that requested it first: any of the waiting callers may give up.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import gevent
from gevent.event import AsyncResult

from shared.deployments.limits import HostLimits
from shared.errors import HostError, HostUnusable
from shared.infra.loops import forever
from shared.settings import Settings
from workers.runner.host import Host, HostCommand, Output
from workers.runner.host_requests import Loopbacks
from workers.runner.quarantine import ALONE, DEFAULT_GROUP, Group, reserved

log = logging.getLogger(__name__)

PING_SECONDS = 1.0
SLOW_SECONDS = 0.05  # a host whose answer to a ping takes longer is busy
STARTS_OF_ONE = 2  # hosts of one revision that start at the same time
EXPECTED_SECONDS = 30.0  # how long an idle host of a quarantine group, or of replays, waits for runs
ADDITIONAL_IDLE_SECONDS = 60.0  # for hosts beside another of their revision: a burst of runs started them
REPLACED_IDLE_SECONDS = 600.0  # for hosts of replaced revisions, where those of serving ones never stop
SLOT_WAIT_SECONDS = 5.0  # how long a start waits for a slot before a host stops taking new runs

# Kinds of slots. A slot reserved for nested runs of a depth has the kind `-depth`.
OPEN_HOSTS, QUARANTINED = 0, 1

NEVER: AsyncResult = AsyncResult()


class AcquireCancelled(HostError):
    """The caller has stopped waiting for the graph host."""


@dataclass(eq=False)
class _Start:
    """A requested start of a host. `done` gets the host, the error, or None if the callers must choose again."""

    revision_id: UUID
    group: Group
    requested_at: float = field(default_factory=time.monotonic)
    done: AsyncResult = field(default_factory=AsyncResult)
    host: Host | None = None  # set once the process exists


@dataclass
class _Hosts:
    """The hosts of one revision and group, the number of callers that wait for one, and the pending start."""

    ready: list[Host] = field(default_factory=list)
    waiting: int = 0
    start: _Start | None = None


class PreparedHost(NamedTuple):
    """The command, output and limits of a host to start."""

    command: HostCommand
    output: Output
    limits: HostLimits = HostLimits()


class HostPool:
    """All hosts of this runner."""

    def __init__(self, settings: Settings, prepare: Callable[[UUID], PreparedHost]) -> None:
        """Create an empty pool and start its watcher.

        `prepare(revision_id)` ensures that the environment is on this machine, or raises HostUnusable.
        """
        self._settings = settings
        self._prepare = prepare
        self._loopbacks = Loopbacks(settings)
        self._limits: dict[UUID, HostLimits] = {}
        self._groups: dict[tuple[UUID, Group], _Hosts] = {}
        self._queue: list[_Start] = []  # starts that have no slot yet
        self._starting: list[_Start] = []
        self._leaving: list[Host] = []  # hosts asked to stop; each keeps its slot until its process has ended
        self._retired_at: dict[int, float] = {}  # monotonic times by kind of slot
        self.on_ready: Callable[[], None] = lambda: None  # called when a new host is ready
        self._watcher = gevent.spawn(forever, self._watch, PING_SECONDS, what="watching the hosts")

    # choosing

    def acquire(
        self, revision_id: UUID, group: Group = DEFAULT_GROUP, *, depth: int = 0, unless: AsyncResult = NEVER
    ) -> Host:
        """Return the least busy healthy host of a revision for runs of this group and depth. Starts one if needed.

        Raises HostUnusable if the host cannot be started, and AcquireCancelled if `unless` is set before the host is
        ready. The caller must enter the host at once: the pool may evict it as soon as other greenlets run.
        """
        if unless.ready():
            raise AcquireCancelled
        host = self._wait_for_host(revision_id, group, unless, waits_for_slot=not depth)
        if host is None:
            group = reserved(group, depth)
            host = self._wait_for_host(revision_id, group, unless)
            assert host is not None
        hosts = self._hosts(revision_id, group)
        if self._needs_another_host(revision_id, group, hosts):
            self._request(revision_id, group)
        return host

    def _wait_for_host(
        self, revision_id: UUID, group: Group, unless: AsyncResult, *, waits_for_slot: bool = True
    ) -> Host | None:
        """Return a host for runs of this group.

        Returns None if a host must be started, no slot is free, and `waits_for_slot` is false.
        """
        hosts = self._hosts(revision_id, group)
        hosts.waiting += 1
        try:
            while not (host := self._choose(revision_id, hosts)):
                start = hosts.start or self._request(revision_id, group)
                if not waits_for_slot and start in self._queue and not self._has_slot(group):
                    return None
                # A start of a revision with two others under way stays queued though a slot is free. Another revision
                # may take that slot, so this caller checks again.
                timeout = None if waits_for_slot else SLOT_WAIT_SECONDS
                gevent.wait([start.done, unless], timeout=timeout, count=1)
                if unless.ready():
                    raise AcquireCancelled
                if start.done.ready():
                    start.done.get()
        finally:
            hosts.waiting -= 1
            if not hosts.waiting and hosts.start is not None and hosts.start in self._queue:
                self._withdraw(hosts.start)
        return host

    def _hosts(self, revision_id: UUID, group: Group) -> _Hosts:
        return self._groups.setdefault((revision_id, group), _Hosts())

    def _choose(self, revision_id: UUID, hosts: _Hosts) -> Host | None:
        healthy = [host for host in hosts.ready if host.takes_runs]
        if healthy:
            return min(healthy, key=lambda host: (_is_busy(host), len(host.occupants)))
        alive = [host for host in hosts.ready if host.died is None]
        if len(alive) >= 2 * self._most(revision_id):  # start no more: wait for one that may answer again
            return min(alive, key=lambda host: host.health.silence)
        return None

    def _most(self, revision_id: UUID) -> int:
        """Return how many hosts of a revision this runner may have, not counting hosts that do not answer."""
        limits = self._limits.get(revision_id)
        return (limits.hosts_per_runner if limits else None) or self._settings.hosts_per_revision

    def _needs_another_host(self, revision_id: UUID, group: Group, hosts: _Hosts) -> bool:
        return (
            group.is_open
            and hosts.start is None
            and len(hosts.ready) < self._most(revision_id)
            and all(host.occupants and _is_busy(host) for host in hosts.ready)
            and self._has_slot(group)
        )

    def starved(self) -> Iterator[UUID]:
        """Yield runs that wait for a thread in their host while another host of their group has free threads."""
        for hosts in tuple(self._groups.values()):
            if any(host.takes_runs and not _is_busy(host) for host in hosts.ready):
                for host in tuple(hosts.ready):
                    yield from host.health.starved

    def prestart(self, revision_id: UUID, group: Group) -> None:
        """Begin to start a host for runs of this group that will arrive soon."""
        hosts = self._hosts(revision_id, group)
        if not hosts.ready and hosts.start is None:
            self._request(revision_id, group)

    def warm(self, revision_id: UUID) -> None:
        """Start a host of this revision ahead of its first run."""
        try:
            self.acquire(revision_id)
        except HostUnusable:
            return  # already logged

    # starting

    def _request(self, revision_id: UUID, group: Group) -> _Start:
        start = self._hosts(revision_id, group).start = _Start(revision_id, group)
        self._queue.append(start)
        # A run that is alone gets a new process, in which no other run has been.
        if 0 < group.level < ALONE and self._has_slot(group):
            self._take_idle(start)
        self._advance()
        return start

    def _take_idle(self, start: _Start) -> None:
        """Use an idle open host of the revision for this start, which saves starting a process."""
        ready = self._hosts(start.revision_id, Group(0, 0, start.group.kind)).ready
        idle = next(filter(self._is_idle, ready), None)
        if idle is not None and idle.is_healthy:
            self._forget(idle)
            idle.group = start.group
            self._hosts(start.revision_id, start.group).ready.append(idle)
            self._withdraw(start)

    def _withdraw(self, start: _Start) -> None:
        """Cancel a queued start. Callers that still wait for it choose a host again."""
        self._queue.remove(start)
        self._hosts(start.revision_id, start.group).start = None
        start.done.set(None)

    def _advance(self) -> None:
        """Begin the queued starts that have a free slot. For the others, evict an idle host."""
        by_need = sorted(self._queue, key=lambda start: (self._count(start.revision_id), start.requested_at))
        for start in by_need:
            if sum(other.revision_id == start.revision_id for other in self._starting) >= STARTS_OF_ONE:
                continue
            if self._has_slot(start.group):
                self._queue.remove(start)
                self._starting.append(start)
                gevent.spawn(self._begin, start)
            else:
                self._free_slot(start.group)

    def _count(self, revision_id: UUID) -> int:
        """Return the number of slots that a revision's hosts take, including hosts that are starting or stopping."""
        return sum(id == revision_id for id, _ in self._occupied_slots())

    def _occupied_slots(self) -> Iterator[tuple[UUID, Group]]:
        """Yield `(revision_id, group)` of each taken slot."""
        for host in (*self.all(), *self._leaving):
            if host.died is None:
                yield host.revision_id, host.group
        for start in self._starting:
            yield start.revision_id, start.group

    def _has_slot(self, group: Group) -> bool:
        kind, hosts = _kind(group), self._settings.max_hosts
        most = {OPEN_HOSTS: hosts, QUARANTINED: max(hosts // 2, 2)}.get(kind, 1)
        return sum(_kind(other) == kind for _, other in self._occupied_slots()) < most

    def _free_slot(self, group: Group) -> None:
        """Evict the host that has been idle longest, unless a host of this kind is already stopping."""
        kind = _kind(group)
        if any(_kind(host.group) == kind and host.died is None for host in self._leaving):
            return
        idle = [host for host in self.all() if _kind(host.group) == kind and self._is_idle(host)]
        if idle:
            self._evict(min(idle, key=lambda host: host.last_used), "makes room for another")

    def _begin(self, start: _Start) -> None:
        hosts = self._hosts(start.revision_id, start.group)
        try:
            start.host = host = self._open(start)
            host.wait_ready()
            hosts.ready.append(host)
            start.done.set(host)
            self.on_ready()
        except HostUnusable as error:
            log.warning("revision %s: no host: %s", start.revision_id, error)
            start.done.set_exception(error)
        except Exception as error:  # the waiting callers must get an answer
            log.exception("revision %s: no host", start.revision_id)
            start.done.set_exception(HostUnusable(str(error)))
        finally:
            hosts.start = None
            self._starting.remove(start)
            self._advance()

    def _open(self, start: _Start) -> Host:
        command, output, limits = self._prepare(start.revision_id)
        self._limits[start.revision_id] = limits
        log.info("starting a host of revision %s", start.revision_id)
        host = Host(start.revision_id, command, self._settings, output, group=start.group, owner=self)
        if limits.memory_mb is not None:
            host.memory_mb = min(limits.memory_mb, self._settings.host_memory_mb)
        return host

    # ending

    def host_changed(self, host: Host) -> None:
        if host.died is not None:
            self._forget(host)
        elif self._is_idle(host) and (not host.group.is_open or host.is_retiring or host.is_unfit):
            self._evict(host, "is not needed any more")
        if self._queue:
            self._advance()

    def request_opened(self, host: Host, id: bytes, head: Mapping[str, Any]) -> None:
        self._loopbacks.begin(host, id, head)

    def _is_idle(self, host: Host) -> bool:
        """Whether this host can stop without loss: it has no occupants, and no caller waits for a host of its group."""
        hosts = self._hosts(host.revision_id, host.group)
        return not host.occupants and host in hosts.ready and not hosts.waiting

    def _evict(self, host: Host, why: str) -> None:
        log.info("host %s of revision %s stops: %s", host.pid, host.revision_id, why)
        self._forget(host)
        self._leaving.append(host)
        gevent.spawn(host.stop)

    def _forget(self, host: Host) -> None:
        for hosts in (self._hosts(host.revision_id, host.group).ready, self._leaving):
            if host in hosts:
                hosts.remove(host)

    def adjust(self, limits: Mapping[UUID, HostLimits]) -> None:
        """Apply the current limits of deployments. Evicts idle hosts beyond them and those of deleted deployments."""
        self._limits.update(limits)
        for revision_id, changed in limits.items():
            hosts = [host for host in self.all() if host.revision_id == revision_id and host.died is None]
            if not hosts:
                self._limits.pop(revision_id, None)
            kept = 0 if changed.is_deleted else self._most(revision_id)
            why = "its deployment is gone" if changed.is_deleted else "its deployment may have fewer"
            open_to_all = [host for host in hosts if host.group.is_open]
            idle = [host for host in open_to_all if self._is_idle(host)]
            for host in idle[: max(len(open_to_all) - kept, 0)]:
                self._evict(host, why)

    def all(self) -> Iterator[Host]:
        """Yield the hosts that are ready, without those that are stopping."""
        for hosts in tuple(self._groups.values()):
            yield from tuple(hosts.ready)

    # watching

    def _watch(self) -> None:
        starting = [start.host for start in self._starting if start.host is not None]
        for host in (*self.all(), *starting):
            self._check(host)
        self._clear()
        self._serve_starved_runs()
        self._serve_queue()

    def _clear(self) -> None:
        """Forget the groups and revisions that have no host, no pending start and no waiting caller."""
        for key, hosts in tuple(self._groups.items()):
            if not hosts.ready and not hosts.waiting and hosts.start is None:
                del self._groups[key]
        used = {revision_id for revision_id, _ in self._groups}
        self._limits = {key: limits for key, limits in self._limits.items() if key in used}

    def _check(self, host: Host) -> None:
        if host.died is not None:
            self._forget(host)
            return
        host.ping()
        host.measure()
        if host.died is not None or not self._is_idle(host):
            return
        if host.is_unfit:
            self._evict(host, "is not fit for runs")
        elif time.monotonic() - host.last_used > self._idle_seconds(host):
            self._evict(host, "was idle")

    def _idle_seconds(self, host: Host) -> float:
        if host.group != DEFAULT_GROUP:
            return EXPECTED_SECONDS
        if idle_seconds := self._settings.host_idle_seconds:
            is_additional = len(self._hosts(host.revision_id, host.group).ready) > 1
            return min(idle_seconds, ADDITIONAL_IDLE_SECONDS) if is_additional else idle_seconds
        limits = self._limits.get(host.revision_id, HostLimits())
        return REPLACED_IDLE_SECONDS if limits.is_replaced else math.inf

    def _serve_starved_runs(self) -> None:
        """Start another host for runs that wait for a thread, even if no new run needs a host."""
        for (revision_id, group), hosts in tuple(self._groups.items()):
            is_needed = any(host.health.starved for host in hosts.ready)
            if is_needed and self._needs_another_host(revision_id, group, hosts):
                self._request(revision_id, group)

    def _serve_queue(self) -> None:
        """Serve queued starts: with a host that has become usable again, or with a slot.

        If a start has waited too long for a slot, one host of its kind stops taking new runs.
        """
        for start in tuple(self._queue):
            if self._choose(start.revision_id, self._hosts(start.revision_id, start.group)):
                self._withdraw(start)
        self._advance()
        waits_since: dict[int, float] = {}
        for start in self._queue:
            if (kind := _kind(start.group)) != QUARANTINED:
                waits_since[kind] = min(start.requested_at, waits_since.get(kind, math.inf))
        for host in self.all():
            if _kind(host.group) not in waits_since:
                host.is_retiring = False
        for kind, since in waits_since.items():
            if time.monotonic() - max(since, self._retired_at.get(kind, 0.0)) > SLOT_WAIT_SECONDS:
                self._retire_one(kind)

    def _retire_one(self, kind: int) -> None:
        """Stop new runs on the host that is likely to become idle first: the one whose longest run is oldest."""
        self._retired_at[kind] = time.monotonic()
        hosts = [host for host in self.all() if _kind(host.group) == kind and host.entered_at]
        for host in hosts:
            host.is_retiring = False
        if hosts:
            max(hosts, key=lambda host: next(iter(host.entered_at.values()))).is_retiring = True

    def close(self) -> None:
        """Kill all hosts and refuse the starts that are queued."""
        self._watcher.kill()
        for start in tuple(self._queue):
            self._queue.remove(start)
            start.done.set_exception(HostUnusable("the runner stops"))
        starting = [start.host for start in self._starting if start.host is not None]
        for host in (*self.all(), *self._leaving, *starting):
            host.kill("the runner stops")


def _kind(group: Group) -> int:
    """Return the kind of slot that a host of this group takes."""
    return min(group.level, QUARANTINED)


def _is_busy(host: Host) -> bool:
    """Whether another host would execute new runs sooner."""
    health = host.health
    return health.delay > SLOW_SECONDS or health.silence > SLOW_SECONDS or health.queued > 0
