"""Redis commands packed by the caller and sent in one round-trip, with one answer each.

Used on the path of every event of a run, where redis-py's pipeline and pool cost several times as much as the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError


def pack(*arguments: bytes) -> bytes:
    """Encode arguments of a command in Redis' wire format."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in arguments])


def command(count: int, *packed: bytes) -> bytes:
    """Build a command from packed arguments; `count` is their number."""
    return b"*%d\r\n%b" % (count, b"".join(packed))


class OwnConnection:
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
