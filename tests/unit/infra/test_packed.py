"""Packed commands, one round-trip for all: each answer belongs to its command, whatever went wrong before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from shared.infra import packed
from shared.infra.packed import OwnConnection, command, pack

Send = Callable[[Sequence[bytes]], list[Any]]


@pytest.fixture(params=["own", "pooled"])
def send(request: pytest.FixtureRequest, redis: Redis) -> Send:
    return OwnConnection(redis).send if request.param == "own" else partial(packed.send, redis)


def asked(*arguments: bytes) -> bytes:
    return command(len(arguments), pack(*arguments))


@pytest.mark.parametrize("value", [b"", b"a\r\n$1\r\nb", bytes(range(256)), b"x" * 100_000])
def test_what_is_packed_arrives_as_it_is(send: Send, value: bytes) -> None:
    assert send([asked(b"SET", b"k", value), asked(b"GET", b"k")]) == [b"OK", value]


def test_a_refusal_is_raised_and_the_next_answers_are_their_own(send: Send) -> None:
    with pytest.raises(ResponseError):
        send([asked(b"SET", b"k", b"1"), asked(b"LPUSH", b"k", b"x"), asked(b"GET", b"k")])

    assert send([asked(b"SET", b"k", b"2"), asked(b"GET", b"k")]) == [b"OK", b"2"]
    assert send([]) == []


def test_answers_nobody_waited_for_are_not_the_next_ones(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A greenlet may be killed between two answers."""
    real, read = packed._answer, 0

    def answer(connection: Any) -> Any:
        nonlocal read
        read += 1
        if read == 2:
            raise KeyboardInterrupt
        return real(connection)

    monkeypatch.setattr(packed, "_answer", answer)
    with pytest.raises(KeyboardInterrupt):
        send([asked(b"ECHO", b"one"), asked(b"ECHO", b"two")])

    assert send([asked(b"ECHO", b"three")]) == [b"three"]


def test_a_lost_connection_is_an_error_and_made_again(redis: Redis) -> None:
    connection = OwnConnection(redis)
    (id,) = connection.send([asked(b"CLIENT", b"ID")])
    redis.client_kill_filter(_id=str(id))
    with pytest.raises(RedisError):
        connection.send([asked(b"PING")])

    assert connection.send([asked(b"ECHO", b"back")]) == [b"back"]
