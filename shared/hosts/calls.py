"""Calls to graph hosts with one answer: web sends the call, a runner with a host of the revision answers.

The operations are those of `workers/graph_host/queries.py`, and `ready`, which needs only a host. Answers above
MAX_MESSAGE_BYTES wait in Redis under a key of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, cast
from uuid import UUID

import orjson
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared import fleet
from shared.errors import (
    Conflict,
    HostDied,
    HostError,
    HostUnusable,
    Invalid,
    RunyardError,
    TooLarge,
    Unanswered,
    Unavailable,
)
from shared.hosts import channel, pending_calls
from shared.hosts.channel import ANSWER, LOST, REFUSED, STORED, TAKEN, Endpoint
from shared.hosts.pending_calls import CALLS, HostCall, PendingCall, RunnerLost
from shared.infra import redis
from shared.infra.postgres import connection

log = logging.getLogger(__name__)

TRIES = 2  # of a repeatable call whose runner is lost
MAX_MESSAGE_BYTES = 256 * 1024  # Redis disconnects subscribers that have 32 MB of unread messages
KEPT_SECONDS = 60  # lifetime of a stored answer that its caller does not read
THREAD_SECONDS = 30.0  # total time of calls about threads and stores: clients and proxies give up then
READY_SECONDS = 20.0  # shorter, because the caller does more than wait for the host
READY = "ready"

# The error of each kind of refusal, the most specific first.
REFUSALS: dict[str, type[RunyardError]] = {
    "invalid": Invalid,
    "conflict": Conflict,
    "too_large": TooLarge,
    "unavailable": Unavailable,
    "unanswered": Unanswered,
    "died": HostDied,
    "unusable": HostUnusable,
    "failed": HostError,
}


def call(request: HostCall) -> bytes:
    """Send a call and return its answer as JSON.

    Raises the error of a refusal: see REFUSALS. Raises Unavailable if no host of the revision becomes ready in time or
    the runner is lost twice. Raises Unanswered if the time is over, or if the runner of a call is lost that may not be
    repeated.
    """
    give_up_at = time.monotonic() + request.total_seconds
    tries = TRIES if request.is_repeatable else 1
    while True:
        tries -= 1
        try:
            return _Call(request, give_up_at).answer()
        except RunnerLost as error:
            if not request.is_repeatable:
                raise Unanswered(error.message) from error
            if not tries:
                raise Unavailable(f"{error.message} (in both attempts)") from error


def embed(
    deployment_id: UUID, revision_id: UUID, pool: str, ops: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Have a host compute the vectors of store operations. Returns a record per operation. Raises as `call` does."""
    document = {"op": "embed", "ops": ops}
    request = HostCall(
        deployment_id=deployment_id,
        revision_id=revision_id,
        pool=pool,
        document=document,
        total_seconds=THREAD_SECONDS,
    )
    return orjson.loads(call(request))


def announce(revision_id: UUID, pool: str) -> None:
    """Notify every runner of the pool to start a host of the revision.

    If the message is lost, the revision's first run waits longer.
    """
    try:
        redis.broker().publish(redis.warm_channel(pool), str(revision_id))
    except RedisError as error:
        log.info("revision %s: the runners were not notified to start a host: %s", revision_id, error)


def prepare(deployment_id: UUID, revision_id: UUID, pool: str) -> None:
    """Notify the runners as `announce` does, and wait up to READY_SECONDS until one has a host of the revision.

    Returns at once if the pool has no runner. Raises HostUnusable if the host cannot be started.
    """
    with connection() as conn:
        if not fleet.has_runner(conn, pool):
            return
    announce(revision_id, pool)
    try:
        call(
            HostCall(
                deployment_id=deployment_id,
                revision_id=revision_id,
                pool=pool,
                document={"op": READY},
                total_seconds=READY_SECONDS,
            )
        )
    except (Unanswered, Unavailable) as error:
        log.warning("revision %s: no runner has started a host yet: %s", revision_id, error.message)
    except HostError as error:
        raise HostUnusable(error.message) from error


