"""Reads request bodies: whole, at a least rate, and to their end before the answer.

A body that stops before its Content-Length is no body: what is there of it must not be taken for all of it. One
that comes slower than a minimum is given up (408), so that a client that drips bytes cannot keep a connection.
What a refused request still sends is taken and thrown away after its answer, which waits for none of it: a client
cut off while it sends never reads why. Where its body ends is then not taken on trust: the connection is closed,
and nothing that follows becomes a request.
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

from shared.infra.hardening import let_others_run

SLOWEST_BYTES_PER_SECOND = 8 * 1024
STEP_BYTES = 64 * 1024
TURN_BYTES = 1024 * 1024

REFUSED = "400"  # and whatever status is above
TOO_LARGE = "413"
CLOSE = ("Connection", "close")

StartResponse = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Bodies:
    """WSGI middleware that watches over every request's body.

    A body may take `grace_seconds`, and a second more for every 8 KiB of it that have come. Of one that was not
    wanted, no more than `most_bytes` are taken.
    """

    def __init__(self, app: Wsgi, *, grace_seconds: float, most_bytes: int) -> None:
        self.app = app
        self._grace_seconds, self._most_bytes = grace_seconds, most_bytes

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = get_content_length(environ)
        if not length and not environ.get("HTTP_TRANSFER_ENCODING"):
            return self.app(environ, start_response)
        body = environ["wsgi.input"] = Body(environ["wsgi.input"], length, grace_seconds=self._grace_seconds)
        answer = self.app(environ, body.answering(start_response))
        if body.is_refused or body.is_passed_on:
            return ClosingIterator(answer, partial(body.throw_away, self._most_bytes))
        body.throw_away(self._most_bytes)
        return answer


class Body(io.RawIOBase):
    """A request's body.

    Reading it raises RequestTimeout when it is too slow, BadRequest when its chunks are none, an OSError when
    it is cut off.
    """

    def __init__(self, stream: Any, length: int | None, *, grace_seconds: float) -> None:
        self._stream, self._length = stream, length
        self._received = 0
        self._deadline = time.monotonic() + grace_seconds
        self._is_over = self._is_broken = False
        self.is_refused = False
        self.is_passed_on = False  # somebody reads it while the answer is given

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def answering(self, start_response: StartResponse) -> StartResponse:
        """The same, which closes the connection after an answer to a body that was too large or is broken."""

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self.is_refused = status >= REFUSED
            is_broken = self._is_broken and not self.is_passed_on  # while it is read, nobody knows
            if is_broken or status.startswith(TOO_LARGE):
                headers = [*headers, CLOSE]
            return start_response(status, headers, *more)

        return start

    def wait_longer(self, seconds: float) -> None:
        """Give its sender so much more time: it was not read meanwhile."""
        self._deadline += seconds

    def throw_away(self, most_bytes: int) -> None:
        """Read on to the end, or until that many bytes have come in all: the connection ends with more."""
        with suppress(OSError, HTTPException):
            while self._received < most_bytes and self._next(STEP_BYTES):
                pass
        self._stream.failed = not self._is_over  # the server reads on from no such body

    def _read(self, size: int) -> bytes:
        """So many bytes; of a body that is passed on what is there, and the server's readers wait for all they can get."""
        reader = getattr(self._stream, "reader", None)
        if not self.is_passed_on or not isinstance(reader, ChunkedReader | LengthReader):
            return self._stream.read(size)
        first = reader.read(1)
        is_chunked = isinstance(reader, ChunkedReader)
        there = reader.buf.tell() if is_chunked else min(reader.unreader.buf.tell(), reader.length)
        more = min(size - 1, there) if first else 0
        return first + reader.read(more) if more else first

    def _next(self, size: int) -> bytes:
        if self._is_over or self._is_broken:
            return b""
        late = self._deadline + self._received / SLOWEST_BYTES_PER_SECOND - time.monotonic()
        self._is_broken = True  # unless it is read to its end: after an error there is nothing more to read
        # The server closes a connection after an Exception in reading, which a bare Timeout is not.
        try:
            with gevent.Timeout(max(late, 0.001), RequestTimeout()):
                data = self._read(min(size, STEP_BYTES))
        except ParseException as error:
            raise BadRequest from error
        if (self._received + len(data)) // TURN_BYTES > self._received // TURN_BYTES:
            let_others_run()  # a fast sender would keep us from everybody else
        self._received += len(data)
        if not data and self._length is not None:
            raise ConnectionResetError(f"the body ended after {self._received} of {self._length} bytes")
        self._is_broken, self._is_over = False, not data or self._received == self._length
        return data
