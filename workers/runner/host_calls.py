"""Calls to graph hosts: reads and updates of threads, embeddings, authorization, and requests to a project's app.

The runner takes the waiting calls of the revisions that it has hosts of. One Redis connection waits on the lists of all
these revisions. A call with one answer enters a host as a QUERY. A request to the app becomes a `Relay`. Calls of a
revision without a host on any runner stay in their list; a notification has a runner start a host first.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast
from uuid import UUID

import gevent
import orjson
from gevent.event import AsyncResult, Event
from gevent.pool import Group
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared.errors import (
    Conflict,
    HostDied,
    HostError,
    Invalid,
    NotFound,
    RunyardError,
    TooLarge,
    Unanswered,
    Unavailable,
)
from shared.hosts import calls, channel, pending_calls
from shared.hosts.channel import REFUSED, TAKEN, Endpoint
from shared.hosts.pending_calls import CALLS, EXCHANGES, PendingCall
from shared.infra import broker, redis
from shared.infra.encryption import Undecryptable
from shared.infra.loops import forever
from shared.infra.postgres import connection, dumps
from shared.settings import Settings
from shared.threads import state
from workers.celery_app import PASS_ON_SECONDS
from workers.graph_host import frames
from workers.runner import host_requests
from workers.runner.host import MALFORMED_FRAME_ERRORS, Host
from workers.runner.host_pool import HostPool
from workers.runner.quarantine import DEFAULT_GROUP, SCORING_GROUP, group_of_call
from workers.runner.relay import Relay

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # how long to wait on the lists before reading again which revisions have hosts
# Most calls of one revision at the same time, so that a host that hangs leaves capacity for other revisions.
AT_ONCE = {CALLS: 256, EXCHANGES: 1000}
LONG_SECONDS = 0.25  # a call that takes longer is monitored by heartbeats
UPDATE_TRIES = 3  # of an update whose thread changes before it is stored


class HostCalls:
    """Takes the waiting calls and app requests of one runner, and answers them."""

    def __init__(self, settings: Settings, hosts: HostPool) -> None:
        self._settings = settings
        self._hosts = hosts
        self._is_draining = False
        self._in_progress: Counter[tuple[str, UUID]] = Counter()
        self._group = Group()
        self._wake_list = f"{redis.PREFIX}hosts:wake:{settings.worker}"
        hosts.on_ready = self._wake
        self._listener = gevent.spawn(
            forever,
            self._listen,
            0,
            what="listening for calls",
            retry=(0.1, 1.0),
            until=lambda: self._is_draining,
        )

    # starting hosts

    def prepare_all(self, revision_ids: Iterable[UUID]) -> None:
        """Start a host of each of these revisions, since calls wait for one. A draining runner notifies others."""
        for revision_id in revision_ids:
            self._group.spawn(self._pass_on if self._is_draining else self._prepare, revision_id)

    def _pass_on(self, revision_id: UUID) -> None:
        gevent.sleep(PASS_ON_SECONDS)
        broker.enqueue_host(self._settings.pool, revision_id)

    def _prepare(self, revision_id: UUID) -> None:
        try:
            self._hosts.acquire(revision_id)
        except HostError as error:
            self._refuse_all(revision_id, error)

    def _refuse_all(self, revision_id: UUID, reason: HostError) -> None:
        """Refuse all calls that wait for a revision whose host cannot be started."""
        for kind in AT_ONCE:
            try:
                while item := redis.client().rpop(pending_calls.list_of(kind, revision_id)):
                    pending = pending_calls.decode(revision_id, cast("bytes", item))
                    channel.send(pending.caller, REFUSED, calls.refusal_of(reason))
            except (RedisError, Undecryptable) as error:
                log.warning(
                    "revision %s: the calls that wait for a host are not refused: %s", revision_id, error
                )

    # taking calls

    def _listen(self) -> None:
        """Wait for a call of any revision with a host here, and take it."""
        lists = {
            pending_calls.list_of(kind, revision_id).encode(): (kind, revision_id)
            for kind, most in AT_ONCE.items()
            for revision_id in self._ready_revisions()
            if self._in_progress[kind, revision_id] < most
        }
        popped = redis.client().brpop([*lists, self._wake_list], timeout=LOOK_SECONDS)
        if popped is None:
            return
        name, item = cast("tuple[bytes, bytes]", popped)
        if (place := lists.get(name)) is not None:
            self._group.spawn(self._take, *place, item)

    def _ready_revisions(self) -> set[UUID]:
        groups = (DEFAULT_GROUP, SCORING_GROUP)
        return {host.revision_id for host in self._hosts.all() if host.group in groups and host.takes_runs}

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
        """Answer a call, or put it back for another runner if this one drains or has no host of the revision."""
        if self._is_draining or revision_id not in self._ready_revisions():
            self._give_back(kind, revision_id, item)
            return
        self._in_progress[kind, revision_id] += 1
        try:
            self._answer(kind, pending_calls.decode(revision_id, item))
        except Undecryptable as error:
            log.warning("a call of revision %s cannot be read: %s", revision_id, error)
        finally:
            self._in_progress[kind, revision_id] -= 1
            if self._in_progress[kind, revision_id] == AT_ONCE[kind] - 1:
                self._wake()
            if not self._in_progress[kind, revision_id]:
                del self._in_progress[kind, revision_id]

    def _give_back(self, kind: str, revision_id: UUID, item: bytes) -> None:
        try:
            pending_calls.give_back(kind, revision_id, item)
        except RedisError as error:
            log.warning("a call of revision %s is lost: %s", revision_id, error)
        broker.enqueue_host(self._settings.pool, revision_id)

    def _answer(self, kind: str, pending: PendingCall) -> None:
        try:
            if kind == CALLS:
                _CallInHost(self._hosts, pending).execute()
            else:
                Relay(pending).execute(self._hosts)
        except RunyardError as error:
            channel.send(pending.caller, REFUSED, calls.refusal_of(error))
        except Exception:  # outermost loop: a bug of the runner, and the caller still needs an answer
            log.exception("a call of revision %s failed", pending.call.revision_id)
            channel.send(pending.caller, REFUSED, calls.refusal("failed", "internal error"))

    # ending

    def drain(self) -> None:
        """Take no new calls."""
        self._is_draining = True
        self._wake()

    def close(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for the calls in progress, then end them."""
        self._is_draining = True
        self._listener.kill()
        self._group.join(timeout=seconds)
        self._group.kill()


