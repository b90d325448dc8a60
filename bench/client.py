"""A minimal HTTP/1.1 load client: one exchange at a time per kept-alive connection, every read timestamped.

A full client library would distort the result: at hundreds of runs per second its own CPU time on the measured
machine is significant. `httptools` (llhttp) parses the responses; events are decoded after the measurement.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import httpx
from httpx_sse import EventSource

from bench.targets import Event, Outcome


@dataclass(slots=True)
class Reply(Outcome):
    """An HTTP response: its status, and its body as `(time, bytes)` for each read."""

    status: int = 0
    tag: str = ""  # the ETag header
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def events(self) -> list[Event]:
        """Decode the body's events. The arrival time of each is that of the read that completed it."""
        arrived_at = 0.0

        def replay() -> Iterator[bytes]:
            nonlocal arrived_at
            for at, chunk in self.chunks:
                arrived_at = at
                yield chunk

        response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=replay())
        return [
            Event(arrived_at, event.event, json.loads(event.data))
            for event in EventSource(response).iter_sse()
            if event.data  # the SSE standard ignores an event without data
        ]


class Connection(asyncio.Protocol):
    """A keep-alive connection. Await each `exchange()` before starting the next."""

    def __init__(self) -> None:
        self.is_reusable = True
        self._transport: asyncio.Transport | None = None
        self._reply = Reply()
        self._done: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, reply: Reply) -> None:
        """Send a request and fill in the reply. Raises ConnectionError if the response breaks off."""
        assert self._transport is not None
        self._reply, self._has_framing, self._has_headers = reply, False, False
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        reply.sent_at = time.time()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived_at = time.time()
        if not self._is_busy():
            return self.close()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as broken:
            self._end(ConnectionError(f"not HTTP: {broken}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        if self._is_busy():
            # without a Content-Length, closing the connection marks the end of the body
            whole = self._has_headers and not self._has_framing and exc is None
            self._end(None if whole else ConnectionError("connection closed before the end of the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_framing |= name.lower() in (b"content-length", b"transfer-encoding")
        if name.lower() == b"etag":
            self._reply.tag = value.decode()

    def on_headers_complete(self) -> None:
        self._has_headers = True
        self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._reply.chunks.append((self._arrived_at, body))

    def on_message_complete(self) -> None:
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self._end(None)

    def _is_busy(self) -> bool:
        return self._done is not None and not self._done.done()

    def _end(self, broken: ConnectionError | None) -> None:
        assert self._done is not None
        self._reply.ended_at = time.time()
        if broken is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(broken)


class Client:
    """A pool of connections to one base URL, one per concurrent request."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        address = urlsplit(base_url)
        if address.scheme != "http" or not address.hostname:
            raise ValueError(f"not a plain http:// address: {base_url}")
        self._host, self._port = address.hostname, address.port or 80
        self._prefix = address.path.rstrip("/")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._kept: list[Connection] = []

    async def post(self, path: str, body: dict[str, Any], *, timeout_seconds: float) -> Reply:
        """Post a JSON body. Connection errors and timeouts are stored in the reply's `error`."""
        content = json.dumps(body).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return await self._sent(self._request("POST", path, head) + content, timeout_seconds)

    async def get(
        self, path: str, *, timeout_seconds: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Get a path. Connection errors and timeouts are stored in the reply's `error`."""
        head = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        return await self._sent(self._request("GET", path, head), timeout_seconds)

    async def follow(self, path: str, reply: Reply) -> None:
        """Get a path whose response does not end, without a timeout. Connection errors are stored in `reply.error`."""
        try:
            await self._send(self._request("GET", path, ""), reply)
        except OSError as broken:
            reply.error = str(broken) or type(broken).__name__

    async def _sent(self, request: bytes, timeout_seconds: float) -> Reply:
        reply = Reply(sent_at=time.time())
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._send(request, reply)
        except TimeoutError:
            reply.error = "timeout"
        except OSError as broken:
            reply.error = str(broken) or type(broken).__name__
        if reply.error:
            reply.ended_at = time.time()
        return reply

    async def aclose(self) -> None:
        while self._kept:
            self._kept.pop().close()

    async def is_listening(self) -> bool:
        try:
            self._kept.append(await self._connect())
        except OSError:
            return False
        return True

    async def _send(self, request: bytes, reply: Reply) -> None:
        while self._kept:
            kept = self._kept.pop()
            if not kept.is_reusable:
                continue
            try:
                await self._exchange(kept, request, reply)
                return
            except ConnectionError:
                # the server closed an idle keep-alive connection, which is not a failure of this request
                if reply.status or reply.chunks:
                    raise
        await self._exchange(await self._connect(), request, reply)

    async def _exchange(self, connection: Connection, request: bytes, reply: Reply) -> None:
        try:
            await connection.exchange(request, reply)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._kept.append(connection)
        else:
            connection.close()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection

    def _request(self, method: str, path: str, headers: str) -> bytes:
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAccept: */*\r\n"
            f"{headers}{self._headers}\r\n"
        )
        return head.encode()
