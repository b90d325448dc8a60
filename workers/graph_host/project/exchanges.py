"""Exchanges: requests that pass over the socket in parts, in either direction, with flow control.

A BODY, TEXT or BYTES part costs a credit. Each side begins with CREDITS credits, and the receiver returns one after it
has consumed such a part.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from .. import frames
from ..connection import Connection
from ..serialization import dumps

CREDITS = 16
PART_BYTES = 64 * 1024  # of a body
MOST_BYTES = 1024 * 1024  # of parts that are not split: a WebSocket message, a head
CLOSED = frozenset((frames.CLOSE,))
COSTLY = frozenset((frames.BODY, frames.TEXT, frames.BYTES))


class PartTooLarge(ValueError):
    """A part exceeds the size limit of the relay."""


class Exchange:
    """One request or WebSocket. A received part of a kind in `last` ends it. Use it only on the connection's loop."""

    def __init__(
        self, connection: Connection, id: bytes, last: Collection[bytes], forget: Callable[[bytes], Any]
    ) -> None:
        self.is_closed = False  # no part is received or sent any more
        self.on_close: Callable[[], Any] = lambda: None
        self._connection = connection
        self._id = id
        self._last = last
        self._forget = forget
        self._parts: deque[tuple[bytes, bytes]] = deque()
        self._arrived = asyncio.Event()
        self._credits = CREDITS
        self._has_credit = asyncio.Event()

    def open(self, head: dict[str, Any]) -> None:
        """Open an exchange that this host begins."""
        self._connection.send(frames.OPEN, self._id, dumps(head))

    def receive(self, kind: bytes, data: bytes) -> None:
        """Handle a received part."""
        if kind == frames.CREDIT:
            self._credits += int(data)
            self._has_credit.set()
            return
        self._parts.append((kind, data))
        self._arrived.set()
        if kind in self._last:
            self._end()
            self.on_close()

    async def part(self) -> tuple[bytes, bytes]:
        """Wait for the next part and return `(kind, data)`. Once the exchange has ended, always returns a CLOSE."""
        while not self._parts:
            if self.is_closed:
                return frames.CLOSE, b"{}"
            self._arrived.clear()
            await self._arrived.wait()
        kind, data = self._parts.popleft()
        if kind in COSTLY and not self.is_closed:
            self._connection.send(frames.PART, self._id, frames.CREDIT + b"1")
        return kind, data

    async def send(self, kind: bytes, data: bytes = b"") -> None:
        """Wait for a credit and send a part. Sends nothing if the exchange is closed. Raises PartTooLarge."""
        if len(data) > MOST_BYTES:
            raise PartTooLarge(f"{len(data)} bytes are sent at once: the limit is {MOST_BYTES} bytes")
        if kind in COSTLY:
            await self._take_credit()
        if self._connection.is_full:
            await self._connection.drained()
        if not self.is_closed:
            self._connection.send(frames.PART, self._id, kind + data)

    async def _take_credit(self) -> None:
        while not self._credits and not self.is_closed:
            self._has_credit.clear()
            await self._has_credit.wait()
        self._credits -= 1

    async def send_body(self, data: bytes) -> None:
        for start in range(0, len(data), PART_BYTES):
            await self.send(frames.BODY, data[start : start + PART_BYTES])

    def finish(self, kind: bytes, document: Any = None) -> None:
        """Send the last part and close the exchange. Does nothing if it is already closed."""
        if not self.is_closed:
            data = b"" if document is None else dumps(document)
            self._connection.send(frames.PART, self._id, kind + data)
            self._end()

    def _end(self) -> None:
        self.is_closed = True
        self._arrived.set()
        self._has_credit.set()
        self._forget(self._id)


class Exchanges:
    """The exchanges in progress, by id."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._open: dict[bytes, Exchange] = {}

    def begin(self, id: bytes | None = None, last: Collection[bytes] = CLOSED) -> Exchange:
        """Create an exchange. Without an id the host begins it, and gets a random id."""
        id = os.urandom(16) if id is None else id
        exchange = self._open[id] = Exchange(self.connection, id, last, self._forget)
        return exchange

    def _forget(self, id: bytes) -> None:
        self._open.pop(id, None)

    def receive(self, id: bytes, body: bytes) -> None:
        """Pass a PART frame to its exchange. Ignores frames of exchanges that have ended."""
        if exchange := self._open.get(id):
            exchange.receive(body[:1], body[1:])

    def close_all(self) -> None:
        for exchange in list(self._open.values()):
            exchange.receive(frames.CLOSE, b"{}")
