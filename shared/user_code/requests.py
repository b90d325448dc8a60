"""What waits in Redis for a runner that has a host of the revision: a question, or a request for the app.

Each waits in the list of its revision, and is taken once. Nobody took it in a moment: the runners of the pool are
notified, and one of them starts a host. It holds what clients sent, credentials among it, and is therefore
encrypted. Whoever gives up waiting takes it back; a list that nothing is added to expires.
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


def put(kind: str, revision_id: UUID, id: bytes, request: WaitingRequest) -> bytes:
    """Have a request wait for a runner; what waits. Raises Unavailable."""
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
    """What waited and was taken: its id and the request; raises Undecryptable."""
    document = orjson.loads(encryption.decrypt(item[ID_BYTES:]))
    return item[:ID_BYTES], WaitingRequest(document["inbox"], document["document"], document["seconds"])


def give_back(kind: str, revision_id: UUID, item: bytes) -> None:
    """What cannot be served here is the next runner's; raises RedisError."""
    client().rpush(list_of(kind, revision_id), item)


def take_back(kind: str, revision_id: UUID, item: bytes) -> None:
    """Nobody waits for this request any more."""
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
    """What `wait` finds in so many seconds, or None once somebody has taken the request.

    Raises Unavailable when nobody does in time.
    """
    give_up_at = time.monotonic() + start_seconds
    pause = UNTAKEN_SECONDS
    while (sign := wait(pause)) is None:
        if not _is_waiting(kind, revision_id, pool, item):
            return None
        if time.monotonic() > give_up_at:
            raise Unavailable("no host of the revision could be had in time")
        pause = NOTIFY_AGAIN_SECONDS
    return sign


def _is_waiting(kind: str, revision_id: UUID, pool: str, item: bytes) -> bool:
    """Whether nobody has taken it yet; then the runners are notified. Raises Unavailable."""
    try:
        if client().lpos(list_of(kind, revision_id), item) is None:  # type: ignore[arg-type]  see take_back
            return False
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
