"""What waits in Redis for a runner that has a host of the revision: a question, or a request for the app.

Each waits under an id of its own, and the id in the list of its revision; it is taken once. Nobody took it in a
moment: the runners of the pool are notified, and one of them starts a host. It holds what clients sent,
credentials among it, and is therefore encrypted. Whoever gives up waiting takes it back; what is left behind expires.
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
UNTAKEN_SECONDS = 0.25  # then the runners are notified
NOTIFY_AGAIN_SECONDS = 2.0
SLACK_SECONDS = 3.0  # for whoever took it to say so

Sign = TypeVar("Sign")

_notified: dict[UUID, float] = {}  # revisions, and when their runners were
_notified_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """What is asked of a host, and where the answer goes; `seconds`: how long a call may take there."""

    inbox: str
    document: Mapping[str, Any]
    seconds: float = 0.0


def list_of(kind: str, revision_id: UUID) -> str:
    """The list in which the ids of a revision's calls, or exchanges, wait."""
    return f"{PREFIX}user-code:{kind}:{revision_id}"


def put(kind: str, revision_id: UUID, id: bytes, request: WaitingRequest) -> None:
    """Have a request wait for a runner; raises Unavailable."""
    document = dumps({"inbox": request.inbox, "document": request.document, "seconds": request.seconds})
    name = list_of(kind, revision_id)
    pipeline = client().pipeline(transaction=False)
    pipeline.set(_key(id), encryption.encrypt(document), ex=KEPT_SECONDS)
    pipeline.lpush(name, id.hex())
    pipeline.expire(name, KEPT_SECONDS)
    try:
        pipeline.execute()
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error


def take(id: bytes) -> WaitingRequest | None:
    """The request, when nobody else has taken it; raises RedisError."""
    stored: Any = client().getdel(_key(id))
    if stored is None:
        return None
    document = orjson.loads(encryption.decrypt(stored))
    return WaitingRequest(document["inbox"], document["document"], document["seconds"])


def give_back(kind: str, revision_id: UUID, id: bytes) -> None:
    """An id that cannot be taken here is the next runner's."""
    client().rpush(list_of(kind, revision_id), id.hex())


def take_back(kind: str, revision_id: UUID, id: bytes) -> None:
    """Nobody waits for this request any more."""
    pipeline = client().pipeline(transaction=False)
    pipeline.delete(_key(id))
    pipeline.lrem(list_of(kind, revision_id), 0, id.hex())
    try:
        pipeline.execute()
    except RedisError:
        return  # it expires


def first_sign(
    kind: str,
    revision_id: UUID,
    pool: str,
    id: bytes,
    *,
    wait: Callable[[float], Sign | None],
    start_seconds: float,
) -> Sign | None:
    """What `wait` finds in so many seconds, or None once somebody has taken the request.

    Raises Unavailable when nobody does in time.
    """
    give_up_at = time.monotonic() + start_seconds
    pause = UNTAKEN_SECONDS
    while (sign := wait(pause)) is None:
        if not _is_waiting(kind, revision_id, pool, id):
            return None
        if time.monotonic() > give_up_at:
            raise Unavailable("no host of the revision could be had in time")
        pause = NOTIFY_AGAIN_SECONDS
    return sign


def _is_waiting(kind: str, revision_id: UUID, pool: str, id: bytes) -> bool:
    """Whether nobody has taken it yet; then the runners are notified. Raises Unavailable."""
    try:
        if not client().exists(_key(id)):
            return False
        client().lpush(list_of(kind, revision_id), id.hex())  # a runner may have died with its id in hand
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error
    if _may_notify(revision_id):
        broker.enqueue_host(pool, revision_id)
    return True


def _may_notify(revision_id: UUID) -> bool:
    """Whether its runners were not notified just now; many may wait for the same host."""
    now = time.monotonic()
    with _notified_lock:
        for id, at in tuple(_notified.items()):
            if now - at > NOTIFY_AGAIN_SECONDS / 2:
                del _notified[id]
        return _notified.setdefault(revision_id, now) == now


def _key(id: bytes) -> str:
    return f"{PREFIX}user-code:{{{id.hex()}}}"
