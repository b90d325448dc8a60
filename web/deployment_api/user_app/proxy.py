"""Requests for a project's app: passed to a graph host of the revision, and the answers passed back, part by part.

Nothing is buffered on the way: a part is read from one side when the other side has room for it. A greenlet of its own
sends the request's body, since an app may answer before it has read the body. A short body is sent before all else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import gevent
import orjson
from flask import Response, current_app, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.wsgi import get_content_length

from shared.errors import Forbidden
from shared.hosts import exchanges
from shared.hosts.exchanges import BODY, END, FAILED, HEAD, Exchange, Lost
from web.deployment_api.user_app import heads, sockets
from web.deployment_api.user_app.heads import AnswerHead, AppResponse, BadAnswer, read_head
from web.deployment_api.user_app.waiting import ANSWER_SECONDS, RAISED, Part, Waiting, translated_failures
from web.gate.context import address, settings, unchecked_deployment
from web.gate.observation import take_slot
from web.http import sse
from web.http.client_watch import ClientWatch
from web.http.errors import answer
from web.http.request_bodies import Body

log = logging.getLogger(__name__)

PART_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0  # for the end of an answer that has no body

# Values of `Sec-Fetch-Dest` for files that a browser runs in the requesting page, or uses to style it.
RUN_IN_PAGE = frozenset(
    {"audioworklet", "paintworklet", "script", "serviceworker", "sharedworker", "style", "worker", "xslt"}
)
NOT_FOR_PAGES = (
    "A page at the console's address may not load scripts, styles or workers from a deployment's app"
)
NOT_FOR_WORKERS = (
    "A deployment's app may not register a service worker at an address that it shares with the console"
)


def serve() -> Response:
    """Answer a request for a route of the app. The gate has authenticated the caller if the route needs it."""
    refuse_script_of_console()
    take_slot()
    if address().is_websocket:
        return sockets.answer_socket()
    _refuse_large_body()
    with ExitStack() as resources:
        return _Request(resources).response()


def refuse_script_of_console() -> None:
    """Raise Forbidden if the browser would run the app's answer with the origin of the console.

    The app's own pages are not affected: their sandbox gives them another origin, so their requests are cross-site.
    A service worker of the app would answer requests for the console at the next visit.
    """
    is_shared = not address().is_at_root
    has_console = is_shared or settings().dev_deployment is not None
    if has_console and request.headers.get("Service-Worker") == "script":
        raise Forbidden(NOT_FOR_WORKERS)
    is_of_origin = request.headers.get("Sec-Fetch-Site") == "same-origin"
    if is_shared and is_of_origin and request.headers.get("Sec-Fetch-Dest") in RUN_IN_PAGE:
        raise Forbidden(NOT_FOR_PAGES)


def _refuse_large_body() -> None:
    if (get_content_length(request.environ) or 0) > current_app.config["MAX_CONTENT_LENGTH"]:
        raise RequestEntityTooLarge


class _Request:
    """The current request in the app. `resources` are released at the end of the answer, or if the request fails before."""

    def __init__(self, resources: ExitStack) -> None:
        self._address, self._deployment, self._resources = address(), unchecked_deployment(), resources
        self._waiting = Waiting()
        self._max_bytes = current_app.config["MAX_CONTENT_LENGTH"]
        self._is_head = request.method == "HEAD"
        self._sent_at = time.monotonic()
        self._watch = ClientWatch(request.environ.get("gunicorn.socket"), self._on_readable)
        resources.callback(self._watch.stop)

    def response(self) -> Response:
        deployment = self._deployment
        body = _short_body()
        opened = exchanges.open_exchange(heads.host_call(self._address, deployment))
        with translated_failures(deployment.name):
            exchange = self._resources.enter_context(opened)
            self._send(exchange, body)
            head_or_refusal = self._head(exchange)
        if isinstance(head_or_refusal, Response):
            return head_or_refusal
        return self._pass_on(exchange, head_or_refusal)

    def _pass_on(self, exchange: Exchange, head: AnswerHead) -> Response:
        if not head.has_body or self._is_head:
            _drain(exchange)
        chunks = self._chunks(exchange.parts(), head)
        return AppResponse(head, sse.Stream(chunks, holds=self._resources.pop_all(), on_disconnect=None))

    def _send(self, exchange: Exchange, body: bytes | None) -> None:
        """Send the whole `body`; without it, start sending the request's body as it arrives."""
        if body is not None:
            if body:
                exchange.send(BODY, body)
            exchange.send(END)
            self._watch.start()
            return
        source: Body = request.environ["wsgi.input"]
        source.is_passed_on = True
        sender = gevent.spawn(self._send_all, exchange, source)
        self._resources.callback(sender.kill)

    def _send_all(self, exchange: Exchange, source: Body) -> None:
        """Send the body as it arrives, in a greenlet of its own. An error ends the wait for the answer."""
        try:
            for data in _pieces(source, self._max_bytes):
                began = time.monotonic()
                exchange.send(BODY, data)
                self._sent_at = time.monotonic()
                source.wait_longer(self._sent_at - began)
            exchange.send(END)
        except Lost as lost:
            self._waiting.end(lost)
        except HTTPException as refused:
            self._waiting.end(refused)
        except OSError:
            self._waiting.end(sse.ClientGone())
        else:
            self._watch.start()

    def _on_readable(self) -> None:
        """End the wait if the client has disconnected. Otherwise the readable data is its next request."""
        if self._watch.has_disconnected():
            self._waiting.end(sse.ClientGone())

    def _head(self, exchange: Exchange) -> AnswerHead | Response:
        """Wait for the head of the answer. Each part of the body that is sent restarts the timeout. Raises TimeoutError."""
        while True:
            seconds_left = self._sent_at + ANSWER_SECONDS - time.monotonic()
            if seconds_left <= 0:
                raise TimeoutError
            try:
                part = self._waiting.next(exchange.parts(timeout_seconds=seconds_left))
            except TimeoutError:
                continue  # a part of the body may have been sent meanwhile
            return self._read(part)

    def _read(self, part: Part | None) -> AnswerHead | Response:
        """Return the head in the first part, or a 500 if the app raised. Raises BadAnswer."""
        if part is None:
            raise BadAnswer("it ended without a head")
        kind, data = part
        if kind == HEAD:
            return read_head(data, self._address)
        if kind == FAILED:
            log.warning("the app of %s raised: %s", self._deployment.name, _message(data))
            return answer(HTTPStatus.INTERNAL_SERVER_ERROR, RAISED)
        raise BadAnswer("it did not begin with a head")

    def _chunks(self, parts: Iterator[Part], head: AnswerHead) -> Generator[bytes]:
        yield sse.HEADERS
        sent = 0
        while True:
            try:
                part = self._waiting.next(parts)
            except (Lost, HTTPException) as error:
                raise sse.cut_off(f"the app's answer was cut off: {error}") from error
            if self._watch.has_disconnected():
                raise sse.ClientGone
            kind, data = part or (FAILED, b"")
            if kind == BODY:
                sent += len(data)
                yield data
            elif kind == END and head.length in (None, sent):
                return
            else:
                raise sse.cut_off("the app's answer is incomplete")


def _short_body() -> bytes | None:
    """Return the whole body if it is short, or None if it is passed on as it arrives."""
    length = get_content_length(request.environ)
    if length is None and request.environ.get("HTTP_TRANSFER_ENCODING"):
        return None
    if not length:
        return b""
    return b"".join(_pieces(request.environ["wsgi.input"], length)) if length <= PART_BYTES else None


def _pieces(source: Any, max_bytes: int) -> Iterator[bytes]:
    received = 0
    while data := source.read(PART_BYTES):
        received += len(data)
        if received > max_bytes:
            raise RequestEntityTooLarge
        yield data


def _drain(exchange: Exchange) -> None:
    """Consume the rest of an answer whose body is not passed on to the caller."""
    try:
        for kind, _ in exchange.parts(timeout_seconds=DRAIN_SECONDS):
            if kind != BODY:
                return
    except (Lost, TimeoutError):
        return


def _message(data: bytes) -> str:
    try:
        return str(orjson.loads(data)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return "no message"
