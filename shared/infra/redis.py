"""The process's connections to Redis (or Valkey), which holds nothing that cannot be lost.

Every key and channel begins with `PREFIX`. Rows in PostgreSQL are the source of truth.

One server can serve all purposes, or several by role. Each key and each channel has one home:

- `broker()`: Celery's messages, and the channels on which runners are notified (control, warm);
- `events(id)`: event logs of runs and revisions, and the channels of their readers, of threads, and of
  deployments' logs. Several servers share these by id, so readers and writers choose the same one independently;
- `client()`: all else, such as calls to user code and their answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import urlsplit
from uuid import UUID

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PREFIX = "runyard:"
WAIT_SECONDS = 10.0  # wait for a free connection of the pool

_client: Redis | None = None
_broker: Redis | None = None  # None: the main client
_events: tuple[tuple[bytes, Redis], ...] = ()  # by name; empty: the main client


def connect(
    url: str,
    *,
    broker_url: str | None = None,
    events_urls: Sequence[str] = (),
    timeout_seconds: float = 10.0,
    connections: int = 16,
) -> Redis:
    """Create the process's clients. Each has a bounded pool, which waits instead of opening more connections."""
    global _broker, _events

    def make(url: str) -> Redis:
        return make_client(url, timeout_seconds=timeout_seconds, connections=connections)

    main = make(url)
    use(main)
    _broker = make(broker_url) if broker_url is not None else None
    _events = tuple((_name(url), make(url)) for url in events_urls)
    return main


def _name(url: str) -> bytes:
    """Return the identity of an event server: its URL without user and password, which may change."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}{parts.path}?{parts.query}".encode()


def make_client(url: str, *, timeout_seconds: float = 10.0, connections: int = 16) -> Redis:
    """Create a client that never retries by itself, because only its callers know which commands may be repeated."""
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
    """Use this client for all roles of the process."""
    global _client, _broker, _events
    _client, _broker, _events = redis, None, ()


def client() -> Redis:
    """Return the process's main client. Raises RuntimeError before `connect()`."""
    if _client is None:
        raise RuntimeError("shared.infra.redis.connect() has not been called")
    return _client


def broker() -> Redis:
    """Return the client of the server with Celery's messages and the runners' channels."""
    return _broker or client()


def events(id: UUID) -> Redis:
    """Return the client of the server with the event log and channels of this id.

    Uses rendezvous hashing: each id ranks all servers and takes the first. An added server takes a share from each
    other one.
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
    """Return the clients by role. `main` serves all roles without a server of their own."""
    clients = {"main": client()}
    if _broker is not None:
        clients["broker"] = _broker
    if len(_events) == 1:
        return {**clients, "events": _events[0][1]}
    return clients | {f"events-{number}": server for number, (_, server) in enumerate(_events, 1)}


def event_servers() -> list[Redis]:
    """Return the clients of all servers with event logs."""
    return [redis for _, redis in _events] or [client()]


def control_channel(owner: str) -> str:
    """Return the channel that notifies a runner to stop one of its runs."""
    return f"{PREFIX}control:{owner}"


def warm_channel(pool: str) -> str:
    """Return the channel that notifies a pool's runners of a newly serving revision."""
    return f"{PREFIX}warm:{pool}"
