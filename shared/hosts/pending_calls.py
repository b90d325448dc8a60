"""Calls in Redis that wait for a runner with a graph host of their revision.

A call waits in the list of its revision, and one runner takes it. If no runner takes it within a moment, the runners of
the pool are notified, and one of them starts a host. A call contains what clients sent, including credentials and the
records of users, so it is encrypted. A caller that gives up removes its call. A list expires if nothing is added to it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import orjson
from redis.exceptions import RedisError

from shared.errors import Unavailable
from shared.hosts.channel import GONE_SECONDS, NOBODY, Endpoint
from shared.infra import broker, encryption
from shared.infra.postgres import dumps
from shared.infra.redis import PREFIX, client

CALLS, EXCHANGES = "calls", "exchanges"  # kinds: calls with one answer, and exchanges with the project's app

KEPT_SECONDS = 300
UNTAKEN_SECONDS = 0.25  # then the runners are notified
NOTIFY_AGAIN_SECONDS = 2.0
SLACK_SECONDS = 3.0  # for the first message of the runner that took a repeatable call

Message = TypeVar("Message")

_notified: dict[UUID, float] = {}  # revision → when its runners were notified
_notified_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call to a graph host of a revision, and its time limits."""

    deployment_id: UUID
    revision_id: UUID
    pool: str
    document: Mapping[str, Any]  # body of a QUERY or OPEN frame of `workers/graph_host/frames.py`
    thread_id: UUID | None = None  # the thread whose checkpoints the host may read
    start_seconds: float = 60.0  # for a host to become ready
    timeout_seconds: float = 30.0  # for the answer of a ready host
    total_seconds: float = math.inf  # for both together
    is_repeatable: bool = True  # whether it may be sent again if its runner or host is lost


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call as a runner takes it, and where its answer goes."""

    caller: Endpoint
    call: HostCall

    @property
    def id(self) -> bytes:
        return self.caller.id


class RunnerLost(Unavailable):
    """The runner that took the call is gone, or can no longer reach this process."""


def list_of(kind: str, revision_id: UUID) -> str:
    """Return the key of the list in which a revision's calls of this kind wait."""
    return f"{PREFIX}hosts:{kind}:{revision_id}"


def send(kind: str, pending: PendingCall, receive: Callable[[float], Message | None]) -> Message:
    """Add a call to its revision's list, wait until a runner takes it, and return the runner's first message.

    `receive(seconds)` waits for a message and returns None if none arrives. Raises Unavailable if no runner takes the
    call in time, and RunnerLost if the runner that took it sends nothing.
    """
    name, item = list_of(kind, pending.call.revision_id), _encode(pending)
    _put(name, item)
    with ExitStack() as stack:
        stack.callback(_remove, name, item)
        message = _wait_until_accepted(pending.call, name, item, receive)
        if message is None and (message := receive(_slack_seconds(pending.call))) is None:
            raise RunnerLost("the runner that took the call does not answer")
        stack.pop_all()  # a runner has it, so the list does not contain it any more
    return message


def _slack_seconds(call: HostCall) -> float:
    """Return how long the runner that took a call may send nothing. Ending a call early helps only if it is repeated."""
    return SLACK_SECONDS if call.is_repeatable else GONE_SECONDS


def _encode(pending: PendingCall) -> bytes:
    call = pending.call
    document = dumps(
        {
            "address": pending.caller.address,
            "deployment_id": call.deployment_id,
            "pool": call.pool,
            "document": call.document,
            "thread_id": call.thread_id,
            "timeout_seconds": call.timeout_seconds,
            "is_repeatable": call.is_repeatable,
        }
    )
    return pending.id + encryption.encrypt(document)


def decode(revision_id: UUID, item: bytes) -> PendingCall:
    """Decrypt a list item. Raises Undecryptable."""
    id, encrypted = item[: len(NOBODY)], item[len(NOBODY) :]
    stored = orjson.loads(encryption.decrypt(encrypted))
    call = HostCall(
        deployment_id=UUID(stored["deployment_id"]),
        revision_id=revision_id,
        pool=stored["pool"],
        document=stored["document"],
        thread_id=UUID(stored["thread_id"]) if stored["thread_id"] else None,
        timeout_seconds=stored["timeout_seconds"],
        is_repeatable=stored["is_repeatable"],
    )
    return PendingCall(Endpoint(stored["address"], id), call)


def _put(name: str, item: bytes) -> None:
    pipeline = client().pipeline(transaction=False)
    pipeline.lpush(name, item)
    pipeline.expire(name, KEPT_SECONDS)
    try:
        pipeline.execute()
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error


def give_back(kind: str, revision_id: UUID, item: bytes) -> None:
    """Return an item to the front of the list for another runner. Raises RedisError."""
    client().rpush(list_of(kind, revision_id), item)


def _remove(name: str, item: bytes) -> None:
    """Remove an item because its caller no longer waits."""
    try:
        client().lrem(name, 0, item)  # type: ignore[arg-type]  bytes are text to Redis
    except RedisError:
        return  # it expires


def _wait_until_accepted(
    call: HostCall, name: str, item: bytes, receive: Callable[[float], Message | None]
) -> Message | None:
    """Return the first message, or None once a runner has taken the call."""
    give_up_at = time.monotonic() + call.start_seconds
    pause = UNTAKEN_SECONDS
    while (message := receive(pause)) is None:
        if not _is_waiting(call, name, item):
            return None
        if time.monotonic() > give_up_at:
            raise Unavailable("no graph host of the revision was available in time")
        pause = NOTIFY_AGAIN_SECONDS
    return message


def _is_waiting(call: HostCall, name: str, item: bytes) -> bool:
    """Return whether the item is still in the list. If so, the runners are notified. Raises Unavailable."""
    try:
        if client().lpos(name, item) is None:  # type: ignore[arg-type]  see _remove
            return False
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error
    if _may_notify(call.revision_id):
        broker.enqueue_host(call.pool, call.revision_id)
    return True


def _may_notify(revision_id: UUID) -> bool:
    """Return whether the last notification is long enough ago, and record one. Many callers may wait for the same host."""
    now = time.monotonic()
    with _notified_lock:
        for id, at in tuple(_notified.items()):
            if now - at > NOTIFY_AGAIN_SECONDS / 2:
                del _notified[id]
        if revision_id in _notified:
            return False
        _notified[revision_id] = now
        return True
