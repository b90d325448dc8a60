"""A port that relays connections to a server. Subclasses define the faults."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

CHUNK = 64 * 1024


class Relay(ABC):
    """One listening port. Subclasses define in `connected` how a connection is served."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @abstractmethod
    def connected(self, client: socket.socket) -> Connection:
        """Connect to the server. An OSError closes the client's connection."""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self.connected(client).serve()


class Connection:
    """A client's connection and its connection to the server. When one closes, both close."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server

    def serve(self) -> None:
        """Relay in both directions until either end closes."""
        answering = threading.Thread(target=self._pass_answers, daemon=True)
        with self.client, self.server:
            answering.start()
            self._pass_requests()
            answering.join()

    def read(self, end: socket.socket) -> bytes:
        return end.recv(CHUNK)

    def pass_request(self, data: bytes) -> None:
        self.server.sendall(data)

    def pass_answer(self, data: bytes) -> bool:
        """Relay a part of an answer. Returns whether the connection stays open."""
        self.client.sendall(data)
        return True

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self.read(self.client):
                self.pass_request(data)
        self._hang_up()

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while (data := self.read(self.server)) and self.pass_answer(data):
                continue
        self._hang_up()

    def _hang_up(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
