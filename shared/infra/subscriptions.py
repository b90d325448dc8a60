"""Subscriber connections to Redis that reconnect when they are lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from shared.infra.loops import forever

log = logging.getLogger(__name__)

SILENCE_SECONDS = 6.0  # without an answer to a PING for this long, the connection is dead
RETRY_SECONDS = (0.05, 1.0)

T = TypeVar("T")


def keep_subscribed(
    redis: Redis, follow: Callable[[Any], None], *, name: str, until: Callable[[], bool] = lambda: False
) -> threading.Thread:
    """Start a thread that calls `follow` with a new connection, again and again. Returns the thread.

    `follow` must return when its connection is lost.
    """

    def step() -> None:
        connection = _connect(redis)
        try:
            follow(connection)
        finally:
            connection.disconnect()

    thread = threading.Thread(
        target=forever,
        args=(step, RETRY_SECONDS[0]),
        kwargs={"what": f"subscribing ({name})", "retry": RETRY_SECONDS, "until": until},
        name=name,
        daemon=True,
    )
    thread.start()
    return thread


def _connect(redis: Redis) -> Any:
    pool = redis.connection_pool
    connection = pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": SILENCE_SECONDS})
    connection.connect()
    return connection


def messages(connection: Any, ping: Callable[[], object]) -> Iterator[list[Any]]:
    """Yield the messages of a connection until it is lost. `ping` must send a PING; it is called after a silence."""
    is_asked = False
    while True:
        try:
            message = connection.read_response(
                disable_decoding=True, timeout=SILENCE_SECONDS / 2, disconnect_on_error=False
            )
        except (RedisError, OSError) as error:
            if type(error).__name__ != "TimeoutError" or is_asked:
                log.warning("lost the event bus, reconnecting: %s", error)
                return
            is_asked = True
            ping()
        else:
            is_asked = False
            yield message


class OneOfProcess(Generic[T]):
    """An object that exists once per process and is created on first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.made: T | None = None

    def __call__(self) -> T:
        if self.made is None:
            self.made = self._make()
        return self.made
