"""Calls and requests to user code other than graphs: authorization calls, and requests to a project's app.

The runner takes the waiting requests of the revisions that it has hosts of. One Redis connection waits on the lists of
all these revisions. A call enters a host as a QUERY, and its answer goes to the inbox of the calling process. A request
to the app becomes a `Relay`. Requests of a revision without a host on any runner stay in their list; a notification
has a runner start a host first.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import cast
from uuid import UUID

import gevent
import orjson
from gevent.event import AsyncResult, Event
from gevent.pool import Group
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared.errors import HostDied, HostError, Unavailable
from shared.hosts import channel, pending_calls
from shared.hosts.channel import ANSWER, REFUSED, TAKEN
from shared.hosts.pending_calls import CALL, EXCHANGE, WaitingRequest
from shared.infra import broker, redis
from shared.infra.encryption import Undecryptable
from shared.infra.loops import forever
from shared.infra.postgres import dumps
from shared.settings import Settings
from workers.graph_host import frames
from workers.runner.host_pool import HostPool
from workers.runner.loopback import Loopbacks
from workers.runner.quarantine import OPEN
from workers.runner.relay import Relay

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # how long to wait on the lists before reading again which revisions have hosts
# Most requests of one revision at the same time, so that a host that hangs leaves capacity for other revisions.
AT_ONCE = {
    CALL: 256,
    EXCHANGE: 1000,
}
LONG_SECONDS = 0.25  # a call that takes longer is monitored by heartbeats
PASS_ON_SECONDS = 0.2


class UserCodeRunner:
    """Takes and serves the waiting calls and app requests of one runner."""

    def __init__(self, settings: Settings, hosts: HostPool) -> None:
        self._settings = settings
        self._hosts = hosts
        self._is_draining = False
        self._in_work: Counter[tuple[str, UUID]] = Counter()
        self._group = Group()
        self._wake_list = f"{redis.PREFIX}user-code:wake:{settings.worker}"
        hosts.on_ready = self._wake
        hosts.on_open = Loopbacks(settings).begin
        self._listener = gevent.spawn(
            forever, self._listen, 0, what="listening for calls", retry=(0.1, 1.0), until=self._is_over
        )

    # starting hosts

    def prepare_all(self, revision_ids: Iterable[UUID]) -> None:
        """Start a host of each of these revisions, since requests wait for one. A draining runner notifies others."""
        for revision_id in revision_ids:
            self._group.spawn(self._pass_on if self._is_draining else self._prepare, revision_id)

    def _pass_on(self, revision_id: UUID) -> None:
        gevent.sleep(PASS_ON_SECONDS)  # until this process's consumer has stopped; it would receive it again
        broker.enqueue_host(self._settings.pool, revision_id)

    def _prepare(self, revision_id: UUID) -> None:
        try:
            self._hosts.acquire(revision_id)
        except HostError as error:
            self._refuse_all(revision_id, error.message)

    def _refuse_all(self, revision_id: UUID, reason: str) -> None:
        """Refuse all requests that wait for a revision whose host cannot be started."""
        for kind in AT_ONCE:
            try:
                while found := redis.client().rpop(pending_calls.list_of(kind, revision_id)):
                    id, request = pending_calls.parse(cast("bytes", found))
                    channel.send(request.inbox, channel.encode(REFUSED, id, refusal("unavailable", reason)))
            except (RedisError, Undecryptable) as error:
                log.warning("revision %s: those that wait for a host learn nothing: %s", revision_id, error)

    # taking requests

    def _listen(self) -> None:
        """Wait for a request of any revision with a host here, and take it."""
        lists = {
            pending_calls.list_of(kind, revision_id).encode(): (kind, revision_id)
            for kind, most in AT_ONCE.items()
            for revision_id in self._ready_revisions()
            if self._in_work[kind, revision_id] < most
        }
        found = redis.client().brpop([*lists, self._wake_list], timeout=LOOK_SECONDS)
        if found is None:
            return
        name, value = cast("tuple[bytes, bytes]", found)
        if (place := lists.get(name)) is not None:
            self._group.spawn(self._take, *place, value)

    def _ready_revisions(self) -> set[UUID]:
        return {
            host.revision_id
            for host in self._hosts.all()
            if host.group == OPEN and host.is_healthy and not host.is_retiring
        }

    def _wake(self) -> None:
        """Have `_listen` read again which revisions have hosts, and which have capacity."""
        gevent.spawn(self._push_wake)

    def _push_wake(self) -> None:
        try:
            redis.client().lpush(self._wake_list, b"")
            redis.client().expire(self._wake_list, 60)
        except RedisError:
            return  # `_listen` reads them again after LOOK_SECONDS

    def _take(self, kind: str, revision_id: UUID, item: bytes) -> None:
        """Serve a request, or put it back for another runner if this one drains or has no host of the revision."""
        if self._is_draining or revision_id not in self._ready_revisions():
            self._give_back(kind, revision_id, item)
            return
        self._in_work[kind, revision_id] += 1
        try:
            self._execute(kind, revision_id, *pending_calls.parse(item))
        except Undecryptable as error:
            log.warning("a call of revision %s cannot be read: %s", revision_id, error)
        except Exception:  # outermost loop: a bug of the runner; the waiting caller times out
            log.exception("a call of revision %s failed", revision_id)
        finally:
            self._in_work[kind, revision_id] -= 1
            if self._in_work[kind, revision_id] == AT_ONCE[kind] - 1:
                self._wake()
            if not self._in_work[kind, revision_id]:
                del self._in_work[kind, revision_id]

    def _give_back(self, kind: str, revision_id: UUID, item: bytes) -> None:
        try:
            pending_calls.give_back(kind, revision_id, item)
        except RedisError as error:
            log.warning("a call of revision %s is lost: %s", revision_id, error)
        broker.enqueue_host(self._settings.pool, revision_id)

    def _execute(self, kind: str, revision_id: UUID, id: bytes, request: WaitingRequest) -> None:
        if kind == CALL:
            _CallInHost(self._hosts, revision_id, id, request).execute()
            return
        try:
            Relay(revision_id, id, request).execute(self._hosts)
        except (HostError, Unavailable) as error:
            channel.send(request.inbox, channel.encode(REFUSED, id, refusal("unavailable", error.message)))

    # ending

    def _is_over(self) -> bool:
        return self._is_draining

    def drain(self) -> None:
        """Take no new requests."""
        self._is_draining = True
        self._wake()

    def close(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for the requests in progress, then end them."""
        self._is_draining = True
        self._listener.kill()
        self._group.join(timeout=seconds)
        self._group.kill()


