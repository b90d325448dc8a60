"""WebSockets of protocol v2 for tests: through a client library, and byte by byte."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson
from websockets.sync.client import ClientConnection, connect

from tests.support.protocol import ALL

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
FIN, MASKED, COMPRESSED = 0x80, 0x80, 0x40
HANDSHAKE_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
WAIT_SECONDS = 20.0  # upper limit for messages that are certain to arrive


class Socket:
    """An open WebSocket that numbers its commands."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._id = 0
        self._events: list[Any] = []

    def send(self, method: str, **params: Any) -> int:
        self._id += 1
        self.connection.send(orjson.dumps({"id": self._id, "method": method, "params": params}).decode())
        return self._id

    def receive(self) -> Any:
        return orjson.loads(self.connection.recv(timeout=WAIT_SECONDS))

    def command(self, method: str, **params: Any) -> Any:
        """Send a command and return its answer. Keeps the events that arrive before it."""
        id = self.send(method, **params)
        while (said := self.receive()).get("id") != id:
            self._events.append(said)
        return said

    def subscribe(self, channels: Sequence[str] = ALL, **more: Any) -> Any:
        answer = self.command("subscription.subscribe", channels=list(channels), **more)
        assert answer["type"] == "success", answer
        return answer["result"]

    def events(self) -> list[Any]:
        """Return the kept events and those that arrive before a new command is answered."""
        self.command("none.such")
        found, self._events = self._events, []
        return found

    def until(self, method: str, word: str | None = None) -> list[Any]:
        """Return events up to one of this method. With `word`, up to a lifecycle event with that word."""
        found, self._events = self._events, []
        while not found or not _is(found[-1], method, word):
            found.append(self.receive())
        return found


def _is(event: Any, method: str, word: str | None) -> bool:
    return event.get("method") == method and (word is None or event["params"]["data"]["event"] == word)


@contextmanager
def opened(base: str, deployment: str, thread_id: str, key: str, **headers: str) -> Iterator[Socket]:
    """Open a thread's WebSocket with additional request headers."""
    url = f"ws{base.removeprefix('http')}/d/{deployment}/threads/{thread_id}/stream/events"
    with connect(
        url,
        additional_headers={"x-api-key": key, **headers},
        compression=None,
        max_size=None,
        ping_interval=None,
    ) as connection:
        yield Socket(connection)


class Raw:
    """A WebSocket whose frames the test builds itself."""

    def __init__(self, base: str, deployment: str, thread_id: str, key: str, *, buffer: int = 0) -> None:
        where = urlsplit(base)
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.connect((where.hostname, where.port))
        path = f"/d/{deployment}/threads/{thread_id}/stream/events"
        self.socket.sendall(handshake(path, key))
        self._left = b""
        while b"\r\n\r\n" not in self._left:
            self._left += self.socket.recv(65536)
        head, self._left = self._left.split(b"\r\n\r\n", 1)
        self.status = int(head.split()[1])

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, opcode: int, payload: bytes = b"", *, flags: int = FIN, is_masked: bool = True) -> None:
        self.socket.sendall(frame(opcode, payload, flags=flags, is_masked=is_masked))

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield `(opcode, payload)` of each frame until the server closes the connection."""
        while True:
            try:
                head = self._exactly(2)
                length = head[1] & 0x7F
                if length > 125:
                    kind = "!H" if length == 126 else "!Q"
                    (length,) = struct.unpack(kind, self._exactly(struct.calcsize(kind)))
                yield head[0] & 0x0F, self._exactly(length)
            except (EOFError, ConnectionResetError):
                return

    def close_code(self) -> int | None:
        """Read until the server's close frame. Returns its code, or None without one."""
        code = None
        for opcode, payload in self.frames():
            if opcode == CLOSE:
                (code,) = struct.unpack("!H", payload[:2]) if payload else (None,)
        return code

    def answer(self) -> Any:
        """Return the next text message."""
        return next(orjson.loads(payload) for opcode, payload in self.frames() if opcode == TEXT)

    def _exactly(self, size: int) -> bytes:
        while len(self._left) < size:
            more = self.socket.recv(65536)
            if not more:
                raise EOFError
            self._left += more
        found, self._left = self._left[:size], self._left[size:]
        return found


def handshake(path: str, key: str, **changes: str | None) -> bytes:
    headers = {
        "Host": "x",
        "X-Api-Key": key,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": HANDSHAKE_KEY,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def frame(opcode: int, payload: bytes = b"", *, flags: int = FIN, is_masked: bool = True) -> bytes:
    mask = os.urandom(4)
    size = len(payload)
    flag = MASKED if is_masked else 0
    if size < 126:
        head = struct.pack("!BB", flags | opcode, flag | size)
    elif size < 65536:
        head = struct.pack("!BBH", flags | opcode, flag | 126, size)
    else:
        head = struct.pack("!BBQ", flags | opcode, flag | 127, size)
    if not is_masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def message(id: int, method: str, **params: Any) -> bytes:
    return orjson.dumps({"id": id, "method": method, "params": params})
