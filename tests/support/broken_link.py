"""A faulty network between a process and a server: it can lose an answer, or go silent without closing a connection.

Listens on TCP and relays bytes to a server on a unix socket, for any protocol.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.relaying import Connection, Relay


class Link(Relay):
    """A relay on its own port, in front of one server."""

    def __init__(self, server: Path) -> None:
        self._server = str(server)
        self._connections: list[_Connection] = []
        self.lost = 0  # number of lost answers
        self._marks: list[bytes] = []
        self._lock = threading.Lock()
        super().__init__()

    def lose_answer_to(self, *marks: bytes) -> None:
        """Cut the connection once the server has answered the last of these requests, which each contain a mark."""
        self._marks = list(marks)

    def takes(self, request: bytes) -> bool:
        """Return whether the answer to this request must be lost."""
        with self._lock:
            if not self._marks or self._marks[0] not in request:
                return False
            del self._marks[0]
            self.lost += not self._marks
            return not self._marks

    def fall_silent(self) -> None:
        """Stop relaying on all open connections without closing them. New connections work."""
        for connection in self._connections:
            connection.flows.clear()

    def close(self) -> None:
        for connection in self._connections:
            connection.flows.set()
        super().close()

    def connected(self, client: socket.socket) -> Connection:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._server)
        except OSError:
            server.close()
            raise
        connection = _Connection(self, client, server)
        self._connections.append(connection)
        return connection


class _Connection(Connection):
    def __init__(self, link: Link, client: socket.socket, server: socket.socket) -> None:
        super().__init__(client, server)
        self._link = link
        self._is_to_be_cut = False
        self.flows = threading.Event()
        self.flows.set()

    def read(self, end: socket.socket) -> bytes:
        data = super().read(end)
        self.flows.wait()
        return data

    def pass_request(self, data: bytes) -> None:
        self._is_to_be_cut = self._is_to_be_cut or self._link.takes(data)
        super().pass_request(data)

    def pass_answer(self, data: bytes) -> bool:
        return not self._is_to_be_cut and super().pass_answer(data)


@contextmanager
def linked(server: Path) -> Iterator[Link]:
    made = Link(server)
    try:
        yield made
    finally:
        made.close()
