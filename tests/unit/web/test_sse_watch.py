"""A streaming client's going is noticed, and a client that is there is never taken for gone."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from shared.eventlog.events import Event
from web import sse
from web.sse import ClientGone, watch

ABOVE_SELECT = 1500  # select() refuses descriptors from 1024 on; a busy server has them
NOTHING: list[Event] = []


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Server's and client's end of a connection, the server's with a high descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(ABOVE_SELECT + 100, hard)), hard))
    low, theirs = socket.socketpair()
    ours = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, ABOVE_SELECT))
    low.close()
    with ours, theirs:
        yield ours, theirs
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_quiet_client_is_there(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = ends

    assert list(watch(ours, [NOTHING, NOTHING])) == [NOTHING, NOTHING]


def test_a_client_that_hung_up_is_gone(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()

    with pytest.raises(ClientGone):
        list(watch(ours, [NOTHING]))


def test_a_client_that_hung_up_is_gone_also_while_much_happens(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "WATCH_SECONDS", 0.0)
    ours, theirs = ends
    theirs.close()

    with pytest.raises(ClientGone):
        list(watch(ours, [[Event(1, 0, "values", b"1")]]))
