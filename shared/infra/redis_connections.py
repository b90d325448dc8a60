"""Connections to Redis for subscribers, and for commands that their senders have packed.

A subscriber's connection reconnects when it is lost. Packed commands are sent in one round-trip, with one answer each.
They are on the path of every event of a run, where redis-py's pipeline and pool cost several times as much as the
commands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from shared.infra.loops import RETRY_SECONDS, forever

log = logging.getLogger(__name__)

SILENCE_SECONDS = 6.0  # without an answer to a PING for this long, the connection is dead

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
    is_pinged = False
    while True:
        try:
            message = connection.read_response(
                disable_decoding=True, timeout=SILENCE_SECONDS / 2, disconnect_on_error=False
            )
        except (RedisError, OSError) as error:
            # by name: redis-py and Python have different classes, and the sockets raise both
            if type(error).__name__ != "TimeoutError" or is_pinged:
                log.warning("lost the event bus, reconnecting: %s", error)
                return
            is_pinged = True
            ping()
        else:
            is_pinged = False
            yield message


class PerProcess(Generic[T]):
    """Returns the process's only instance of an object, which is created on first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.instance: T | None = None

    def __call__(self) -> T:
        if self.instance is None:
            self.instance = self._make()
        return self.instance


def pack(*arguments: bytes) -> bytes:
    """Encode arguments of a command in Redis' wire format."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in arguments])


def command(count: int, *packed: bytes) -> bytes:
    """Build a command from packed arguments; `count` is their number."""
    return b"*%d\r\n%b" % (count, b"".join(packed))


class SenderConnection:
    """A connection for a single sender, opened when first needed and reopened after a loss.

    Two greenlets must not use it at the same time.
    """

    def __init__(self, redis: Redis) -> None:
        pool = redis.connection_pool
        self._connection = pool.connection_class(**pool.connection_kwargs)

    def send(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands and return their answers.

        Raises RedisError for the first refused command or a lost connection.
        """
        return _exchange(self._connection, commands)


def send(redis: Redis, commands: Sequence[bytes]) -> list[Any]:
    """Send commands over a pooled connection and return their answers. Raises RedisError."""
    pool = redis.connection_pool
    connection = pool.get_connection()
    try:
        return _exchange(connection, commands)
    finally:
        pool.release(connection)


def _exchange(connection: Any, commands: Sequence[bytes]) -> list[Any]:
    if not commands:
        return []
    try:
        connection.send_packed_command((b"".join(commands),), check_health=False)
        answers = [_answer(connection) for _ in commands]
    except BaseException:  # unread answers would be taken for those of the next commands
        connection.disconnect()
        raise
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal
