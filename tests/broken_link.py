"""A network between a process and a server: it can lose an answer, or fall silent without closing anything.

It listens on TCP and passes bytes on to a server on a unix socket, of whatever protocol.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK = 64 * 1024


class Link:
    """One listening port before one server."""

    def __init__(self, server: Path) -> None:
        self.server = server
        self._connections: list[_Connection] = []
        self.lost = 0  # answers that were
        self._marks: list[bytes] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, *marks: bytes) -> None:
        """Cut the connection when the server has answered the last of the requests with these in them."""
        self._marks = list(marks)

    def takes(self, request: bytes) -> bool:
        """Whether it is this request whose answer is to be lost."""
        with self._lock:
            if not self._marks or self._marks[0] not in request:
                return False
            del self._marks[0]
            self.lost += not self._marks
            return not self._marks

    def fall_silent(self) -> None:
        """Let nothing pass any more over the connections there are, and close none; new ones work."""
        for connection in self._connections:
            connection.flows.clear()

    def close(self) -> None:
        for connection in self._connections:
            connection.flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            connection = _Connection(self, client)
            self._connections.append(connection)
            threading.Thread(target=connection.serve, daemon=True).start()


class _Connection:
    def __init__(self, link: Link, client: socket.socket) -> None:
        self._link, self._client = link, client
        self._server = socket.socket(socket.AF_UNIX)
        self._is_to_be_cut = False
        self.flows = threading.Event()
        self.flows.set()

    def serve(self) -> None:
        with self._client, self._server, suppress(OSError):
            self._server.connect(str(self._link.server))
            answering = threading.Thread(target=self._pass_answers, daemon=True)
            answering.start()
            self._pass_requests()
            answering.join()

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self._read(self._client):
                self._is_to_be_cut = self._is_to_be_cut or self._link.takes(data)
                self._server.sendall(data)
        self._hang_up()

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while (data := self._read(self._server)) and not self._is_to_be_cut:
                self._client.sendall(data)
        self._hang_up()

    def _read(self, end: socket.socket) -> bytes:
        data = end.recv(CHUNK)
        self.flows.wait()
        return data

    def _hang_up(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def linked(server: Path) -> Iterator[Link]:
    made = Link(server)
    try:
        yield made
    finally:
        made.close()
