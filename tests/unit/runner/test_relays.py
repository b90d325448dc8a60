"""Requests for a project's app: parts of an exchange between the web process and a graph host, in both directions."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from redis.exceptions import RedisError

from shared.errors import Unavailable
from shared.hosts import channel, exchanges
from shared.hosts.exchanges import BODY, END, HEAD, Exchange, Lost
from shared.infra import redis
from tests.support.greened import World, constants, greened, within
from tests.support.user_code_hosts import Scene, scene
from tests.support.waiting import until
from workers.graph_host import frames

MIB = 1024 * 1024
PIECE = 64 * 1024


def rest(exchange: Exchange) -> bytes:
    """Read an answer to its end and return its body."""
    found = list(exchange.parts(timeout_seconds=30))
    assert found[0][0] == HEAD
    assert found[-1] == (END, b"")
    assert {kind for kind, _ in found[1:-1]} <= {BODY}
    return b"".join(data for _, data in found[1:-1])


def test_both_sides_call_the_parts_by_the_same_names() -> None:
    for name in ("HEAD", "BODY", "END", "TEXT", "BYTES", "CLOSE", "CREDIT", "FAILED"):
        assert getattr(exchanges, name) == getattr(frames, name)


@within(scene)
def test_a_large_body_goes_up_and_comes_down_whole(s: Scene) -> None:
    with s.open("echo") as exchange:
        sent = b"".join(bytes([number % 251]) * PIECE for number in range(4 * MIB // PIECE))

        def upload() -> None:
            for at in range(0, len(sent), PIECE):
                exchange.send(BODY, sent[at : at + PIECE])
            exchange.send(END)

        uploading = gevent.spawn(upload)
        assert rest(exchange) == sent
        uploading.get(timeout=10)


@within(scene)
def test_a_reader_that_stops_holds_back_the_app_and_an_app_its_client(s: Scene) -> None:
    with s.open("pour", parts=200, size=PIECE) as exchange:
        until(lambda: s.noted().count("part") == exchanges.WINDOW)
        gevent.sleep(0.3)
        assert s.noted().count("part") == exchanges.WINDOW

        assert len(rest(exchange)) == 200 * PIECE

    with s.open("silent") as exchange:
        sent: list[int] = []

        def upload() -> None:
            for number in range(100):
                exchange.send(BODY, b"x")
                sent.append(number)

        uploading = gevent.spawn(upload)
        until(lambda: len(sent) == exchanges.WINDOW)
        assert not uploading.ready()
        uploading.kill()


@within(scene)
def test_an_app_is_notified_that_its_client_has_gone(s: Scene) -> None:
    with s.open("silent") as exchange:
        assert next(exchange.parts())[0] == HEAD
    until(lambda: "closed 1006" in s.noted())
    until(lambda: not any(host.occupants for host in s.pool.all()))


@greened
def test_an_app_that_says_nothing_for_long_is_waited_for(world: World) -> None:
    times = constants(channel, BEAT_SECONDS=0.1, GONE_SECONDS=3.0)
    with scene(world) as s, s.open("silent") as exchange, times:
        found = exchange.parts(timeout_seconds=4)
        assert next(found)[0] == HEAD
        with pytest.raises(TimeoutError):
            next(found)


@within(scene)
def test_an_exchange_whose_host_dies_is_lost_after_what_it_said(s: Scene) -> None:
    with s.open("die") as exchange:
        found = exchange.parts()
        assert [next(found)[0], next(found)] == [HEAD, (BODY, b"last words")]
        with pytest.raises(Lost, match="SIGKILL"):
            next(found)


@greened
def test_an_exchange_is_lost_though_redis_fails_when_that_is_sent(world: World) -> None:
    failing = FailingOnce(channel.LOST)
    with constants(channel, client=lambda: failing), scene(world) as s, s.open("die") as exchange:
        found = exchange.parts(timeout_seconds=30)
        assert [next(found)[0], next(found)] == [HEAD, (BODY, b"last words")]
        with pytest.raises(Lost, match="SIGKILL"):
            next(found)
    assert failing.has_failed


class FailingOnce:
    """A Redis client that fails once, on the first published message of a kind."""

    def __init__(self, kind: int) -> None:
        self.kind, self.has_failed = kind, False

    def __getattr__(self, name: str) -> Any:
        return getattr(redis.client(), name)

    def publish(self, channel: str, message: bytes) -> Any:
        if message[0] == self.kind and not self.has_failed:
            self.has_failed = True
            raise RedisError("no answer")
        return redis.client().publish(channel, message)


@within(scene)
def test_a_host_that_heeds_no_credit_or_says_out_of_turn_what_costs_nothing_is_killed(s: Scene) -> None:
    with s.open("flood") as exchange:
        with pytest.raises(Lost, match="more parts than may be on their way"):
            list(exchange.parts(timeout_seconds=10))
        with s.open("pour", parts=1, size=1) as another:
            assert rest(another) == b"\0"

    # Nothing else limits such a host, and one thread of a web process reads the credits of all hosts.
    subscription = channel.channel().subscription()
    for said, why in (
        ("kmuch", "a credit that is"),
        ("k-1", "a credit that is"),
        ("k" + "1" * 5000, "a credit that is"),
        ("k1", "more parts than may be on their way"),
        ("h{}", "a part too many"),
    ):
        with s.open("silent", says=[said]) as exchange, pytest.raises(Lost, match=why):
            list(exchange.parts(timeout_seconds=10))
    assert channel.channel().subscription() is subscription


@within(scene)
def test_a_part_that_was_lost_on_the_way_shows(s: Scene) -> None:
    with s.open("silent") as exchange:
        assert next(exchange.parts())[0] == HEAD
        assert exchange._sender is not None
        exchange._sender._number += 1
        exchange.send(BODY, b"after a hole")
        until(lambda: "closed 1006" in s.noted())


@within(scene)
def test_exchanges_are_lost_with_the_connection(s: Scene) -> None:
    with s.open("silent") as exchange:
        found = exchange.parts(timeout_seconds=30)
        assert next(found)[0] == HEAD
        redis.client().client_kill_filter(_type="pubsub")
        with pytest.raises(Lost):
            next(found)
    until(lambda: "closed 1006" in s.noted())
    with s.open("pour", parts=1, size=1) as another:
        assert rest(another) == b"\0"


@greened
def test_exchanges_with_a_process_that_is_gone_are_lost(world: World) -> None:
    with constants(channel, BEAT_SECONDS=0.1), scene(world) as s, s.open("silent") as exchange:
        found = exchange.parts(timeout_seconds=30)
        assert next(found)[0] == HEAD
        exchange.peer = "nobody"
        with pytest.raises(Lost, match="has ended"):
            next(found)


@within(scene)
def test_an_empty_redis_ends_nothing_that_runs(s: Scene) -> None:
    with s.open("echo") as exchange:
        exchange.send(BODY, b"before ")
        redis.client().flushall()
        exchange.send(BODY, b"and after")
        exchange.send(END)
        assert rest(exchange) == b"before and after"


@within(scene)
def test_a_runner_that_stops_lets_exchanges_end(s: Scene) -> None:
    with s.open("echo") as exchange, s.open("silent") as endless:
        assert next(endless.parts())[0] == HEAD
        exchange.send(BODY, b"begun")
        s.host_calls.drain()
        stopping = gevent.spawn(s.host_calls.close, 1.0)
        gevent.sleep(0.1)
        exchange.send(END)
        assert rest(exchange) == b"begun"
        with pytest.raises(Lost, match="the runner stops"):
            list(endless.parts(timeout_seconds=30))
        stopping.get(timeout=10)


@within(scene, part="cannot load")
def test_an_exchange_that_no_host_can_be_had_for_is_refused(s: Scene) -> None:
    with pytest.raises(Unavailable, match="no such file"), s.open("echo"):
        raise AssertionError("there is no host")
    assert not list(redis.client().scan_iter("runyard:hosts:exchanges:*"))
