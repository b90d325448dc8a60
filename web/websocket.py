"""WebSockets on gunicorn's gevent worker: the handshake, and messages over the connection that the request came on.

A socket costs one greenlet, begun after the handshake: a watcher of gevent's loop waits for what comes, and the
greenlet that reads is there only while there is something to read. Nothing is queued for a client: who writes waits
until the client takes it.
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
from shared.infra.hardening import let_others_run
from web import sse
from web.client_watch import is_readable
from web.errors import answer
from web.upgrade import HandedOver

log = logging.getLogger(__name__)

VERSION = "13"
KEY = r"[A-Za-z0-9+/]{22}=="
ASKED = [
    (b"Host", b"localhost"),
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", VERSION.encode()),
]  # what was looked at already, as the library wants it
OF_HANDSHAKE = frozenset({"connection", "upgrade", "content-length", "transfer-encoding"})
READ = 1  # libev's flag
WHOLE_TEXT = 0x81  # how a frame begins that is a whole text
SHORT = 126  # bytes and more have their number in two bytes after this one, or in eight after the next
READ_BYTES = 16 * 1024
AHEAD_MESSAGES, AHEAD_BYTES = 2_000, 256 * 1024  # of a client that are read before they are taken
TURN_EVENTS = 64  # after so many, others get their turn
GONE = CloseConnection(code=CloseReason.ABNORMAL_CLOSURE)  # without a word
TAKING = (
    ConnectionState.OPEN,
    ConnectionState.REMOTE_CLOSING,
)  # states of a client that can be sent something
NO_GOODBYE = (int(CloseReason.ABNORMAL_CLOSURE), "")
LINGER_SECONDS = 1.0  # for the other end to close too: what it has not read would be lost else
PING_BEATS = 4  # heartbeats without a word from the client before it is asked for one
SILENT_BEATS = 12  # … and before it is taken for gone

GATEWAY_SOCKET = "gunicorn.socket"  # in the WSGI environment


class NoUpgrade(Exception):
    """The request asks for no WebSocket of ours."""


class Closed(Exception):
    """The socket is closed, by whichever end."""


class _Broken(Exception):
    """The client does not keep to the rules; why it is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A whole one of the client's; text is UTF-8."""

    data: bytes
    is_text: bool


