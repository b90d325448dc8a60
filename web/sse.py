"""Server-sent events from an event log, and JSON that comes late, behind keep-alive line feeds.

A heartbeat is sent every few seconds by the clock, whether or not events flow. A client that has left is
noticed when a write fails or, where that ends a run, at once (`web/client_watch.py`).

Headers are sent with a stream's first chunk, which comes at once and may be empty: from then on the server
iterates the stream and closes it. A stream that the server is not given is closed by the middleware `StreamOwner`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from flask import Response, request

from shared.eventlog.events import END, EXPIRED, Event
from shared.eventlog.hub import Stopping
from web.chunks import LastChunk
from web.client_watch import ClientWatch

HEARTBEAT = b": heartbeat\r\n\r\n"
HISTORY_EXPIRED = b": history expired\r\n\r\n"
KEEP_ALIVE = b"\n"
HEADERS = b""  # a first chunk with which the server sends them
OPEN_STREAM = "runyard.open_stream"  # in the WSGI environment: the request's stream
ALLOWED_SECONDS = 2.0  # how often a stream asks whether it may go on

Batches = Iterable[list[Event]]
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class HeartbeatTimer:
    """When a stream's next heartbeat is due; `quiet_seconds` is how long a reader may wait for events."""

    def __init__(self, heartbeat_seconds: float) -> None:
        self._every = heartbeat_seconds
        self._next = time.monotonic() + heartbeat_seconds
        self._owes_headers = False

    def send_headers_first(self) -> None:
        """Let the reader return at once the first time, with or without events: clients wait for the headers."""
        self._owes_headers = True

    def take_headers(self) -> bool:
        """Whether the headers are to be sent now; True once."""
        owed, self._owes_headers = self._owes_headers, False
        return owed

    def quiet_seconds(self) -> float:
        if self._owes_headers:
            return 0.0
        return max(self._next - time.monotonic(), 0.0)

    def take_due(self) -> bool:
        """Whether a heartbeat is to be sent now; the next one is due one period later."""
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
    """Whoever opened the stream may not read it any longer."""


def watch(client: ClientWatch, batches: Batches) -> Iterator[list[Event]]:
    """Pass batches on; raises ClientGone at the first one after the client has left."""
    with client:
        for batch in batches:
            if client.has_left():
                raise ClientGone
            yield batch


def encode(event: Event, name: str, *, with_id: bool) -> bytes:
    """One event as bytes, by the name that its client knows it by."""
    return encode_parts(name, event.data, b"%d" % event.seq if with_id and event.seq else b"")


def encode_parts(name: str, data: bytes, id: bytes) -> bytes:
    """The same of its parts; the data is one line, so nothing in it can look like a field."""
    head = b"event: " + name.encode() + b"\r\ndata: " + data
    return head + b"\r\nid: " + id + b"\r\n\r\n" if id else head + b"\r\n\r\n"


def comment(text: str) -> bytes:
    """A line that clients pass over."""
    return f": {text}\r\n\r\n".encode()


def body(
    batches: Batches,
    heartbeat: HeartbeatTimer,
    *,
    with_ids: bool,
    with_end: bool = False,
    keep: Callable[[str], str | None] | None = None,
    headers_first: bool = False,
) -> Generator[bytes]:
    """The stream's bytes: every batch in one write. `with_end` also sends the log's last event.

    `keep` gives each event its name for the client, or None for one that is not sent.
    `headers_first`: the headers go out although nobody knows when there will be something to send.
    """
    if headers_first:
        heartbeat.send_headers_first()
    for batch in batches:
        out = []
        for event in batch:
            if event is EXPIRED:
                out.append(HISTORY_EXPIRED)
            elif (with_end or event.name != END) and (name := keep(event.name) if keep else event.name):
                out.append(encode(event, name, with_id=with_ids))
        if heartbeat.take_due():
            out.append(HEARTBEAT)
        if heartbeat.take_headers() or out:
            yield (LastChunk if batch and batch[-1].is_last else bytes)(b"".join(out))


def waiting(
    batches: Batches, heartbeat: HeartbeatTimer, answer: Callable[[Event | None], bytes]
) -> Generator[bytes]:
    """Line feeds until the run has ended, then its answer made from the log's last event."""
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
    """The current request's long answer: closes what it holds, and says so when the client left early.

    When this process shuts down, the connection is closed in the middle of the response: the client connects
    again and resumes after the last id it saw. Clients would take a proper end for the end of the run. A stream
    whose key was revoked ends where it is (`may_end_early`); a JSON answer that is not there yet is cut off too.
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
        self._is_allowed: Callable[[], bool] | None = None
        self._on_close: Callable[[], None] | None = None
        self._ask_at = 0.0
        self._is_closed = False
        request.environ[OPEN_STREAM] = self

    def guard(self, *, is_allowed: Callable[[], bool], on_close: Callable[[], None]) -> None:
        """End the stream soon after `is_allowed` says no; `on_close` is called at its end, however it comes."""
        self._is_allowed, self._on_close = is_allowed, on_close
        self._ask_at = time.monotonic() + ALLOWED_SECONDS

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._chunks)
            self._ask()
            return chunk
        except StopIteration:
            self._ended = True
            raise
        except ClientGone:
            raise StopIteration from None
        except Stopping:
            self._ended = True  # the client has not left
            raise cut_off("the server stops") from None
        except NoLongerAllowed:
            if self._may_end_early:
                raise StopIteration from None
            raise cut_off("the key that opened this is no longer valid") from None

    def _ask(self) -> None:
        now = time.monotonic()
        if self._is_allowed is None or now < self._ask_at:
            return
        self._ask_at = now + ALLOWED_SECONDS
        if not self._is_allowed():
            raise NoLongerAllowed

    def close(self) -> None:
        """Called at the end of the response, whatever the reason; a failure of one part stops no other."""
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
    """WSGI middleware: closes a request's stream where the server is not given it.

    That is so when the request fails after its stream was made, and when something else is answered: the
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
    """The server closes the connection on this and logs nothing."""
    return ConnectionResetError(errno.ECONNRESET, reason)


def event_stream(stream: Stream, headers: dict[str, str]) -> Response:
    """The response of a stream."""
    response = Response(stream, content_type="text/event-stream; charset=utf-8", direct_passthrough=True)
    response.headers.update({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
    return response


def late_json(stream: Stream, headers: dict[str, str]) -> Response:
    """The response of a wait: status and headers at once, the JSON when it is there."""
    response = Response(stream, content_type="application/json", direct_passthrough=True)
    response.headers.update(headers)
    return response