class _CallInHost:
    """One call in a graph host, as an occupant. A repeatable call is repeated once if its host dies.

    The host reads checkpoints and store items through the runner. The answer to an update of a thread's state contains
    the data to store, and the runner stores it in one transaction with the thread's row.
    """

    def __init__(self, hosts: HostPool, pending: PendingCall) -> None:
        self._hosts = hosts
        self._call = pending.call
        self._caller = pending.caller
        self._id = pending.id
        self._host: Host | None = None
        self._parts: AsyncResult = AsyncResult()

    def execute(self) -> None:
        """Execute the call and send its answer. Raises RunyardError if it must be refused."""
        if not self._call.is_repeatable and not channel.has_subscriber(self._caller.address):
            return  # its caller has ended, and its client may have sent it again meanwhile
        watch = gevent.spawn_later(LONG_SECONDS, self._watch)
        try:
            calls.reply(self._caller, self._answer())
        finally:
            watch.kill(block=False)

    def _watch(self) -> None:
        """Notify the caller that this runner executes the call. Both sides send heartbeats from then on."""
        subscription, id = channel.channel().subscription(), uuid7().bytes
        with subscription.receiving(id, channel.Watched(self._caller.address)):
            channel.send(self._caller, TAKEN, Endpoint(subscription.address, id).encode())
            Event().wait()  # until the call is over

    def _answer(self) -> bytes:
        match self._call.document["op"]:
            case calls.READY:
                self._hosts.acquire(self._call.revision_id)
                return b"{}"
            case "update":
                return self._update()
        document, *blobs = self._ask_up_to_twice() if self._call.is_repeatable else self._ask()
        if blobs:
            raise HostError("the graph host sent an answer of several parts")
        return document

    def _ask_up_to_twice(self) -> list[bytes]:
        began = time.monotonic()
        try:
            return self._ask()
        except HostDied:
            if time.monotonic() - began > self._call.timeout_seconds:
                raise
            return self._ask()

    def _ask(self) -> list[bytes]:
        """Return the parts of the host's answer. Raises the error of a refusal, and Unanswered."""
        self._parts = AsyncResult()
        group = group_of_call(UUID(bytes=self._id), self._call.document)
        self._host = host = self._hosts.acquire(self._call.revision_id, group)
        try:
            document = {name: part for name, part in self._call.document.items() if name != "cancels"}
            host.enter(self._id, self, dumps(document).encode(), kind=frames.QUERY)
            parts = cast("list[bytes]", self._parts.get(timeout=self._call.timeout_seconds))
        except gevent.Timeout:
            raise Unanswered("the project's function did not answer in time") from None
        finally:
            host.leave(self._id)
        if parts[0].startswith(b'{"refused"'):
            raise _refusal_of_host(parts[0])
        return parts

    def _update(self) -> bytes:
        """Have the host compute an update, and store its result. Repeats both if the thread has changed meanwhile."""
        call = self._call
        assert call.thread_id is not None  # only threads are updated
        for tries_left in reversed(range(UPDATE_TRIES)):
            document, *blobs = self._ask()
            answer = orjson.loads(document)
            try:
                with connection() as conn:
                    state.store_update(
                        conn,
                        call.deployment_id,
                        call.thread_id,
                        UUID(bytes=self._id),
                        answer,
                        blobs[0],
                        blobs[1:],
                        from_newest=not call.document.get("checkpoint"),
                        cancels=call.document.get("cancels"),
                    )
            except state.StaleUpdate:
                if not tries_left:
                    raise
                continue
            except NotFound as error:  # the thread was deleted meanwhile
                raise Conflict(error.message) from error
            return orjson.dumps({"checkpoint": answer["checkpoint"]})
        raise AssertionError("the last try returns or raises")

    # as an occupant of the host

    def received(self, kind: int, body: bytes) -> None:
        if kind == frames.ANSWER:
            parts = frames.unpack(body)
            if not parts:
                raise frames.BadFrame("an answer without parts")
            self._parts.set(parts)
        elif kind == frames.ASK:
            # An error in this greenlet ends the call. Otherwise the host would wait for its reply.
            gevent.spawn(self._reply, frames.unpack(body)).link_exception(self._parts)

    def _reply(self, parts: list[bytes]) -> None:
        ask: dict[str, Any] = orjson.loads(parts[0])
        try:
            results = host_requests.answer_call(self._call, ask)
        except Unavailable as error:
            self._parts.set_exception(error)
            return
        head = dumps({"ask": ask["ask"]}).encode()
        if self._host is not None and self._host.died is None:
            try:
                self._host.send(frames.REPLY, self._id, frames.pack([head, *results]))
            except HostDied:
                return  # `host_died` answers the call

    def host_died(self, error: HostError) -> None:
        self._parts.set_exception(error)

    def wait_until_drained(self) -> None:
        """Return at once: a call has no events."""


def _refusal_of_host(document: bytes) -> RunyardError:
    """Return the error for an answer `{"refused": {"kind", "error", "message"}}`; see `workers/graph_host/queries.py`."""
    try:
        refused = orjson.loads(document)["refused"]
        kind, message = refused["kind"], str(refused["message"])
        if kind == "invalid":
            return Invalid(message, status=400)
        if kind == "too_large":
            return TooLarge(message)
        return HostError(f"{refused['error']}: {message}")
    except MALFORMED_FRAME_ERRORS as error:
        return HostError(f"the graph host sent a refusal that cannot be read: {error!r}")
