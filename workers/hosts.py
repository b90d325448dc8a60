"""The pool of graph hosts (`workers/host.py`): start, choose, watch, evict. The one door to user code."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import gevent
from gevent.event import AsyncResult

from shared.errors import HostUnusable
from shared.limits import HostLimits
from shared.settings import Settings
from workers.host import Host, HostCommand, Output, resident_bytes

log = logging.getLogger(__name__)

PING_SECONDS = 1.0
SLOW_SECONDS = 0.05  # an answer to a ping that takes longer speaks for starting another host


@dataclass
class _Flat:
    """The hosts of one revision, and who is starting one."""

    hosts: list[Host] = field(default_factory=list)
    starting: AsyncResult | None = None


class HostPool:
    """All hosts of this runner."""

    def __init__(
        self,
        settings: Settings,
        prepare: Callable[[UUID], tuple[HostCommand, Output]],
        limits_of: Callable[[UUID], HostLimits] = lambda revision_id: HostLimits(),
    ) -> None:
        """`prepare(revision_id)` makes sure the environment is here; raises HostUnusable."""
        self._settings = settings
        self._prepare = prepare
        self._limits_of = limits_of
        self._limits: dict[UUID, HostLimits] = {}
        self._flats: dict[UUID, _Flat] = {}
        self._lone: list[Host] = []
        self._watcher = gevent.spawn(self._watch)

    def acquire(self, revision_id: UUID, *, alone: bool = False) -> Host:
        """The least busy healthy host of a revision, started if there is none; raises HostUnusable.

        `alone`: a host that no other run is or will be on.
        """
        if alone:
            host = self._open(revision_id)
            host.exclusive = True
            self._lone.append(host)
            host.wait_ready()
            return host
        while not (host := _least_busy(self._flat(revision_id))):
            alive = [host for host in self._flat(revision_id).hosts if host.died is None]
            if len(alive) >= 2 * self._most(revision_id):
                return min(alive, key=lambda host: host.silence)
            self._start_shared(revision_id)
        if self._wants_company(self._flat(revision_id), self._most(revision_id)):
            gevent.spawn(self._start_quietly, revision_id)
        return host

    def _flat(self, revision_id: UUID) -> _Flat:
        """Looked up after every wait: an empty one may have gone meanwhile."""
        return self._flats.setdefault(revision_id, _Flat())

    def _most(self, revision_id: UUID) -> int:
        """How many hosts a revision may have here, not counting those that do not answer."""
        own = self._limits.get(revision_id)
        return (own.hosts_per_runner if own else None) or self._settings.hosts_per_revision

    def _wants_company(self, flat: _Flat, most: int) -> bool:
        return (
            flat.starting is None
            and len(flat.hosts) < most
            and all(h.guests and (h.delay > SLOW_SECONDS or h.silence > SLOW_SECONDS) for h in flat.hosts)
        )

    def warm(self, revision_id: UUID) -> None:
        """Have a host of this revision ready before anybody asks."""
        flat = self._flat(revision_id)
        if not flat.hosts and flat.starting is None:
            self._start_quietly(revision_id)

    def _start_quietly(self, revision_id: UUID) -> None:
        try:
            self._start_shared(revision_id)
        except HostUnusable as error:
            log.warning("revision %s: no host: %s", revision_id, error)

    def _start_shared(self, revision_id: UUID) -> None:
        """Start one host, or wait for the one that is being started; raises HostUnusable."""
        flat = self._flat(revision_id)
        if flat.starting is not None:
            flat.starting.get()
            return
        flat.starting = started = AsyncResult()
        try:
            host = self._open(revision_id)
            host.wait_ready()
            flat.hosts.append(host)
            started.set(host)
        except HostUnusable as error:
            started.set_exception(error)
            raise
        except Exception as error:
            started.set_exception(HostUnusable(str(error)))
            raise
        finally:
            flat.starting = None

    def _open(self, revision_id: UUID) -> Host:
        self._make_room()
        command, output = self._prepare(revision_id)
        own = self._limits[revision_id] = self._limits_of(revision_id)
        log.info("starting a host of revision %s", revision_id)
        host = Host(revision_id, command, self._settings, output)
        if own.memory_mb is not None:
            host.memory_mb = min(own.memory_mb, self._settings.host_memory_mb)
        return host

    def adjust(self, limits: Mapping[UUID, HostLimits]) -> None:
        """Deployments' limits as they are now: idle hosts beyond them stop, those of deleted ones too."""
        self._limits.update(limits)
        for revision_id, own in limits.items():
            hosts = [host for host in self.all() if host.revision_id == revision_id and host.died is None]
            if not hosts:
                self._limits.pop(revision_id, None)
            kept = 0 if own.is_gone else self._most(revision_id)
            why = "its deployment is gone" if own.is_gone else "its deployment may have fewer"
            shared = [host for host in hosts if not host.exclusive]
            idle = [host for host in shared if not host.guests]
            for host in idle[: max(len(shared) - kept, 0)]:
                self._evict(host, why)

    def _make_room(self) -> None:
        hosts = [host for host in self.all() if host.died is None]
        if len(hosts) < self._settings.max_hosts:
            return
        idle = sorted((host for host in hosts if not host.guests), key=lambda host: host.last_used)
        if idle:
            self._evict(idle[0], "makes room for another revision")

    def _evict(self, host: Host, why: str) -> None:
        log.info("host %s of revision %s stops: %s", host.pid, host.revision_id, why)
        self._forget(host)
        host.stop()

    def _forget(self, host: Host) -> None:
        hosts = self._lone if host.exclusive else self._flat(host.revision_id).hosts
        if host in hosts:
            hosts.remove(host)

    def all(self) -> Iterator[Host]:
        for flat in tuple(self._flats.values()):
            yield from tuple(flat.hosts)
        yield from tuple(self._lone)

    def _watch(self) -> None:
        while True:
            gevent.sleep(PING_SECONDS)
            try:
                for host in self.all():
                    self._look_after(host)
                self._clear()
            except Exception:  # the outermost loop: hosts must be watched whatever happens
                log.exception("watching the hosts failed, going on")

    def _clear(self) -> None:
        """Forget the revisions that have no host and get none."""
        for revision_id, flat in tuple(self._flats.items()):
            if not flat.hosts and flat.starting is None:
                del self._flats[revision_id]
        used = {*self._flats, *(host.revision_id for host in self._lone)}
        self._limits = {key: limits for key, limits in self._limits.items() if key in used}

    def _look_after(self, host: Host) -> None:
        if host.died is not None:
            self._forget(host)
            return
        host.ping()
        used = resident_bytes(host.pid)
        host.used_bytes = used
        if used > host.memory_mb * 1024 * 1024:
            host.kill(f"used {used // 1024 // 1024} MiB, more than {host.memory_mb} MiB")
        elif not host.guests and time.monotonic() - host.last_used > self._settings.host_idle_seconds:
            self._evict(host, "was idle")

    def close(self) -> None:
        """End every host."""
        self._watcher.kill()
        for host in self.all():
            host.kill("the runner stops")


def _least_busy(flat: _Flat) -> Host | None:
    healthy = [host for host in flat.hosts if host.is_healthy]
    if not healthy:
        return None
    return min(healthy, key=lambda host: (host.delay > SLOW_SECONDS, len(host.guests)))
