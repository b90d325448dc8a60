"""Server-sent events from an event log, and late JSON responses preceded by keep-alive line feeds.

A stream sends a heartbeat every few seconds, whether or not events flow. A disconnected client is noticed when a
write fails. If the disconnection ends a run, it is noticed at once (`web/http/client_watch.py`).

The server sends the headers with the first chunk, which a stream yields at once and which may be empty. From then on
the server iterates the stream and closes it. The middleware `StreamOwner` closes streams that never reach the server.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from flask import Response, request
from werkzeug.datastructures import Headers

from shared.eventlog.events import END, EXPIRED, Event
from shared.eventlog.hub import Stopping
from web.http.client_watch import ClientWatch
from web.http.connections import LastChunk

HEARTBEAT = b": heartbeat\r\n\r\n"
HISTORY_EXPIRED = b": history expired\r\n\r\n"
KEEP_ALIVE = b"\n"
HEADERS = b""  # an empty first chunk, which makes the server send the headers
OPEN_STREAM = "runyard.open_stream"  # key in the WSGI environment: the request's stream
KEY_CHECK_SECONDS = 2.0  # interval at which a stream checks that its key is still valid

T = TypeVar("T")
Batches = Iterable[list[Event]]
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class HeartbeatTimer:
    """Schedule of a stream's heartbeats. `quiet_seconds` returns how long a reader may wait for events."""

    def __init__(self, heartbeat_seconds: float) -> None:
        self._every = heartbeat_seconds
        self._next = time.monotonic() + heartbeat_seconds
        self._owes_headers = False

    def send_headers_first(self) -> None:
        """Make the reader's first wait return at once, with or without events, since clients wait for the headers."""
        self._owes_headers = True

    def take_headers(self) -> bool:
        """Return whether the headers must be sent now. True at most once."""
        owed, self._owes_headers = self._owes_headers, False
        return owed

    def quiet_seconds(self) -> float:
        if self._owes_headers:
            return 0.0
        return max(self._next - time.monotonic(), 0.0)

    def take_due(self) -> bool:
        """Return whether a heartbeat must be sent now. If so, schedule the next one a period later."""
        now = time.monotonic()
        if now < self._next - 0.001:
            return False
        self._next += self._every
        if self._next < now:
            self._next = now + self._every
        return True


class ClientGone(Exception):
    """The other end of the request's socket has been closed."""


class NoLongerAllowed(Exception):
    """The key that opened the stream is no longer valid."""


def watch(client: ClientWatch, batches: Batches) -> Iterator[list[Event]]:
    """Yield the batches. Raises ClientGone at the first one after the client has disconnected."""
    with client:
        for batch in batches:
            if client.has_disconnected():
                raise ClientGone
            yield batch


def encode(event: Event, name: str, *, with_id: bool) -> bytes:
    """Encode an event as SSE bytes, under the name its client knows it by."""
    return encode_parts(name, event.data, b"%d" % event.seq if with_id and event.seq else b"")


def encode_parts(name: str, data: bytes, id: bytes) -> bytes:
    """Encode the parts of an event as SSE bytes. The data is one line, so nothing in it can look like a field."""
    head = b"event: " + name.encode() + b"\r\ndata: " + data
    return head + b"\r\nid: " + id + b"\r\n\r\n" if id else head + b"\r\n\r\n"


def comment(text: str) -> bytes:
    """Return an SSE comment, which clients ignore."""
    return f": {text}\r\n\r\n".encode()


def body(
    batches: Batches,
    heartbeat: HeartbeatTimer,
    *,
    with_ids: bool,
    with_end: bool = False,
    rename: Callable[[str], str | None] | None = None,
    headers_first: bool = False,
) -> Generator[bytes]:
    """Yield the stream's bytes, one chunk for each batch.

    `with_end` also sends the log's last event. `rename` returns the name under which the client gets an event, or None
    to leave the event out. `headers_first` sends the headers at once, without waiting for the first event.
    """
    if headers_first:
        heartbeat.send_headers_first()
    for batch in batches:
        out = []
        for event in batch:
            if event is EXPIRED:
                out.append(HISTORY_EXPIRED)
            elif (with_end or event.name != END) and (name := rename(event.name) if rename else event.name):
                out.append(encode(event, name, with_id=with_ids))
        if heartbeat.take_due():
            out.append(HEARTBEAT)
        if heartbeat.take_headers() or out:
            yield (LastChunk if batch and batch[-1].is_last else bytes)(b"".join(out))


def chunks(
    batches: Iterable[list[T]], heartbeat: HeartbeatTimer, encode: Callable[[T], bytes]
) -> Generator[bytes]:
    """Yield the encoded items of each batch as one chunk, and heartbeats. Sends the headers at once."""
    heartbeat.send_headers_first()
    for batch in batches:
        chunk = b"".join(map(encode, batch))
        if heartbeat.take_due():
            chunk += HEARTBEAT
        if heartbeat.take_headers() or chunk:
            yield chunk


