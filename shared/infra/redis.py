"""The process's connections to Redis (or Valkey): the bus on which nothing is kept that matters.

Every key and channel begins with `PREFIX`. Whatever Redis holds can be lost: rows in PostgreSQL decide.
"""

from __future__ import annotations

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

PREFIX = "runyard:"
WAIT_SECONDS = 10.0  # for a free connection, when many readers want one at once

_client: Redis | None = None

__all__ = ["PREFIX", "RedisError", "client", "connect", "make_client"]


def connect(url: str, *, timeout_seconds: float = 10.0, connections: int = 16) -> Redis:
    """Make the process's client; a bounded pool that waits instead of opening ever more connections."""
    global _client
    _client = make_client(url, timeout_seconds=timeout_seconds, connections=connections)
    return _client


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
    """Take this client as the process's own."""
    global _client
    _client = redis


def client() -> Redis:
    """The process's client; `connect()` must have been called."""
    if _client is None:
        raise RuntimeError("shared.infra.redis.connect() has not been called")
    return _client


def control_channel(owner: str) -> str:
    """The channel on which a runner is notified that one of its runs is to be stopped."""
    return f"{PREFIX}control:{owner}"


def warm_channel(pool: str) -> str:
    """The channel on which a pool's runners are notified of a revision that serves from now on."""
    return f"{PREFIX}warm:{pool}"
