"""The host's end of the socket: batched sending, receiving by callback, and questions that await a reply.

An asyncio transport would make one system call per frame. Here one call sends all frames of a loop tick, and while
frames keep coming, there is at most one call per millisecond. A tick in which many runs go on takes long: it sends the
frames so far in between.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from json import loads as json_loads
from math import inf
from typing import NoReturn

from . import frames

# Graphs are paused while more bytes than this wait to be sent.
HIGH_WATER = 1024 * 1024
# Minimum interval between two sends while frames keep coming.
BATCH_SECONDS = 0.001
# How long a due frame waits for the end of the loop tick.
LATE_SECONDS = 0.002
# How long one loop tick waits for a runner that does not read.
HOLD_MS = 50
# Delay of a flush that only marks that data waits for the socket: `_writable` flushes as soon as the socket accepts more.
IDLE_SECONDS = 3600.0
READ_BYTES = 256 * 1024

# Frames that a peer or a client waits for. They are sent at the end of the loop tick, without batching.
AWAITED = frozenset(
    (
        frames.DONE, frames.ASK, frames.PONG, frames.READY, frames.ANSWER, frames.CHECKED, frames.OPEN, frames.PART,
    )
)  # fmt: skip

Handler = Callable[[int, bytes, bytes], None]
# Returns the JSON of a question with the given number.
Document = Callable[[int], bytes]


class Connection:
    """One socket to the runner. `send` may be called from any thread."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, handler: Handler) -> None:
        sock.setblocking(False)
        self.loop = loop
        self._sock = sock
        self._handler = handler
        self._thread = get_ident()
        self._decoder = frames.Decoder()
        self._out: list[bytes] = []
        self._unsent = memoryview(b"")
        self._waiting_bytes = 0
        self._flushing: asyncio.Handle | None = None
        self._sent_at = 0.0
        self._flush_by = inf  # when queued frames are sent without waiting for the end of the loop tick
        self._drained: asyncio.Future[None] | None = None
        self._lock = threading.Lock()
        self._asks: dict[int, asyncio.Future[list[bytes]]] = {}
        self._last_ask = 0
        loop.add_reader(sock, self._readable)

    def send(self, kind: int, id: bytes, body: bytes) -> None:
        """Queue a frame for sending."""
        if get_ident() == self._thread:
            self._queue(kind, frames.encode(kind, id, body))
        else:
            self.loop.call_soon_threadsafe(self._queue, kind, frames.encode(kind, id, body))

    def send_from_outside(self, kind: int, id: bytes, body: bytes) -> bool:
        """Send a frame directly while the event loop is blocked.

        Returns False if a partly sent frame comes first or the socket is full.
        """
        with self._lock:
            if self._unsent:
                return False
            frame = frames.encode(kind, id, body)
            try:
                sent = self._sock.send(frame)
            except BlockingIOError:
                return False
            self._unsent = memoryview(frame)[sent:]
            return True

    @property
    def is_full(self) -> bool:
        return self._waiting_bytes > HIGH_WATER

    async def drained(self) -> None:
        """Wait until the runner has read enough for graphs to continue."""
        while self.is_full:
            if self._drained is None:
                self._drained = self.loop.create_future()
            await self._drained

    async def ask(self, kind: int, id: bytes, document: Document, blobs: list[bytes]) -> list[bytes]:
        """Send a frame that expects a reply, and return the reply's parts. May be called on any event loop."""
        if asyncio.get_running_loop() is self.loop:
            return await self._ask(kind, id, document, blobs)
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._ask(kind, id, document, blobs), self.loop)
        )

    async def _ask(self, kind: int, id: bytes, document: Document, blobs: list[bytes]) -> list[bytes]:
        self._last_ask += 1
        number = self._last_ask
        future: asyncio.Future[list[bytes]] = self.loop.create_future()
        self._asks[number] = future
        try:
            self.send(kind, id, frames.pack([document(number), *blobs]))
            return await future
        finally:
            del self._asks[number]

    def ask_blocking(self, kind: int, id: bytes, document: Document, blobs: list[bytes]) -> list[bytes]:
        """Send a frame that expects a reply, and block until the reply arrives. May be called on any thread.

        An async node that calls a graph's sync `invoke` blocks the loop's thread. Nothing else would ever read the
        reply, so this method reads the socket. Frames that arrive before the reply are handled in the next loop tick.
        """
        if get_ident() != self._thread:
            return asyncio.run_coroutine_threadsafe(self._ask(kind, id, document, blobs), self.loop).result()
        self._last_ask += 1
        number = self._last_ask
        self._out.append(frames.encode(kind, id, frames.pack([document(number), *blobs])))
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLOUT)
        early: list[tuple[int, bytes, bytes]] = []
        reply: list[bytes] | None = None
        while reply is None:
            self._push_out()
            poll.modify(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll()
            for frame in list(self._decoder.feed(self._receive())):
                parts = frames.unpack(frame[2]) if frame[0] == frames.REPLY else []
                if parts and json_loads(parts[0]).get("ask") == number:
                    reply = parts[1:]
                else:
                    early.append(frame)
        for frame in early:
            self.loop.call_soon(self._dispatch, *frame)
        return reply

    def flush_and_exit(self, code: int) -> NoReturn:
        """Send all queued frames, waiting up to 5 seconds for the runner, and end the process."""
        try:
            self._sock.setblocking(True)
            self._sock.settimeout(5)
            self._sock.sendall(b"".join([bytes(self._unsent), *self._out]))
        except OSError:
            code = code or 1
        os._exit(code)

    def _queue(self, kind: int, frame: bytes) -> None:
        self._out.append(frame)
        self._waiting_bytes += len(frame)
        now = self.loop.time()
        due = self._sent_at + BATCH_SECONDS
        if self._flushing is None:
            if now >= due or kind in AWAITED:
                self._flushing = self.loop.call_soon(self._flush)
            else:
                self._flushing = self.loop.call_at(due, self._flush)
            self._flush_by = max(now, due) + LATE_SECONDS
        elif now >= self._flush_by:
            self._flush_now(self._flushing)
        elif kind in AWAITED and isinstance(self._flushing, asyncio.TimerHandle):
            self._flushing.cancel()
            self._flushing = self.loop.call_soon(self._flush)

    def flush_late(self) -> None:
        """Send queued frames that have waited too long for the end of the loop tick. Long steps of a tick call this."""
        if self._flushing is not None and self.loop.time() >= self._flush_by:
            self._flush_now(self._flushing)

    def _flush_now(self, scheduled: asyncio.Handle) -> None:
        scheduled.cancel()
        self._flush()

    def _flush(self) -> None:
        self._flushing = None
        self._push_out()
        self._sent_at = self.loop.time()
        if self._unsent:
            self._wait_for_reader()
        if self._drained is not None and not self.is_full:
            self._drained.set_result(None)
            self._drained = None

    def _push_out(self) -> None:
        with self._lock:
            data = memoryview(b"".join([self._unsent, *self._out])) if self._out else self._unsent
            self._out.clear()
            self._unsent = self._send_some(data)
        self._waiting_bytes = len(self._unsent)

    def _send_some(self, data: memoryview) -> memoryview:
        try:
            return data[self._sock.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            os._exit(1)  # the runner has ended

    def _wait_for_reader(self) -> None:
        """Send the rest when the socket accepts more.

        A graph that streams without ever awaiting `drained` would fill memory with queued frames. Above the high-water
        mark each loop tick therefore blocks for up to HOLD_MS, so that no graph produces more.
        """
        self._flush_by = inf
        if self._waiting_bytes <= HIGH_WATER:
            self.loop.add_writer(self._sock, self._writable)
            self._flushing = self.loop.call_later(IDLE_SECONDS, self._flush)
            return
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        poll.poll(HOLD_MS)
        self._flushing = self.loop.call_soon(self._flush)

    def _writable(self) -> None:
        self.loop.remove_writer(self._sock)
        if self._flushing is not None:
            self._flushing.cancel()
        self._flush()

    def _readable(self) -> None:
        self._dispatch_all(iter(list(self._decoder.feed(self._receive()))))

    def _dispatch_all(self, received: Iterator[tuple[int, bytes, bytes]]) -> None:
        """Handle frames in order. The event loop logs the error of a frame; the frames after it are still handled."""
        try:
            for frame in received:
                self._dispatch(*frame)
        finally:
            if rest := list(received):
                self.loop.call_soon(self._dispatch_all, iter(rest))

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            data = b""
        if not data:
            os._exit(1)  # the runner has ended, so nothing can receive the results
        return data

    def _dispatch(self, kind: int, id: bytes, body: bytes) -> None:
        if kind != frames.REPLY:
            self._handler(kind, id, body)
            return
        parts = frames.unpack(body)
        future = self._asks.get(json_loads(parts[0]).get("ask", 0))
        if future is not None and not future.done():
            future.set_result(parts[1:])
