"""Redis commands packed by their sender and sent in one round-trip, with an answer each.

For what a run's every event passes through: the pipeline and the pool of redis-py cost several times as much as the
commands themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError


def pack(*arguments: bytes) -> bytes:
    """The arguments of a command, one after the other."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in arguments])


def command(count: int, *packed: bytes) -> bytes:
    """A command of so many arguments, which are packed."""
    return b"*%d\r\n%b" % (count, b"".join(packed))


class OwnConnection:
    """A connection of one sender's own, made when it is first needed and again when it was lost.

    Nobody else may use it meanwhile.
    """

    def __init__(self, redis: Redis) -> None:
        pool = redis.connection_pool
        self._connection = pool.connection_class(**pool.connection_kwargs)

    def send(self, commands: Sequence[bytes]) -> list[Any]:
        """Their answers. Raises RedisError: the first that was refused, or the connection's loss."""
        return _exchange(self._connection, commands)


def send(redis: Redis, commands: Sequence[bytes]) -> list[Any]:
    """The same over one of the pool's connections."""
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
    except BaseException:  # answers may be left in it, which would be taken for those of what comes next
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
