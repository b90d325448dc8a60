"""Open connections of a web process: the limit for each address, and which connection is closed to make room.

An idle connection costs its client nothing and the process a slot. When all slots are taken, the connection that has
waited longest for its next request is closed. A new connection with a request is therefore always served, however
many idle connections are opened, and from however many addresses.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.pool import Group

# Called with an error when the worker shuts down, after the time for responses to end by themselves.
shutdown_hooks: list[Callable[[Exception], None]] = []

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
V6_HOST_PREFIX = 64  # a client with one IPv6 address usually has the whole /64 network


class LastChunk(bytes):
    """The last chunk of a response. The end of the response is sent with it, not in a packet of its own."""


class HandedOver(ConnectionResetError):
    """Raised by a response that takes over the connection, after duplicating its descriptor.

    The server closes its own descriptor without a log line, then calls `serve` in a new greenlet.
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        super().__init__(errno.ECONNRESET, "the connection was upgraded")
        self.serve = serve


@dataclass(eq=False)
class Connection:
    """One connection, and the greenlet that serves it."""

    client: socket.socket
    source: str
    greenlet: Any = field(default_factory=gevent.getcurrent)
    request: Any = None  # gunicorn's object of the last request
    upgraded: Callable[[], None] | None = None  # serves the connection after an upgrade from HTTP

    def is_quiet(self) -> bool:
        """Return whether the connection is idle after a request: its body was read, and no more bytes are buffered."""
        if self.request is None or self.request.body.failed:
            return False
        return not self.request.unreader.buf.getbuffer().nbytes


class Connections:
    """The open connections of one process. Only greenlets of one thread may use it."""

    def __init__(self, limit: int, *, per_source: int, unbounded: Iterable[Network]) -> None:
        self._limit, self._per_source = limit, per_source
        self._unbounded = tuple(unbounded)
        self._by_source: Counter[str] = Counter()
        self._open: dict[Any, Connection] = {}
        self._upgraded = Group()
        self._waiting: dict[Any, gevent.Timeout] = {}  # longest waiting first

    @contextmanager
    def open(self, client: socket.socket, address: str) -> Iterator[Connection | None]:
        """Register the current greenlet's connection from this address. Yields None if the address has too many."""
        source = self._source(address)
        if source and self._by_source[source] >= self._per_source:
            yield None
            return
        connection = Connection(client, source)
        self._by_source[source] += 1
        self._open[connection.greenlet] = connection
        if len(self._open) > self._limit:
            self._close_longest_waiting()
        try:
            yield connection
            if connection.upgraded is not None:
                self._hand_over(connection, connection.upgraded)
        finally:
            if connection.greenlet is gevent.getcurrent():  # not handed over to another greenlet
                self._forget(connection)

    def _hand_over(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Serve an upgraded connection in a new greenlet, which has a small stack.

        A greenlet that has served a request keeps the stack memory of that request for good.
        """
        del self._open[connection.greenlet]
        connection.request = connection.upgraded = None
        connection.greenlet = self._upgraded.spawn(self._serve_upgraded, connection, serve)
        self._open[connection.greenlet] = connection

    def _serve_upgraded(self, connection: Connection, serve: Callable[[], None]) -> None:
        try:
            serve()
        finally:
            self._forget(connection)

    def wait_for_upgraded(self, seconds: float) -> None:
        """Wait up to `seconds` for the upgraded connections to end."""
        self._upgraded.join(timeout=seconds)

    def _forget(self, connection: Connection) -> None:
        del self._open[connection.greenlet]
        self._by_source[connection.source] -= 1
        if not self._by_source[connection.source]:
            del self._by_source[connection.source]

    def _source(self, address: str) -> str:
        """Return the source that an address counts for: an IPv4 address or an IPv6 network.

        Empty for a proxy, which stands for many clients.
        """
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return ""  # a Unix socket has no address
        mapped = ip.ipv4_mapped if ip.version == 6 else None
        ip = mapped or ip
        if any(ip in network for network in self._unbounded):
            return ""
        if ip.version == 4:
            return str(ip)
        return str(ipaddress.ip_network((ip, V6_HOST_PREFIX), strict=False))

    def current(self) -> Connection:
        return self._open[gevent.getcurrent()]

    @contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        """Limit how long the current connection waits for its client. At the limit the block ends without an error."""
        here = gevent.getcurrent()
        silent: Any = False  # makes gevent end the block without an error
        with gevent.Timeout(seconds, silent) as timeout:
            self._waiting[here] = timeout
            try:
                yield
            finally:
                self._waiting.pop(here, None)

    def close_waiting(self) -> None:
        """Close every connection that waits for a request."""
        while self._waiting:
            self._close_longest_waiting()

    def _close_longest_waiting(self) -> None:
        for greenlet in self._waiting:
            timeout = self._waiting.pop(greenlet)
            gevent.get_hub().loop.run_callback(_end, greenlet, timeout)
            return


def _end(greenlet: Any, timeout: gevent.Timeout) -> None:
    if timeout.pending:  # no request has arrived meanwhile
        greenlet.throw(timeout)