def waiting(
    batches: Batches, heartbeat: HeartbeatTimer, answer: Callable[[Event | None], bytes]
) -> Generator[bytes]:
    """Yield line feeds until the run has ended, then the bytes that `answer` makes from the log's last event."""
    last: Event | None = None
    heartbeat.send_headers_first()
    for batch in batches:
        if batch and batch[-1].is_last:
            last = batch[-1]
        if heartbeat.take_headers() and last is None:
            yield HEADERS
        if heartbeat.take_due():
            yield KEEP_ALIVE
    yield LastChunk(answer(last))


class Stream:
    """The long response of the current request.

    At its end the stream exits `holds`, and calls `on_disconnect` if the client disconnected before the end.

    When this process shuts down, the stream closes the connection in the middle of the response. The client reconnects
    and resumes after the last id it saw; a normal end would tell it that the run has ended. A stream whose key was
    revoked ends normally if `may_end_early`. A JSON response is incomplete at that point, so its connection is closed
    too.
    """

    def __init__(
        self,
        chunks: Generator[bytes],
        *,
        holds: AbstractContextManager[Any],
        on_disconnect: Callable[[], None] | None,
        may_end_early: bool = True,
    ) -> None:
        self._may_end_early = may_end_early
        self._chunks = chunks
        self._holds = holds
        self._on_disconnect = on_disconnect
        self._ended = False
        self._is_revoked = False
        self._is_allowed: Callable[[], bool] | None = None
        self._on_close: Callable[[], None] | None = None
        self._check_key_at = 0.0
        self._is_closed = False
        request.environ[OPEN_STREAM] = self

    def guard(self, *, is_allowed: Callable[[], bool], on_close: Callable[[], None]) -> None:
        """End the stream soon after `is_allowed` returns False. `on_close` is called at the end of the stream."""
        self._is_allowed, self._on_close = is_allowed, on_close
        self._check_key_at = time.monotonic() + KEY_CHECK_SECONDS

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._chunks)
            self._check_key()
            return chunk
        except StopIteration:
            self._ended = not self._is_revoked
            raise
        except ClientGone:
            raise StopIteration from None
        except Stopping:
            self._ended = True  # the client did not disconnect
            raise cut_off("the server is shutting down") from None
        except NoLongerAllowed as error:
            self._is_revoked = True
            if self._may_end_early:
                return self._last_chunk(error)
            raise cut_off("the key of this request is no longer valid") from None

    def _last_chunk(self, error: NoLongerAllowed) -> bytes:
        """Return the chunk with which the generator ends a revoked stream. Raises StopIteration if it has none."""
        try:
            return self._chunks.throw(error)
        except NoLongerAllowed:
            raise StopIteration from None

    def _check_key(self) -> None:
        now = time.monotonic()
        if self._is_allowed is None or now < self._check_key_at:
            return
        self._check_key_at = now + KEY_CHECK_SECONDS
        if not self._is_allowed():
            raise NoLongerAllowed

    def close(self) -> None:
        """Release what the stream holds, whatever ended the response. A failing step does not skip the other steps."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as parts:
            if not self._ended and self._on_disconnect is not None:
                parts.callback(self._on_disconnect)
            parts.push(self._holds)
            parts.callback(self._chunks.close)
            if self._on_close is not None:
                parts.callback(self._on_close)


class StreamOwner:
    """WSGI middleware that closes a request's stream if the server does not get it as the response.

    That happens when the request fails after its stream was created, and when another response takes its place: the
    headers alone, or an error.
    """

    def __init__(self, app: Wsgi) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: Iterable[bytes] | None = None
        try:
            answer = self.app(environ, start_response)
            return answer
        finally:
            stream: Stream | None = environ.get(OPEN_STREAM)
            if stream is not None and stream is not answer:
                stream.close()


def cut_off(reason: str) -> ConnectionResetError:
    """Return the error that makes the server close the connection without a log line."""
    return ConnectionResetError(errno.ECONNRESET, reason)


STREAM_TYPE = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class StreamResponse(Response):
    """The response of a stream, whose headers are sent unchanged. werkzeug would parse and escape their URLs again."""

    def get_wsgi_headers(self, environ: dict[str, Any]) -> Headers:
        return self.headers


def event_stream(stream: Stream, headers: dict[str, str]) -> Response:
    """Return the `text/event-stream` response of a stream."""
    headers = {"Content-Type": STREAM_TYPE, **STREAM_HEADERS, **headers}
    return StreamResponse(stream, headers=headers, direct_passthrough=True)


def whole_stream(events: bytes) -> Response:
    """Return the `text/event-stream` response of events that are all known already."""
    return Response(events, content_type=STREAM_TYPE, headers=STREAM_HEADERS)


def late_json(stream: Stream, headers: dict[str, str]) -> Response:
    """Return the response of a wait. Status and headers are sent at once, the JSON when it is ready."""
    headers = {"Content-Type": "application/json", **headers}
    return StreamResponse(stream, headers=headers, direct_passthrough=True)
