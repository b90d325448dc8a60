"""WebSockets on gunicorn's gevent worker: the handshake, and messages over the connection of the request.

A socket costs one greenlet, which starts after the handshake. A watcher in gevent's event loop waits for data; a
greenlet that reads exists only while there is data. Messages to a client are not queued: a writer blocks until the
client reads.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import gevent
from flask import Response
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from shared.errors import Invalid
from shared.eventlog.hub import Stopping
from shared.infra.system import let_others_run
from web.http import sse
from web.http.client_watch import READ, is_readable
from web.http.connections import HandedOver
from web.http.errors import answer

log = logging.getLogger(__name__)

VERSION = "13"
KEY = r"[A-Za-z0-9+/]{22}=="
CHECKED_HEADERS = [
    (b"Host", b"localhost"),
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", VERSION.encode()),
]  # the headers that `_key` has checked, in the form that wsproto takes
HANDSHAKE_HEADERS = frozenset({"connection", "upgrade", "content-length", "transfer-encoding"})
WHOLE_TEXT = 0x81  # first byte of a frame that holds a whole text message
SHORT = 126  # from this size on, the length follows a byte 126 in two bytes, or a byte 127 in eight
READ_BYTES = 16 * 1024
QUEUED_MESSAGES, QUEUED_BYTES = 2_000, 256 * 1024  # limits of a client's messages that wait to be handled
TURN_EVENTS = 64  # other greenlets run after this many events
DISCONNECTED = CloseConnection(code=CloseReason.ABNORMAL_CLOSURE)  # the client sent no close frame
WRITABLE_STATES = (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING)  # the client can be sent messages
LINGER_SECONDS = 1.0  # wait for the client to close its end: data it has not read could be lost
PING_BEATS = 4  # heartbeats without data from the client until it is pinged, and between pings
SILENT_BEATS = 12  # heartbeats without data from the client until it counts as disconnected

GATEWAY_SOCKET = "gunicorn.socket"  # key in the WSGI environment


class NoUpgrade(Exception):
    """The request does not ask for a WebSocket that this server can open."""


class Closed(Exception):
    """The socket is closed, by either end."""


class _Broken(Exception):
    """The client breaks the protocol or a limit. Carries the close code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A complete message from the client. Text is UTF-8."""

    data: bytes
    is_text: bool


def text_frame(message: bytes) -> bytes:
    """Encode a text message as one frame. The bytes are the same for all clients."""
    size = len(message)
    if size < SHORT:
        head = struct.pack("!BB", WHOLE_TEXT, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", WHOLE_TEXT, SHORT, size)
    else:
        head = struct.pack("!BBQ", WHOLE_TEXT, SHORT + 1, size)
    return head + message


class Opening:
    """A request for a WebSocket that is checked and not yet answered. Raises NoUpgrade and Invalid."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._key = _key(environ)
        offered = environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "")
        self.subprotocols = [name.strip() for name in offered.split(",") if name.strip()]

    def accept(
        self, subprotocol: str | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> tuple[Connection, bytes]:
        """Return the connection, and the bytes that open it. `subprotocol` must be one of `subprotocols`."""
        headers_of_request = [*CHECKED_HEADERS, (b"Sec-WebSocket-Key", self._key.encode())]
        if subprotocol is not None:
            headers_of_request.append((b"Sec-WebSocket-Protocol", subprotocol.encode()))
        more = [
            (name.encode(), value.encode("latin-1"))
            for name, value in headers
            if name.lower() not in HANDSHAKE_HEADERS and not name.lower().startswith("sec-websocket-")
        ]
        opening = WSConnection(ConnectionType.SERVER)
        opening.initiate_upgrade_connection(headers_of_request, b"/")
        opened = opening.send(AcceptConnection(subprotocol=subprotocol, extra_headers=more))
        assert opening.connection is not None  # it was accepted
        return opening.connection, opened


def _key(environ: Mapping[str, Any]) -> str:
    """Return the key of a request for a WebSocket. Raises NoUpgrade and Invalid."""
    upgrades = {one.strip().lower() for one in environ.get("HTTP_CONNECTION", "").split(",")}
    if environ["REQUEST_METHOD"] != "GET" or "upgrade" not in upgrades:
        raise NoUpgrade("This address is for WebSockets: send an upgrade request")
    kind = environ.get("HTTP_UPGRADE", "").lower(), environ.get("HTTP_SEC_WEBSOCKET_VERSION")
    if kind != ("websocket", VERSION):
        raise NoUpgrade(f"This address is for WebSockets of version {VERSION}")
    if GATEWAY_SOCKET not in environ:
        raise NoUpgrade("This server cannot upgrade connections")
    key = environ.get("HTTP_SEC_WEBSOCKET_KEY", "")
    if not re.fullmatch(KEY, key, re.ASCII):
        raise Invalid("Sec-WebSocket-Key: must be 16 bytes in Base64", status=HTTPStatus.BAD_REQUEST)
    return key


class _MessageQueue:
    """Messages that were read and not yet handled. Iterating over the queue removes them."""

    def __init__(self) -> None:
        self._messages: deque[ClientMessage] = deque()
        self._bytes = 0

    @property
    def may_read_ahead(self) -> bool:
        """Whether to read more while messages wait. Beyond the limits, further data stays in the kernel's buffer."""
        return 0 < len(self._messages) < QUEUED_MESSAGES and self._bytes < QUEUED_BYTES

    def add(self, message: ClientMessage | None) -> None:
        if message is not None:
            self._messages.append(message)
            self._bytes += len(message.data)

    def __iter__(self) -> Iterator[ClientMessage]:
        while self._messages:
            message = self._messages.popleft()
            self._bytes -= len(message.data)
            yield message


class WebSocket:
    """The server's end of a WebSocket after the handshake. `opening` holds the bytes that answer the handshake.

    Several greenlets may write at the same time. A message from the client may have at most `max_bytes`, and must be
    text unless the socket `takes_binary`.
    """

    def __init__(
        self,
        client: socket.socket,
        connection: Connection,
        opening: bytes,
        *,
        max_bytes: int,
        takes_binary: bool = False,
    ) -> None:
        self._client, self._connection, self._opening = client, connection, opening
        self._max_bytes, self._takes_binary = max_bytes, takes_binary
        self._message = bytearray()
        self._lock = threading.Lock()
        self._silent_beats, self._is_reading = 0, False
        self._take: Callable[[ClientMessage], None] = lambda message: None
        self._wake: Callable[[], None] = lambda: None
        self._watcher: Any = None
        self.is_closed = False
        self.closed_with = int(CloseReason.ABNORMAL_CLOSURE), ""  # close code and reason from the client

    def take_over(self) -> None:
        """Duplicate the descriptor, since the server closes its own one at the end of the request."""
        self._client = self._client.dup()

    def release(self) -> None:
        with suppress(OSError):
            self._client.close()

    def open(self) -> None:
        with self._lock:
            self._write(self._opening)

    def send(self, *messages: bytes) -> None:
        """Send text messages. Blocks while the client does not read. Raises Closed."""
        self.send_frames([text_frame(message) for message in messages])

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send messages that are already encoded as frames. Otherwise like `send`."""
        with self._lock:
            self._require_open()
            self._write(b"".join(frames))

    def send_binary(self, message: bytes) -> None:
        """Send one binary message. Otherwise like `send`."""
        self._send(BytesMessage(data=message))

    def _send(self, *events: Event) -> None:
        with self._lock:
            self._require_open()
            if self._connection.state is ConnectionState.OPEN:
                self._write(b"".join(map(self._connection.send, events)))

    def _require_open(self) -> None:
        """Raise Closed unless the client can be sent messages.

        A client that has sent its close frame still gets messages until all its earlier ones are handled.
        """
        if self.is_closed or self._connection.state not in WRITABLE_STATES:
            raise Closed

    def _write(self, data: bytes) -> None:
        """Send all of the data. The socket's timeout applies to each part. Raises Closed."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._client.send(left) :]
        except OSError as error:
            self.is_closed = True
            raise Closed from error

    def beat(self) -> None:
        """Handle a heartbeat: ping a silent client, or close a socket that was silent for too long. Raises Closed."""
        self._silent_beats = 0 if self._is_reading else self._silent_beats + 1
        if self._silent_beats >= SILENT_BEATS:
            self.close(CloseReason.TRY_AGAIN_LATER, "the client sent nothing for too long")
            raise Closed
        if self._silent_beats and self._silent_beats % PING_BEATS == 0:
            self._send(Ping())

    def close(self, code: int, reason: str) -> None:
        """Send a close frame if the client can still get one. Nothing is sent after it."""
        with self._lock, suppress(Closed):
            if self.is_closed:
                return
            self.is_closed = True
            if self._connection.state in WRITABLE_STATES:
                self._write(self._connection.send(CloseConnection(code=code, reason=reason)))

    def linger(self) -> None:
        """Stop sending, and wait up to LINGER_SECONDS for the client to close its end."""
        silent: Any = False  # makes gevent end the block without an error
        with suppress(OSError), gevent.Timeout(LINGER_SECONDS, silent):
            self._client.shutdown(socket.SHUT_WR)
            while self._client.recv(READ_BYTES):
                let_others_run()

    @contextmanager
    def receiving(self, take: Callable[[ClientMessage], None], wake: Callable[[], None]) -> Iterator[None]:
        """Call `take` with each message in order while entered, and `wake` when the socket is closed.

        Both are called in another greenlet. Nothing more is read before `take` returns.
        """
        self._take, self._wake = take, wake
        self._watcher = gevent.get_hub().loop.io(self._client.fileno(), READ)
        self._watcher.start(self._on_readable)
        try:
            yield
        finally:
            watcher, self._watcher = self._watcher, None
            watcher.stop()
            watcher.close()

    def _on_readable(self) -> None:
        self._watcher.stop()
        self._is_reading = True
        gevent.spawn(self._read)

    def _read(self) -> None:
        """Handle the messages that have arrived, then watch for more."""
        try:
            if self._watcher is not None:
                self._take_messages()
        except Closed:
            self.is_closed = True
        except _Broken as broken:
            self.close(broken.code, broken.reason)
        except Exception:  # outermost frame of the greenlet: the socket would stay open
            log.exception("a message over a WebSocket could not be handled")
            self.close(CloseReason.INTERNAL_ERROR, "internal error")
        self._silent_beats, self._is_reading = 0, False
        if self.is_closed:
            self._wake()
        elif self._watcher is not None:
            self._watcher.start(self._on_readable)

    def _take_messages(self) -> None:
        """Handle the messages that have arrived. New pings are answered before the messages that wait are handled."""
        queue = _MessageQueue()
        end = self._receive(queue)
        for count, message in enumerate(queue, start=1):
            self._take(message)
            if count % TURN_EVENTS == 0:
                let_others_run()
            if end is None and queue.may_read_ahead and is_readable(self._client):
                end = self._receive(queue)
        if end is not None:
            self._end(end)

    def _receive(self, queue: _MessageQueue) -> CloseConnection | _Broken | None:
        """Read one piece of data, and queue the messages that it completes. Returns the close frame or error in it."""
        try:
            data = self._client.recv(READ_BYTES)
        except OSError:
            return DISCONNECTED
        if not data:
            return DISCONNECTED
        self._connection.receive_data(data)
        for count, event in enumerate(self._connection.events(), start=1):
            if count % TURN_EVENTS == 0:
                let_others_run()
            if isinstance(event, Ping):
                self._send(event.response())
            elif isinstance(event, CloseConnection):
                return event
            elif isinstance(event, TextMessage | BytesMessage):
                try:
                    queue.add(self._complete(event))
                except _Broken as broken:
                    return broken
        return None

    def _complete(self, event: TextMessage | BytesMessage) -> ClientMessage | None:
        """Add a part of a message. Returns the message if the part completes it. Raises _Broken."""
        is_text = isinstance(event, TextMessage)
        if not is_text and not self._takes_binary:
            raise _Broken(CloseReason.UNSUPPORTED_DATA, "messages must be text")
        self._message += event.data.encode() if isinstance(event, TextMessage) else event.data
        if len(self._message) > self._max_bytes:
            raise _Broken(CloseReason.MESSAGE_TOO_BIG, f"a message is larger than {self._max_bytes} bytes")
        if not event.message_finished:
            return None
        message, self._message = bytes(self._message), bytearray()
        return ClientMessage(message, is_text)

    def _end(self, end: CloseConnection | _Broken) -> None:
        """End the connection as `end` says, after all earlier messages are handled. Raises Closed or _Broken."""
        if isinstance(end, _Broken):
            raise end
        if end is DISCONNECTED:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)  # wakes greenlets blocked in a write
            raise Closed
        if self._connection.state is ConnectionState.OPEN:
            raise _Broken(end.code, end.reason or "")  # the data was not a valid frame
        self.closed_with = int(end.code), end.reason or ""
        self.close(end.code, end.reason or "")
        raise Closed


