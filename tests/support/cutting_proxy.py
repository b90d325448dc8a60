"""A proxy with faults that a test defines: it cuts an answer at given bytes, or answers 502 in its place.

Relays bytes between a client and the platform. Of HTTP it recognizes only where a request begins.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.relaying import Connection, Relay

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
REQUEST = re.compile(rb"(?:^|\r\n)((?:GET|POST|PUT|PATCH|DELETE) \S+) HTTP/1\.1\r\n")


@dataclass
class Break:
    """A fault that strikes one request that contains `mark`: the connection is cut after `at` in its answer.

    With `hides`, the client receives a 502 instead of the answer although the platform carried out the request.
    """

    mark: bytes
    at: bytes = b"\r\n\r\n"
    hides: bool = False
    is_done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self.lock:
            taken, self.is_done = not self.is_done, True
        return taken


class Proxy(Relay):
    """A relay on its own port, in front of one platform."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.breaks: list[Break] = []
        self.requests: list[str] = []  # method and path of each request, in order
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def connected(self, client: socket.socket) -> Connection:
        return _Connection(self, client, socket.create_connection(self._target))


class _Connection(Connection):
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        super().__init__(client, server)
        self._proxy = proxy
        self._asked = b""  # the newest request
        self._answer = b""  # its answer so far, while a fault is searched for

    def pass_request(self, data: bytes) -> None:
        found = REQUEST.match(data)
        if found:
            self._proxy.requests.append(found[1].decode())
            self._asked, self._answer = b"", b""
        self._asked += data
        super().pass_request(data)

    def pass_answer(self, data: bytes) -> bool:
        """Relay a part of an answer, up to the point where a fault strikes."""
        wanted = next((b for b in self._proxy.breaks if not b.is_done and b.mark in self._asked), None)
        if wanted is None:
            return super().pass_answer(data)
        before = len(self._answer)
        self._answer += data
        place = self._answer.find(wanted.at)
        is_there = place >= 0 and wanted.take()
        if not wanted.hides:
            self.client.sendall(data[: place + len(wanted.at) - before] if is_there else data)
        elif is_there:
            self.client.sendall(BAD_GATEWAY)
        return not is_there


@contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    made = Proxy(host, port)
    try:
        yield made
    finally:
        made.close()