def text_frame(message: bytes) -> bytes:
    """A text in the one frame in which a server sends it; the same for all clients."""
    size = len(message)
    if size < SHORT:
        head = struct.pack("!BB", WHOLE_TEXT, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", WHOLE_TEXT, SHORT, size)
    else:
        head = struct.pack("!BBQ", WHOLE_TEXT, SHORT + 1, size)
    return head + message


def handshake(environ: Mapping[str, Any]) -> tuple[Connection, bytes]:
    """The connection that a request asks for, and the bytes that open it; raises NoUpgrade and Invalid."""
    return Opening(environ).accept()


class Opening:
    """A request for a WebSocket, looked at and not yet answered; raises NoUpgrade and Invalid."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._key = _key(environ)
        asked = environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "")
        self.subprotocols = [name.strip() for name in asked.split(",") if name.strip()]

    def accept(
        self, subprotocol: str | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> tuple[Connection, bytes]:
        """The connection, and the bytes that open it; the subprotocol is one of those that were asked for."""
        asked = [*ASKED, (b"Sec-WebSocket-Key", self._key.encode())]
        if subprotocol is not None:
            asked.append((b"Sec-WebSocket-Protocol", subprotocol.encode()))
        more = [
            (name.encode(), value.encode("latin-1"))
            for name, value in headers
            if name.lower() not in OF_HANDSHAKE and not name.lower().startswith("sec-websocket-")
        ]
        opening = WSConnection(ConnectionType.SERVER)
        opening.initiate_upgrade_connection(asked, b"/")
        opened = opening.send(AcceptConnection(subprotocol=subprotocol, extra_headers=more))
        assert opening.connection is not None  # it was accepted
        return opening.connection, opened


def _key(environ: Mapping[str, Any]) -> str:
    """The key of a request for a WebSocket; raises NoUpgrade and Invalid."""
    upgrades = {one.strip().lower() for one in environ.get("HTTP_CONNECTION", "").split(",")}
    if environ["REQUEST_METHOD"] != "GET" or "upgrade" not in upgrades:
        raise NoUpgrade("This address is for WebSockets: ask for an upgrade")
    kind = environ.get("HTTP_UPGRADE", "").lower(), environ.get("HTTP_SEC_WEBSOCKET_VERSION")
    if kind != ("websocket", VERSION):
        raise NoUpgrade(f"This address is for WebSockets of version {VERSION}")
    if GATEWAY_SOCKET not in environ:
        raise NoUpgrade("This server cannot upgrade connections")
    key = environ.get("HTTP_SEC_WEBSOCKET_KEY", "")
    if not re.fullmatch(KEY, key, re.ASCII):
        raise Invalid("Sec-WebSocket-Key: must be 16 bytes in Base64", status=HTTPStatus.BAD_REQUEST)
    return key


class _Waiting:
    """Messages that were read and not taken yet, as an iterator over them."""

    def __init__(self) -> None:
        self._messages: deque[ClientMessage] = deque()
        self._bytes = 0

    @property
    def has_some_room(self) -> bool:
        """Whether more is to be read while some wait; what is behind too many stays where it is."""
        return 0 < len(self._messages) < AHEAD_MESSAGES and self._bytes < AHEAD_BYTES

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
    """The server's end of one, after the handshake; `opening` are the bytes that answer it.

    Greenlets may write at the same time. A message of the client's has at most `most_bytes`; it is text unless the
    socket `takes_binary`.
    """

    def __init__(
        self,
        client: socket.socket,
        connection: Connection,
        opening: bytes,
        *,
        most_bytes: int,
        takes_binary: bool = False,
    ) -> None:
        self._client, self._connection, self._opening = client, connection, opening
        self._most_bytes, self._takes_binary = most_bytes, takes_binary
        self._message = bytearray()
        self._lock = threading.Lock()
        self._silent_beats, self._is_reading = 0, False
        self._take: Callable[[ClientMessage], None] = lambda message: None
        self._wake: Callable[[], None] = lambda: None
        self._watcher: Any = None
        self.is_closed = False
        self.closed_with: tuple[int, str] = NO_GOODBYE  # what the client said at its end

    # The connection.

    def keep(self) -> None:
        """Have it for oneself: the server closes its own descriptor at the end of the request."""
        self._client = self._client.dup()

    def release(self) -> None:
        with suppress(OSError):
            self._client.close()

    # What is sent.

    def open(self) -> None:
        with self._lock:
            self._write(self._opening)

    def send(self, *messages: bytes) -> None:
        """Send texts, each a message; waits until the client takes them. Raises Closed."""
        self.send_frames([text_frame(message) for message in messages])

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send whole messages in their frames; otherwise as `send`."""
        with self._lock:
            self._require_open()
            self._write(b"".join(frames))

    def send_binary(self, message: bytes) -> None:
        """Send bytes as one message; otherwise as `send`."""
        self._send(BytesMessage(data=message))

    def _send(self, *events: Event) -> None:
        with self._lock:
            self._require_open()
            if self._connection.state is ConnectionState.OPEN:
                self._write(b"".join(map(self._connection.send, events)))

    def _require_open(self) -> None:
        """Raise Closed unless the client may get more: also one that says no more, until all it has said was taken."""
        if self.is_closed or self._connection.state not in TAKING:
            raise Closed

    def _write(self, data: bytes) -> None:
        """All of it; the client may pause between parts for as long as at any answer."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._client.send(left) :]
        except OSError as error:
            self.is_closed = True
            raise Closed from error

    def beat(self) -> None:
        """A heartbeat of the service: is the client still there? Raises Closed where it is not."""
        self._silent_beats = 0 if self._is_reading else self._silent_beats + 1
        if self._silent_beats >= SILENT_BEATS:
            self.close(CloseReason.TRY_AGAIN_LATER, "nothing was heard for too long")
            raise Closed
        if self._silent_beats % PING_BEATS == 0:
            self._send(Ping())

    def close(self, code: int, reason: str) -> None:
        """Say goodbye, where anybody hears it; nothing is sent after that."""
        with self._lock, suppress(Closed):
            if self.is_closed:
                return
            self.is_closed = True
            goodbye = CloseConnection(code=code, reason=reason)
            if self._connection.state in TAKING:
                self._write(self._connection.send(goodbye))

    def linger(self) -> None:
        """Let the other end close first, for a moment."""
        silent: Any = False  # not raised outside of the block
        with suppress(OSError), gevent.Timeout(LINGER_SECONDS, silent):
            self._client.shutdown(socket.SHUT_WR)
            while self._client.recv(READ_BYTES):
                let_others_run()

    # What comes.

    @contextmanager
    def receiving(self, take: Callable[[bytes], None], wake: Callable[[], None]) -> Iterator[None]:
        """As `receiving_messages`, for text alone."""
        with self.receiving_messages(lambda message: take(message.data), wake):
            yield

    @contextmanager
    def receiving_messages(
        self, take: Callable[[ClientMessage], None], wake: Callable[[], None]
    ) -> Iterator[None]:
        """While entered, `take` gets each message, one after the other, and `wake` is called at the end of them.

        Both are called in another greenlet; nothing more is read before `take` returns.
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
        """Take what is there, then watch for more."""
        try:
            if self._watcher is not None:
                self._take_messages()
        except Closed:
            self.is_closed = True
        except _Broken as broken:
            self.close(broken.code, broken.reason)
        except Exception:  # the outermost of this greenlet: nobody else would close the socket
            log.exception("a message over a socket was not taken")
            self.close(CloseReason.INTERNAL_ERROR, "internal error")
        self._silent_beats, self._is_reading = 0, False
        if self.is_closed:
            self._wake()
        elif self._watcher is not None:
            self._watcher.start(self._on_readable)

    def _take_messages(self) -> None:
        """Take the messages that have come; pings among what comes meanwhile are answered before those that wait."""
        waiting = _Waiting()
        end = self._receive(waiting)
        for count, message in enumerate(waiting, start=1):
            self._take(message)
            if count % TURN_EVENTS == 0:
                let_others_run()
            if end is None and waiting.has_some_room and is_readable(self._client):
                end = self._receive(waiting)
        if end is not None:
            self._end(end)

    def _receive(self, waiting: _Waiting) -> CloseConnection | _Broken | None:
        """Add what is whole after one more piece of what the client sends; answers with what ends it all, if it does."""
        data = self._piece()
        if not data:
            return GONE
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
                    waiting.add(self._part(event))
                except _Broken as broken:
                    return broken
        return None

    def _piece(self) -> bytes:
        """What has come; nothing where the client is gone."""
        try:
            return self._client.recv(READ_BYTES)
        except OSError:
            return b""

    def _part(self, event: TextMessage | BytesMessage) -> ClientMessage | None:
        """The message that ends with this part of one; raises _Broken."""
        is_text = isinstance(event, TextMessage)
        if not is_text and not self._takes_binary:
            raise _Broken(CloseReason.UNSUPPORTED_DATA, "messages are text")
        self._message += event.data.encode() if isinstance(event, TextMessage) else event.data
        if len(self._message) > self._most_bytes:
            raise _Broken(CloseReason.MESSAGE_TOO_BIG, f"a message is larger than {self._most_bytes} bytes")
        if not event.message_finished:
            return None
        message, self._message = bytes(self._message), bytearray()
        return ClientMessage(message, is_text)

    def _end(self, end: CloseConnection | _Broken) -> None:
        """Close as is due, once all that the client had said before was taken. Raises Closed, or _Broken."""
        if isinstance(end, _Broken):
            raise end
        if end is GONE:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)  # who writes at this moment waits for nobody
            raise Closed
        if self._connection.state is ConnectionState.OPEN:
            raise _Broken(end.code, end.reason or "")  # what came is no frame
        self.closed_with = int(end.code), end.reason or ""
        self.close(end.code, end.reason or "")
        raise Closed