NOTHING = nullcontext()


class SocketStream(sse.Stream):
    """The response to a handshake. Takes over the connection when the server asks for the first chunk; yields none.

    `steps` do all the work, after the request has ended and its memory is free. Between steps the stream checks that
    the key is still valid.
    """

    def __init__(
        self, websocket: WebSocket, steps: Generator[bytes], *, holds: AbstractContextManager[Any] = NOTHING
    ) -> None:
        super().__init__(steps, holds=holds, on_disconnect=None)
        self._websocket = websocket
        self._is_handed_over = False

    def __next__(self) -> bytes:
        self._websocket.take_over()
        self._is_handed_over = True
        raise HandedOver(self._serve_to_end)

    def close(self) -> None:
        """Close the stream, unless it was handed over: the socket outlives the request."""
        if not self._is_handed_over:
            super().close()

    def _serve_to_end(self) -> None:
        try:
            with suppress(Closed):
                self._serve()
            self._websocket.linger()
        finally:
            self._websocket.release()
            super().close()

    def _serve(self) -> None:
        self._websocket.open()
        try:
            for _ in self._chunks:
                self._check_key()
        except Stopping:
            self._websocket.close(CloseReason.SERVICE_RESTART, "the server is shutting down")
        except sse.NoLongerAllowed:
            self._websocket.close(CloseReason.POLICY_VIOLATION, "the key of this socket is no longer valid")
        finally:
            self._chunks.close()


def refusal(no_upgrade: NoUpgrade) -> Response:
    """Return the 426 response to a request that does not ask for a WebSocket."""
    response = answer(HTTPStatus.UPGRADE_REQUIRED, str(no_upgrade))
    response.headers.update({"Upgrade": "websocket", "Sec-WebSocket-Version": VERSION})
    return response


class Upgraded(Response):
    """The response to a handshake as Flask sees it. The stream writes its bytes."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream, status=HTTPStatus.SWITCHING_PROTOCOLS, direct_passthrough=True)

    def get_app_iter(self, environ: Any) -> Any:
        return self.response  # the base class drops the body of a 101
