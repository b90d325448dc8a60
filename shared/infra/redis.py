"""The process's connections to Redis (or Valkey): the bus on which nothing is kept that matters.

Every key and channel begins with `PREFIX`. Whatever Redis holds can be lost: rows in PostgreSQL decide.

One server does all of it, or several by role; each key and each channel has one home:

- `broker()`: Celery's messages, and the channels on which runners are notified (control, warm);
- `events(id)`: the event log of a run, a revision or a query, and the channels of those who follow one, a thread, or a
  deployment's log. Several servers share these by the id: each reader and writer finds the same one by itself;
- `client()`: all else: requests to user code and its answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import urlsplit
from uuid import UUID

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

PREFIX = "runyard:"
WAIT_SECONDS = 10.0  # for a free connection, when many readers want one at once

_client: Redis | None = None
_broker: Redis | None = None  # None: the same
_events: tuple[tuple[bytes, Redis], ...] = ()  # by name; empty: the same

__all__ = [
    "PREFIX",
    "RedisError",
    "broker",
    "by_role",
    "client",
    "connect",
    "event_servers",
    "events",
    "has_several",
]


def connect(
    url: str,
    *,
    broker_url: str | None = None,
    events_urls: Sequence[str] = (),
    timeout_seconds: float = 10.0,
    connections: int = 16,
) -> Redis:
    """Make the process's clients; each has a bounded pool that waits instead of opening ever more connections."""
    global _broker, _events

    def make(url: str) -> Redis:
        return make_client(url, timeout_seconds=timeout_seconds, connections=connections)

    made = make(url)
    use(made)
    _broker = make(broker_url) if broker_url is not None else None
    _events = tuple((_name(url), make(url)) for url in events_urls)
    return made


def _name(url: str) -> bytes:
    """What tells an event server apart: its address without user and password, which may change."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}{parts.path}?{parts.query}".encode()


def make_client(url: str, *, timeout_seconds: float = 10.0, connections: int = 16) -> Redis:
    """A client that never retries on its own: its callers know what may be repeated."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=WAIT_SECONDS,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=1.0,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        **({} if url.startswith("unix:") else {"socket_keepalive": True}),
    )
    return Redis(connection_pool=pool)


def use(redis: Redis) -> None:
    """Take this client as the process's own, for everything."""
    global _client, _broker, _events
    _client, _broker, _events = redis, None, ()


def client() -> Redis:
    """The process's client; `connect()` must have been called."""
    if _client is None:
        raise RuntimeError("shared.infra.redis.connect() has not been called")
    return _client


def broker() -> Redis:
    """The server that notifies workers."""
    return _broker or client()


def events(id: UUID) -> Redis:
    """The server with the event log and the channels of what has this id.

    Rendezvous hashing: each id ranks all servers and takes the first, so one more takes over a share of each.
    """
    if not _events:
        return client()
    if len(_events) == 1:
        return _events[0][1]
    return max(_events, key=lambda server: hashlib.blake2b(id.bytes + server[0], digest_size=8).digest())[1]


def has_several() -> bool:
    """Whether several servers share the event logs."""
    return len(_events) > 1


def by_role() -> dict[str, Redis]:
    """The servers there are by what they are for; what has none of its own is done by `main`."""
    found = {"main": client()}
    if _broker is not None:
        found["broker"] = _broker
    if len(_events) == 1:
        return {**found, "events": _events[0][1]}
    return found | {f"events-{number}": server for number, (_, server) in enumerate(_events, 1)}


def event_servers() -> list[Redis]:
    """All servers with event logs."""
    return [redis for _, redis in _events] or [client()]


def control_channel(owner: str) -> str:
    """The channel on which a runner is notified that one of its runs is to be stopped."""
    return f"{PREFIX}control:{owner}"


def warm_channel(pool: str) -> str:
    """The channel on which a pool's runners are notified of a revision that serves from now on."""
    return f"{PREFIX}warm:{pool}"