NOTHING = nullcontext()


class SocketStream(sse.Stream):
    """The answer to a handshake: takes the connection over when the server asks for its first chunk, and gives none.

    `steps` do all the work, once the request is over and nothing is left of it; between them it is looked at whether
    the key may still go on.
    """

    def __init__(
        self, websocket: WebSocket, steps: Generator[bytes], *, holds: AbstractContextManager[Any] = NOTHING
    ) -> None:
        super().__init__(steps, holds=holds, on_disconnect=None)
        self._websocket = websocket
        self._is_handed_over = False

    def __next__(self) -> bytes:
        self._websocket.keep()
        self._is_handed_over = True
        raise HandedOver(self._serve_to_end)

    def close(self) -> None:
        """The request's end is not the socket's."""
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
                self._ask()
        except Stopping:
            self._websocket.close(CloseReason.SERVICE_RESTART, "the server stops")
        except sse.NoLongerAllowed:
            self._websocket.close(CloseReason.POLICY_VIOLATION, "the key that opened this is no longer valid")
        finally:
            self._chunks.close()


def refusal(no_upgrade: NoUpgrade) -> Response:
    """What is answered to a request that asks for no WebSocket of ours."""
    response = answer(HTTPStatus.UPGRADE_REQUIRED, str(no_upgrade))
    response.headers.update({"Upgrade": "websocket", "Sec-WebSocket-Version": VERSION})
    return response


class Upgraded(Response):
    """The answer to a handshake as Flask sees it; its bytes are written by the stream."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream, status=HTTPStatus.SWITCHING_PROTOCOLS, direct_passthrough=True)

    def get_app_iter(self, environ: Any) -> Any:
        return self.response  # Flask gives a 101 no body
