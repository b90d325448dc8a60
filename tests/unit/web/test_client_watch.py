"""Disconnects of streaming clients are noticed at once, and a connected client is never taken for disconnected."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from shared.eventlog.events import Event
from shared.eventlog.hub import Reader
from tests.support.greened import World, greened
from web.http.client_watch import ClientWatch
from web.http.sse import ClientGone, watch

ABOVE_SELECT = 1500  # select() rejects descriptors from 1024 on, which a busy server uses
FOR_EVER = 10_000.0
SOMETHING = [Event(1, 0, "values", b"1")]


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the server's and the client's end of a connection. The server's has a high descriptor number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(ABOVE_SELECT + 100, hard)), hard))
    low, theirs = socket.socketpair()
    ours = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, ABOVE_SELECT))
    low.close()
    with ours, theirs:
        yield ours, theirs
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def quiet(reader: Reader) -> Iterator[list[Event]]:
    """Yield like a follower of a run without events. No heartbeat wakes it either."""
    while True:
        yield reader.take(FOR_EVER)[0]


def watched(ours: socket.socket, seen: list[list[Event]]) -> gevent.Greenlet:
    """Start a greenlet that reads a quiet stream until its client disconnects."""
    reader = Reader(b"channel", before_creation=True)

    def read() -> str:
        try:
            for batch in watch(ClientWatch(ours, reader.wake), quiet(reader)):
                seen.append(batch)
        except ClientGone:
            return "gone"
        return "over"

    reading = gevent.spawn(read)
    gevent.sleep(0)
    return reading


@greened
def test_a_client_that_leaves_a_quiet_stream_is_noticed(world: World) -> None:
    seen: list[list[Event]] = []
    with connection() as (ours, theirs):
        reading = watched(ours, seen)
        theirs.close()
        assert reading.get(timeout=30) == "gone"
    assert seen == []


@greened
def test_so_is_one_that_sends_what_nobody_reads_before_it_leaves(world: World) -> None:
    reader = Reader(b"channel", before_creation=True)
    with connection() as (ours, theirs):
        stream = watch(ClientWatch(ours, reader.wake), quiet(reader))
        theirs.sendall(b"GET /ok HTTP/1.1\r\n\r\n")
        assert next(stream) == [], "it is woken, and the client is there"
        theirs.close()
        reader.push(SOMETHING, 1)
        with pytest.raises(ClientGone):
            next(stream)


@greened
def test_a_request_that_comes_early_wakes_the_stream_once(world: World) -> None:
    with connection() as (ours, theirs):
        seen: list[list[Event]] = []
        reading = watched(ours, seen)
        for _ in range(3):
            theirs.sendall(b"GET /ok HTTP/1.1\r\n\r\n")
            gevent.sleep(0.01)
        assert seen == [[]]
        assert not reading.ready()
        reading.kill()


@greened
def test_a_reader_that_must_read_the_log_is_woken_all_the_same(world: World) -> None:
    reader = Reader(b"channel", before_creation=True)
    reader.mark_stale()
    reader.wake()
    assert reader.take(FOR_EVER) == ([], True)
    assert reader.take(FOR_EVER) == ([], False), "the client is not looked for before that"


def watchers() -> int:
    """Count the gevent watchers of this process."""
    gc.collect()
    return sum(type(thing).__name__ == "io" for thing in gc.get_objects())


@greened
def test_nothing_is_left_however_a_stream_ends(world: World) -> None:
    before = watchers(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with connection() as (ours, theirs):
            reader = Reader(b"channel", before_creation=True)
            stream = watch(ClientWatch(ours, reader.wake), quiet(reader))
            reader.push(SOMETHING, 1)
            assert next(stream) == SOMETHING
            stream.close()  # type: ignore[attr-defined]  a generator
        with connection() as (ours, theirs):
            assert list(watch(ClientWatch(ours, lambda: None), [SOMETHING])) == [SOMETHING]
        with connection() as (ours, theirs):
            reading = watched(ours, [])
            theirs.close()
            reading.get(timeout=30)
    del stream, reading, reader
    assert (watchers(), len(os.listdir("/proc/self/fd"))) == before


def test_without_a_server_nobody_is_seen_to_leave() -> None:
    assert list(watch(ClientWatch(None, lambda: None), [SOMETHING])) == [SOMETHING]