class _CallInHost:
    """One call in a graph host, with one repetition if the host dies."""

    def __init__(self, hosts: HostPool, revision_id: UUID, id: bytes, request: WaitingRequest) -> None:
        self._hosts = hosts
        self._revision_id = revision_id
        self._id = id
        self._request = request
        self._answer: AsyncResult = AsyncResult()

    def execute(self) -> None:
        watch = gevent.spawn_later(LONG_SECONDS, self._watch)
        try:
            kind, body = self._outcome()
        finally:
            watch.kill(block=False)
        channel.send(self._request.inbox, channel.encode(kind, self._id, body))

    def _watch(self) -> None:
        """Tell the caller that this runner works on the call. Both sides send heartbeats from then on."""
        line, own_id, asked_by = channel.inbox().line(), uuid7().bytes, self._request.inbox
        with line.receiving(own_id, channel.Watched(asked_by)):
            channel.send(asked_by, channel.encode(TAKEN, self._id, channel.place(line.address, own_id)))
            Event().wait()  # until the call is over

    def _outcome(self) -> tuple[int, bytes]:
        try:
            return ANSWER, self._ask_again()
        except gevent.Timeout:
            return REFUSED, refusal("unanswered", "the project's function did not answer in time")
        except HostDied as error:
            return REFUSED, refusal("died", f"the graph host {error.message}")
        except HostError as error:
            return REFUSED, refusal("unavailable", error.message)
        except (frames.BadFrame, Unavailable) as error:
            return REFUSED, refusal("failed", str(error))

    def _ask_again(self) -> bytes:
        began = time.monotonic()
        try:
            return self._ask()
        except HostDied:
            if time.monotonic() - began > self._request.seconds:
                raise
            return self._ask()  # a call changes nothing, so it is safe to repeat in another host

    def _ask(self) -> bytes:
        self._answer = AsyncResult()
        host = self._hosts.acquire(self._revision_id)
        try:
            host.enter(self._id, self, dumps(self._request.document).encode(), kind=frames.QUERY)
            body = cast("bytes", self._answer.get(timeout=self._request.seconds))
        finally:
            host.leave(self._id)
        parts = frames.unpack(body)
        if len(parts) != 1:
            raise frames.BadFrame("an answer of several parts")
        return parts[0]

    # as an occupant of the host

    def received(self, kind: int, body: bytes) -> None:
        if kind == frames.ANSWER:
            self._answer.set(body)

    def host_died(self, error: HostError) -> None:
        self._answer.set_exception(error)

    def wait_until_drained(self) -> None:
        """Return at once: a call has no events."""


def refusal(kind: str, message: str) -> bytes:
    """Return the body of a REFUSED message. `kind` is a key of `shared.hosts.calls.REFUSALS`."""
    return orjson.dumps({"kind": kind, "message": message})
