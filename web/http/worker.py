"""gunicorn's gevent worker with timeouts, connection limits, JSON error responses and a prompt shutdown."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import gevent
import orjson
from gevent.socket import wait_read
from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.http.errors import NoMoreData
from gunicorn.workers.base_async import AsyncWorker
from gunicorn.workers.ggevent import GeventWorker

from shared.infra import logs
from shared.settings import Settings
from web.http.connections import Connections, HandedOver, LastChunk, shutdown_hooks
from web.http.request_bodies import CLOSE

# Timeout of one read or write on a client socket. Streams write at every heartbeat, so it also finds stalled readers.
SOCKET_SECONDS = 300.0
HEAD_SECONDS = 10.0  # timeout of a connection's first request, and of the head of every request
SPARE_CONNECTIONS = 100  # accepted above the limit while the connections closed to make room still close
APP_SECONDS = 3.0  # time at shutdown for responses of projects' apps to end by themselves
SOCKETS_SECONDS = 10.0  # time at shutdown for WebSockets to send their close frames
MAX_DETAIL = 200  # characters: gunicorn quotes the request, which may be long

END_OF_CHUNKS = b"0\r\n\r\n"
REQUEST_ID = "request_id"


class Worker(GeventWorker):
    """gunicorn's gevent worker with limits on open connections and timeouts on every wait."""

    settings: Settings  # set on a subclass (web/gunicorn.py), since gunicorn creates the instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections = Connections(
            self.worker_connections - SPARE_CONNECTIONS,
            per_source=self.settings.connections_per_address,
            unbounded=map(ipaddress.ip_network, self.settings.proxy_addresses),
        )

    def init_process(self) -> None:
        # gunicorn's Config searches for a setting whenever it is read, dozens of times for a request. Its own attributes
        # are found at once.
        vars(self.cfg).update({name: setting.get() for name, setting in self.cfg.settings.items()})
        super().init_process()

    def run(self) -> None:
        super().run()
        self.connections.wait_for_upgraded(SOCKETS_SECONDS)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Any) -> None:
        client.settimeout(SOCKET_SECONDS)
        with self.connections.open(client, addr[0] if addr else "") as connection:
            if connection is not None:
                AsyncWorker.handle(self, listener, client, addr)
                return
        try:
            refuse(client, HTTPStatus.TOO_MANY_REQUESTS, "This address has too many open connections")
        except OSError:
            pass  # the client has disconnected
        util.close(client)

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:  # type: ignore[override]  gunicorn annotates nothing
        """Limit the wait for the next request: `keepalive` seconds until it begins, then HEAD_SECONDS for its head.

        Both limits are zero while the worker stops. gunicorn enters this context to parse a request.
        """
        connection = self.connections.current()
        if connection.is_quiet():
            self._wait_for_more(connection.client)
        with self.connections.waiting(HEAD_SECONDS if self.alive else 0):
            yield

    def _wait_for_more(self, client: socket.socket) -> None:
        """Wait for the first byte of the next request. Raises NoMoreData if it does not arrive in time."""
        has_data = False
        with self.connections.waiting(self.cfg.keepalive if self.alive else 0):
            wait_read(client.fileno())
            has_data = True
        if not has_data:
            raise NoMoreData

    def handle_request(self, listener_name: Any, req: Any, sock: socket.socket, addr: Any) -> Any:
        self.connections.current().request = req
        try:
            return super().handle_request(listener_name, req, sock, addr)
        except HandedOver as handover:
            self.connections.current().upgraded = handover.serve
            raise
        except TimeoutError as error:  # gunicorn would log a traceback
            raise ConnectionResetError(errno.ECONNRESET, "the client stopped reading") from error

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Report a request that gunicorn refuses, under one request id in the log and in the response of `refuse`."""
        with logs.bound(**{REQUEST_ID: uuid4()}):
            super().handle_error(req, client, addr, exc)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Shut down, and close idle connections and open streams.

        They would otherwise delay the worker's exit until the graceful timeout.
        """
        # Imported here because the module imports the Redis client and `ssl`, which gevent patches only in the worker.
        from shared.eventlog.hub import Stopping, hub

        super().handle_exit(sig, frame)
        for end_all in shutdown_hooks:
            gevent.spawn_later(APP_SECONDS, end_all, Stopping())
        gevent.spawn(self.connections.close_waiting)
        gevent.spawn(hub().close)


class Response(wsgi.Response):
    """A response sent in few packets, without the header Server, that obeys its own header `Connection: close`.

    gunicorn's class sends the head and the terminating chunk in packets of their own. It always adds Server, and
    ignores `Connection: close` among the headers of a response.
    """

    _head = b""  # held back until the first chunk
    _holds_head = False
    _has_ended = False

    def process_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        headers = list(headers)
        super().process_headers(headers)
        if CLOSE in headers:
            self.force_close()

    def default_headers(self) -> list[str]:
        return [header for header in super().default_headers() if not header.startswith("Server:")]

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        lines = [*self.default_headers(), *(f"{name}: {value}\r\n" for name, value in self.headers), "\r\n"]
        self._head = "".join(lines).encode("latin-1")
        self.headers_sent = True
        if not self._holds_head:
            self._send_head()

    def write(self, arg: bytes) -> None:
        """Send a chunk. The head goes out with the first chunk, or alone if that chunk is empty."""
        self._holds_head = not self.headers_sent
        self._has_ended = self.chunked and type(arg) is LastChunk and len(arg) > 0
        super().write(arg)
        self._send_head()

    def _send_head(self) -> None:
        self._holds_head = False
        if self._head:
            head, self._head = self._head, b""
            self._send(head)

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            data = b"%X\r\n%b\r\n" % (len(data), data)
        if self._has_ended:
            data += END_OF_CHUNKS
        if self._head:
            data, self._head = self._head + data, b""
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Send all of the data. Tries `send` first: gevent's `sendall` queries the buffer size and sets a timer."""
        sent = self.sock.send(data)
        if sent < len(data):
            self.sock.sendall(memoryview(data)[sent:])

    def close(self) -> None:
        if not self._has_ended:
            super().close()


def refuse(client: socket.socket, status: int, detail: str) -> None:
    """Send an error response, in the usual JSON form, for a connection or bytes that never became a request.

    The response has the header `Connection: close`, and the caller closes the connection.
    """
    phrase = HTTPStatus(status).phrase
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED:
        detail = "internal error"
    request_id = logs.bound_ids().get(REQUEST_ID) or str(uuid4())
    body = orjson.dumps({"detail": detail[:MAX_DETAIL] or phrase, "request_id": request_id})
    head = [
        f"HTTP/1.1 {status} {phrase}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"x-request-id: {request_id}",
        *(["Retry-After: 5"] if status == HTTPStatus.TOO_MANY_REQUESTS else []),
    ]
    util.write_nonblock(client, "\r\n".join([*head, "", ""]).encode() + body)


def write_error(client: socket.socket, status: int, reason: str, detail: str) -> None:
    """Replace gunicorn's function of this name, which sends an HTML page."""
    refuse(client, status, detail)


wsgi.Response = Response
util.write_error = write_error
