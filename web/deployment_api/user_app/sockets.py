"""WebSockets of a project's app: the service performs the handshake, and relays messages between app and client."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any

import orjson
from flask import Response, request
from werkzeug.datastructures import Headers
from wsproto.frame_protocol import CloseReason

from shared.hosts import exchanges
from shared.hosts.exchanges import BODY, BYTES, CLOSE, END, FAILED, HEAD, MOST_BYTES, TEXT, Exchange, Lost
from shared.infra.postgres import dumps
from web.deployment_api.user_app import heads
from web.deployment_api.user_app.heads import BadAnswer, answer_headers, read_head
from web.deployment_api.user_app.waiting import ANSWER_SECONDS, RAISED, Waiting, translated_failures
from web.gate.context import address, settings, unchecked_deployment
from web.http import sse, websocket
from web.http.client_watch import ClientWatch
from web.http.errors import answer
from web.http.headers import ForeignResponse
from web.http.websocket import ClientMessage, Closed, NoUpgrade, SocketStream, Upgraded, WebSocket

log = logging.getLogger(__name__)

REFUSED = "Forbidden"
MAX_REFUSAL_BYTES = 64 * 1024
REASON_BYTES = 123  # maximum length of a close reason
RESERVED_CODES = frozenset({1005, 1006, 1015})  # reserved: no close frame may carry them


def answer_socket() -> Response:
    """Ask the app whether it accepts the socket, and answer the handshake."""
    try:
        opening = websocket.Opening(request.environ)
    except NoUpgrade as refusal:
        return websocket.refusal(refusal)
    with ExitStack() as resources:
        return _Socket(opening, resources).response()


class _Socket:
    """The socket of the current request in the app. Outlives the request once the app has accepted it."""

    def __init__(self, opening: websocket.Opening, resources: ExitStack) -> None:
        self._address, self._opening, self._resources = address(), opening, resources
        self._name = unchecked_deployment().name
        self._waiting = Waiting()
        self._heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
        self._watch = ClientWatch(request.environ.get(websocket.GATEWAY_SOCKET), self._on_readable)
        resources.callback(self._watch.stop)

    def response(self) -> Response:
        opened = exchanges.open_exchange(heads.host_call(self._address, unchecked_deployment()))
        with translated_failures(self._name):
            exchange = self._resources.enter_context(opened)
            self._watch.start()
            return self._accept_or_refuse(exchange)

    def _on_readable(self) -> None:
        if self._watch.has_disconnected():
            self._waiting.end(sse.ClientGone())

    def _accept_or_refuse(self, exchange: Exchange) -> Response:
        kind, data = self._waiting.next(exchange.parts(timeout_seconds=ANSWER_SECONDS)) or (CLOSE, b"")
        if kind == CLOSE:
            return answer(HTTPStatus.FORBIDDEN, REFUSED)
        if kind == FAILED:
            log.warning("the app of %s raised: %s", self._name, data[:1000])
            return answer(HTTPStatus.INTERNAL_SERVER_ERROR, RAISED)
        if kind != HEAD:
            raise BadAnswer("it did not begin with a head")
        head = _document(data)
        return self._accept(exchange, head) if head.get("accepted") else self._refuse(exchange, data)

    def _accept(self, exchange: Exchange, head: dict[str, Any]) -> Response:
        subprotocol = head.get("subprotocol")
        if subprotocol is not None and subprotocol not in self._opening.subprotocols:
            raise BadAnswer("it chose a subprotocol that was not offered")
        headers = list(answer_headers(head.get("headers") or [], self._address))
        connection, opened = self._opening.accept(subprotocol, headers)
        self._watch.stop()
        client = request.environ[websocket.GATEWAY_SOCKET]
        socket = WebSocket(client, connection, opened, max_bytes=MOST_BYTES, takes_binary=True)
        steps = self._steps(exchange, socket)
        return Upgraded(SocketStream(socket, steps, holds=self._resources.pop_all()))

    def _refuse(self, exchange: Exchange, data: bytes) -> Response:
        """Return the app's own answer to a handshake that it does not accept."""
        head = read_head(data, self._address)
        body = b""
        for kind, piece in exchange.parts(timeout_seconds=ANSWER_SECONDS):
            if kind != BODY:
                break
            body += piece
            if len(body) > MAX_REFUSAL_BYTES:
                raise BadAnswer("its refusal is too long")
        body = body if head.has_body else b""
        response = ForeignResponse(body, status=head.status, headers=Headers(head.headers))
        response.headers["Content-Length"] = str(len(body))
        return response

    def _steps(self, exchange: Exchange, socket: WebSocket) -> Generator[bytes]:
        """Serve the socket until it is closed. Raises Closed and Stopping.

        Yields after each part and each heartbeat, so that `SocketStream` can check whether the key is still valid.
        """

        def take(message: ClientMessage) -> None:
            try:
                exchange.send(TEXT if message.is_text else BYTES, message.data)
            except Lost as lost:
                self._waiting.end(lost)
                raise Closed from lost

        with socket.receiving(take, lambda: self._waiting.end(Closed())):
            try:
                yield from self._pass_on(exchange, socket)
            except Closed:
                self._forward_close(exchange, socket)
                raise
            except Lost:
                socket.close(CloseReason.INTERNAL_ERROR, "the app has ended")

    def _pass_on(self, exchange: Exchange, socket: WebSocket) -> Iterator[bytes]:
        parts = exchange.parts(timeout_seconds=self._heartbeat.quiet_seconds())
        while True:
            if socket.is_closed:
                raise Closed
            try:
                kind, data = self._waiting.next(parts) or (FAILED, b"")
            except TimeoutError:
                parts = exchange.parts(timeout_seconds=self._heartbeat.quiet_seconds())
            else:
                if not self._pass_part(socket, kind, data):
                    return
            if self._heartbeat.take_due():
                socket.beat()
            yield b""

    def _pass_part(self, socket: WebSocket, kind: bytes, data: bytes) -> bool:
        """Pass a part on to the client. Returns whether more parts may follow."""
        if kind == TEXT:
            socket.send(data)
        elif kind == BYTES:
            socket.send_binary(data)
        elif kind == CLOSE:
            socket.close(*_closing(data))
            return False
        elif kind == FAILED:
            log.warning("the app of %s raised: %s", self._name, data[:1000])
            socket.close(CloseReason.INTERNAL_ERROR, "")
            return False
        elif kind == END:
            socket.close(CloseReason.NORMAL_CLOSURE, "")
            return False
        return True

    def _forward_close(self, exchange: Exchange, socket: WebSocket) -> None:
        """Send the app the code and reason with which its client closed the socket."""
        code, reason = socket.closed_with
        with suppress(Lost):
            exchange.send(CLOSE, dumps({"code": code, "reason": reason}).encode())


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except ValueError as error:
        raise BadAnswer("its head cannot be read") from error
    if not isinstance(document, dict):
        raise BadAnswer("its head cannot be read")
    return document


def _closing(data: bytes) -> tuple[int, str]:
    """Return the code and reason with which an app closes.

    A code that a close frame cannot carry becomes 1000, and a reason that is too long is cut.
    """
    try:
        document = orjson.loads(data)
        code, reason = document.get("code"), document.get("reason") or ""
    except (ValueError, AttributeError):
        code, reason = None, ""
    if type(code) is not int or not 1000 <= code <= 4999 or code in RESERVED_CODES:
        code = int(CloseReason.NORMAL_CLOSURE)
    return code, str(reason).encode()[:REASON_BYTES].decode(errors="ignore")
