"""Reading of request bodies: completely, at a minimum rate, and to their end before the response.

A body that ends before its Content-Length is an error, since a part must not be taken for the whole. A body that
arrives more slowly than the minimum rate is refused (408), so that a client that drips bytes cannot keep a connection.

The rest of a refused request's body is read and discarded after the response, which does not wait for it. A client
that is cut off while it sends would never read the reason of the refusal. If a body is broken or not read to its end,
the connection is closed, so that the following bytes do not become a request.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest, HTTPException, RequestTimeout
from werkzeug.wsgi import ClosingIterator, get_content_length

from shared.infra.system import let_others_run

SLOWEST_BYTES_PER_SECOND = 8 * 1024
STEP_BYTES = 64 * 1024
TURN_BYTES = 1024 * 1024

REFUSED = "400"  # the lowest status of a refusal
TOO_LARGE = "413"
CLOSE = ("Connection", "close")

StartResponse = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Bodies:
    """WSGI middleware that supervises the body of every request, unless it arrived with the head.

    A body may take `grace_seconds`, and a second more for every 8 KiB received. A body that the application does not
    read is discarded up to `max_bytes`.
    """

    def __init__(self, app: Wsgi, *, grace_seconds: float, max_bytes: int) -> None:
        self.app = app
        self._grace_seconds, self._max_bytes = grace_seconds, max_bytes

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = get_content_length(environ)
        if not length and not environ.get("HTTP_TRANSFER_ENCODING"):
            return self.app(environ, start_response)
        if length and _is_received(environ["wsgi.input"], length):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
            return self.app(environ, start_response)
        body = environ["wsgi.input"] = Body(environ["wsgi.input"], length, grace_seconds=self._grace_seconds)
        answer = self.app(environ, body.answering(start_response))
        if body.is_refused or body.is_passed_on:
            return ClosingIterator(answer, partial(body.discard_rest, self._max_bytes))
        body.discard_rest(self._max_bytes)
        return answer


def _is_received(stream: Any, length: int) -> bool:
    """Return whether the whole body arrived with the head of its request, as short bodies do. It needs no supervision."""
    reader = getattr(stream, "reader", None)
    return isinstance(reader, LengthReader) and reader.unreader.buf.tell() >= length


class Body(io.RawIOBase):
    """A request's body.

    Reading it raises RequestTimeout if it is too slow, BadRequest if its chunks are invalid, and OSError if it is cut
    off.
    """

    def __init__(self, stream: Any, length: int | None, *, grace_seconds: float) -> None:
        self._stream, self._length = stream, length
        self._received = 0
        self._deadline = time.monotonic() + grace_seconds
        self._is_over = self._is_broken = False
        self.is_refused = False
        self.is_passed_on = False  # it is still read while the response is sent

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def answering(self, start_response: StartResponse) -> StartResponse:
        """Wrap `start_response` to close the connection after the response if the body is too large or broken."""

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self.is_refused = status >= REFUSED
            is_broken = self._is_broken and not self.is_passed_on  # unknown while it is read
            if is_broken or status.startswith(TOO_LARGE):
                headers = [*headers, CLOSE]
            return start_response(status, headers, *more)

        return start

    def wait_longer(self, seconds: float) -> None:
        """Extend the deadline by a time in which the body was not read."""
        self._deadline += seconds

    def discard_rest(self, max_bytes: int) -> None:
        """Discard the rest of the body, until `max_bytes` were received in all. A longer body ends the connection."""
        with suppress(OSError, HTTPException):
            while self._received < max_bytes and self._next(STEP_BYTES):
                pass
        self._stream.failed = not self._is_over  # gunicorn then reads no further request

    def _read(self, size: int) -> bytes:
        """Read up to `size` bytes. If the body is passed on, return what is available instead of waiting for all bytes.

        gunicorn's readers would wait for all of them.
        """
        reader = getattr(self._stream, "reader", None)
        if not self.is_passed_on or not isinstance(reader, ChunkedReader | LengthReader):
            return self._stream.read(size)
        first = reader.read(1)
        is_chunked = isinstance(reader, ChunkedReader)
        buffered = reader.buf.tell() if is_chunked else min(reader.unreader.buf.tell(), reader.length)
        more = min(size - 1, buffered) if first else 0
        return first + reader.read(more) if more else first

    def _next(self, size: int) -> bytes:
        if self._is_over or self._is_broken:
            return b""
        seconds_left = self._deadline + self._received / SLOWEST_BYTES_PER_SECOND - time.monotonic()
        self._is_broken = True  # until the read succeeds: after an error nothing more can be read
        # The server closes a connection after an Exception. gevent's own Timeout, a BaseException, would not do that.
        try:
            with gevent.Timeout(max(seconds_left, 0.001), RequestTimeout()):
                data = self._read(min(size, STEP_BYTES))
        except ParseException as error:
            raise BadRequest from error
        if (self._received + len(data)) // TURN_BYTES > self._received // TURN_BYTES:
            let_others_run()  # a fast sender would starve other requests
        self._received += len(data)
        if not data and self._length is not None:
            raise ConnectionResetError(f"the body ended after {self._received} of {self._length} bytes")
        self._is_broken, self._is_over = False, not data or self._received == self._length
        return data
