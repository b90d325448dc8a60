"""gunicorn's gevent worker with time-outs, bounds on connections, refusals as JSON and a prompt shut-down."""

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
from web.chunks import LastChunk
from web.connections import Connections
from web.request_bodies import CLOSE
from web.upgrade import HandedOver

# Longest silence of a peer that owes us bytes or does not take ours; streams write at every heartbeat.
SOCKET_SECONDS = 300.0
HEAD_SECONDS = 10.0  # for a connection's first request to come, and for the head of each
SPARE_CONNECTIONS = 100  # accepted while those that are closed for them still close
APP_SECONDS = 3.0  # for answers of projects' apps to end by themselves once the worker stops
SOCKETS_SECONDS = 10.0  # for WebSockets to say goodbye then
MOST_DETAIL = 200  # characters: what gunicorn quotes of a request may be long

END_OF_CHUNKS = b"0\r\n\r\n"
REQUEST_ID = "request_id"


class Worker(GeventWorker):
    """The gevent worker, with bounds on what may be open and on how long anything is waited for."""

    settings: Settings  # gunicorn makes the instance: whoever configures it sets them on a class of its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections = Connections(
            self.worker_connections - SPARE_CONNECTIONS,
            per_source=self.settings.connections_per_address,
            unbounded=map(ipaddress.ip_network, self.settings.proxy_addresses),
        )

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
            pass  # it has left
        util.close(client)

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:  # type: ignore[override]  gunicorn annotates nothing
        """Around the wait for a connection's next request: until it begins, then for all of its head."""
        connection = self.connections.current()
        if connection.is_quiet():
            self._wait_for_more(connection.client)
        with self.connections.waiting(HEAD_SECONDS if self.alive else 0):
            yield

    def _wait_for_more(self, client: socket.socket) -> None:
        """Wait for the first byte of the next request; raises NoMoreData when it does not come in time."""
        has_come = False
        with self.connections.waiting(self.cfg.keepalive if self.alive else 0):
            wait_read(client.fileno())
            has_come = True
        if not has_come:
            raise NoMoreData

    def handle_request(self, listener_name: Any, req: Any, sock: socket.socket, addr: Any) -> Any:
        self.connections.current().request = req
        try:
            return super().handle_request(listener_name, req, sock, addr)
        except HandedOver as taken:
            self.connections.current().upgraded = taken.serve
            raise
        except TimeoutError as error:  # for which gunicorn would log a traceback
            raise ConnectionResetError(errno.ECONNRESET, "the client takes nothing any more") from error

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """gunicorn's own refusals: what it says of them in the log and what `refuse` answers have one id."""
        with logs.bound(**{REQUEST_ID: uuid4()}):
            super().handle_error(req, client, addr, exc)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Idle connections and open streams would hold up the worker's end until the graceful time-out."""
        # Here, since it brings the Redis client along, and with it `ssl`: gevent patches that in the worker only.
        from shared.eventlog.hub import Stopping, hub
        from web.deployment_api.app_waiting import end_all

        super().handle_exit(sig, frame)
        gevent.spawn_later(APP_SECONDS, end_all, Stopping())
        gevent.spawn(self.connections.close_waiting)
        gevent.spawn(hub().close)


class Response(wsgi.Response):
    """An answer in few packets, without the header Server; a header may say that it is the connection's last one.

    gunicorn sends the head and what ends a chunked answer by themselves, has no setting for the second, and ignores
    the third.
    """

    _head = b""  # held for the first chunk
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
        """Send a chunk, the first one with the head; the head alone where nothing comes with it."""
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
        """All of it. gevent's `sendall` asks for the size of the buffer first and makes a timer."""
        sent = self.sock.send(data)
        if sent < len(data):
            self.sock.sendall(memoryview(data)[sent:])

    def close(self) -> None:
        if not self._has_ended:
            super().close()


def refuse(client: socket.socket, status: int, detail: str) -> None:
    """Answer what never becomes a request, in the form of all our errors; the connection is closed then."""
    phrase = HTTPStatus(status).phrase
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED:
        detail = "internal error"
    request_id = logs.bound_ids().get(REQUEST_ID) or str(uuid4())
    body = orjson.dumps({"detail": detail[:MOST_DETAIL] or phrase, "request_id": request_id})
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
    """Stands in for gunicorn's, which answers with a page of HTML."""
    refuse(client, status, detail)


wsgi.Response = Response
util.write_error = write_error