def refusal(kind: str, message: str) -> bytes:
    """Return the body of a REFUSED message. `kind` is a key of REFUSALS."""
    return orjson.dumps({"kind": kind, "message": message})


def refusal_of(error: RunyardError) -> bytes:
    """Return the body of a REFUSED message that has the caller raise this error, or HostError if it has no kind."""
    kind = next((kind for kind, raised in REFUSALS.items() if isinstance(error, raised)), "failed")
    return refusal(kind, f"the graph host {error.message}" if kind == "died" else error.message)


def _error_of(body: bytes) -> RunyardError:
    """Return the error of a REFUSED message."""
    refused = orjson.loads(body)
    if refused["kind"] == "invalid":
        return Invalid(refused["message"], status=400)
    return REFUSALS[refused["kind"]](refused["message"])


def reply(caller: Endpoint, answer: bytes) -> None:
    """Send the answer of a call to its caller: in the message, or stored in Redis if it is large."""
    if len(answer) <= MAX_MESSAGE_BYTES:
        channel.send(caller, ANSWER, answer)
        return
    try:
        redis.client().set(channel.answer_key(caller.id), answer, ex=KEPT_SECONDS)
    except RedisError as error:
        reason = f"the event bus does not accept the answer: {error}"
        channel.send(caller, REFUSED, refusal("unavailable", reason))
        return
    channel.send(caller, STORED, b"")


class _Call:
    """One attempt of a call, as the receiver of its answer."""

    def __init__(self, request: HostCall, give_up_at: float) -> None:
        self.peer: str | None = None
        self._request = request
        self._give_up_at = give_up_at
        self._id = uuid7().bytes
        self._messages: SimpleQueue[tuple[int, bytes]] = SimpleQueue()

    def answer(self) -> bytes:
        subscription = channel.channel().subscription()
        pending = PendingCall(Endpoint(subscription.address, self._id), self._request)
        with subscription.receiving(self._id, self):
            kind, body = pending_calls.send(CALLS, pending, self._next)
            if kind == TAKEN:
                kind, body = self._wait_for_end()
        if kind == REFUSED:
            raise _error_of(body)
        return self._stored() if kind == STORED else body

    def _wait_for_end(self) -> tuple[int, bytes]:
        """Wait for the message after TAKEN. The runner ends the call in time, unless its heartbeats stop."""
        message = self._next(2 * (self._request.start_seconds + self._request.timeout_seconds))
        if message is None:
            raise Unanswered("the project's function did not answer in time")
        return message

    def _next(self, seconds: float) -> tuple[int, bytes] | None:
        """Return the next message, or None after `seconds`.

        Raises RunnerLost, and Unanswered when the call's total time is over.
        """
        left = max(self._give_up_at - time.monotonic(), 0.0)
        try:
            kind, body = self._messages.get(timeout=min(seconds, left))
        except Empty:
            if left <= seconds:
                raise Unanswered(f"no runner of the pool '{self._request.pool}' answered in time") from None
            return None
        if kind == LOST:
            raise RunnerLost(body.decode())
        return kind, body

    def _stored(self) -> bytes:
        try:
            stored = redis.client().getdel(channel.answer_key(self._id))
        except RedisError as error:
            raise Unavailable(f"the event bus does not answer: {error}") from error
        if stored is None:
            raise RunnerLost("the stored answer was lost")
        return cast("bytes", stored)

    # called by the subscription

    def received(self, kind: int, number: int, body: bytes) -> None:
        if kind == TAKEN:
            self.peer = Endpoint.decode(body).address
        if kind in (ANSWER, STORED, TAKEN, REFUSED):
            self._messages.put((kind, body))

    def lost(self, reason: str) -> None:
        self._messages.put((LOST, reason.encode()))
