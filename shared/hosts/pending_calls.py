"""Requests in Redis that wait for a runner with a host of the revision: calls, and requests for the app.

Each waits in the list of its revision and is taken once. If no runner takes it within a moment, the runners of the pool
are notified, and one of them starts a host. A request contains what clients sent, including credentials, so it is
encrypted. A caller that gives up removes its request. A list expires if nothing is added to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import orjson
from redis.exceptions import RedisError

from shared.errors import Unavailable
from shared.infra import broker, encryption
from shared.infra.postgres import dumps
from shared.infra.redis import PREFIX, client

CALL, EXCHANGE = "calls", "exchanges"
KEPT_SECONDS = 300
ID_BYTES = 16
UNTAKEN_SECONDS = 0.25  # then the runners are notified
NOTIFY_AGAIN_SECONDS = 2.0
SLACK_SECONDS = 3.0  # for the runner that took a request to report that

Sign = TypeVar("Sign")

_notified: dict[UUID, float] = {}  # revision → when its runners were notified
_notified_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request for a host, and the inbox for its answer. `seconds` limits the duration of a call in the host."""

    inbox: str
    document: Mapping[str, Any]
    seconds: float = 0.0


def list_of(kind: str, revision_id: UUID) -> str:
    """Return the key of the list in which a revision's calls or exchanges wait."""
    return f"{PREFIX}user-code:{kind}:{revision_id}"


def put(kind: str, revision_id: UUID, id: bytes, request: WaitingRequest) -> bytes:
    """Add a request to its revision's list. Returns the list item. Raises Unavailable."""
    document = dumps({"inbox": request.inbox, "document": request.document, "seconds": request.seconds})
    item = id + encryption.encrypt(document)
    name = list_of(kind, revision_id)
    pipeline = client().pipeline(transaction=False)
    pipeline.lpush(name, item)
    pipeline.expire(name, KEPT_SECONDS)
    try:
        pipeline.execute()
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error
    return item


def parse(item: bytes) -> tuple[bytes, WaitingRequest]:
    """Decrypt a list item. Returns its id and the request. Raises Undecryptable."""
    document = orjson.loads(encryption.decrypt(item[ID_BYTES:]))
    return item[:ID_BYTES], WaitingRequest(document["inbox"], document["document"], document["seconds"])


def give_back(kind: str, revision_id: UUID, item: bytes) -> None:
    """Return an item to the front of the list for another runner. Raises RedisError."""
    client().rpush(list_of(kind, revision_id), item)


def take_back(kind: str, revision_id: UUID, item: bytes) -> None:
    """Remove an item because its caller no longer waits."""
    try:
        client().lrem(list_of(kind, revision_id), 0, item)  # type: ignore[arg-type]  bytes are text to Redis
    except RedisError:
        return  # it expires


def first_sign(
    kind: str,
    revision_id: UUID,
    pool: str,
    item: bytes,
    *,
    wait: Callable[[float], Sign | None],
    start_seconds: float,
) -> Sign | None:
    """Return the first result of `wait(seconds)`, or None once a runner has taken the request.

    Raises Unavailable if no runner takes it within `start_seconds`.
    """
    give_up_at = time.monotonic() + start_seconds
    pause = UNTAKEN_SECONDS
    while (sign := wait(pause)) is None:
        if not _is_waiting(kind, revision_id, pool, item):
            return None
        if time.monotonic() > give_up_at:
            raise Unavailable("no graph host of the revision was available in time")
        pause = NOTIFY_AGAIN_SECONDS
    return sign


def _is_waiting(kind: str, revision_id: UUID, pool: str, item: bytes) -> bool:
    """Whether the item is still in the list. If so, the runners are notified. Raises Unavailable."""
    try:
        if client().lpos(list_of(kind, revision_id), item) is None:  # type: ignore[arg-type]  see take_back
            return False
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error
    if _may_notify(revision_id):
        broker.enqueue_host(pool, revision_id)
    return True


def _may_notify(revision_id: UUID) -> bool:
    """Whether the last notification is long enough ago. Many callers may wait for the same host."""
    now = time.monotonic()
    with _notified_lock:
        for id, at in tuple(_notified.items()):
            if now - at > NOTIFY_AGAIN_SECONDS / 2:
                del _notified[id]
        return _notified.setdefault(revision_id, now) == now
