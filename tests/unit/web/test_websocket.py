"""Heartbeats of a WebSocket: pings go to silent clients only."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import gevent
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping, TextMessage

from web.http.websocket import PING_BEATS, SILENT_BEATS, ClientMessage, Closed, WebSocket


class Client:
    """The client's end of a WebSocket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._connection = Connection(ConnectionType.CLIENT)
        end.setblocking(False)

    def send(self, text: str) -> None:
        self._end.send(self._connection.send(TextMessage(data=text)))

    def pings(self) -> int:
        """Return the number of pings that have arrived since the last call."""
        try:
            self._connection.receive_data(self._end.recv(1 << 16))
        except BlockingIOError:
            return 0
        return sum(isinstance(event, Ping) for event in self._connection.events())


@pytest.fixture
def ends() -> Iterator[tuple[WebSocket, Client]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield WebSocket(ours, Connection(ConnectionType.SERVER), b"", max_bytes=1_000), Client(theirs)


def test_a_silent_client_is_pinged_and_then_disconnected(ends: tuple[WebSocket, Client]) -> None:
    websocket, client = ends
    for beat in range(1, SILENT_BEATS):
        websocket.beat()
        assert client.pings() == (beat % PING_BEATS == 0), beat
    with pytest.raises(Closed):
        websocket.beat()


def test_a_client_whose_message_is_being_read_is_not_pinged(ends: tuple[WebSocket, Client]) -> None:
    websocket, client = ends
    handled: list[bytes] = []

    def take(message: ClientMessage) -> None:
        for _ in range(SILENT_BEATS):
            websocket.beat()
        handled.append(message.data)

    with websocket.receiving(take, wake=lambda: None), gevent.Timeout(10):
        client.send("one")
        while not handled:
            gevent.sleep(0.01)
    assert (handled, client.pings()) == ([b"one"], 0)
