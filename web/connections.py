"""The open connections of a web process: how many one address may have, and which is closed for a new one.

A connection that sends no request costs its sender nothing and us a slot. So the one that has waited longest for
its next request makes room when there is none: however many are opened, and from however many addresses, a new
one that brings a request is served.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.pool import Group

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
V6_HOST_PREFIX = 64  # whoever has one IPv6 address has as many as this leaves


@dataclass(eq=False)
class Connection:
    """One connection, and the greenlet that serves it."""

    client: socket.socket
    source: str
    greenlet: Any = field(default_factory=gevent.getcurrent)
    request: Any = None  # the last one, as gunicorn has it
    upgraded: Callable[[], None] | None = None  # what serves it from now on, when it is HTTP's no longer

    def is_quiet(self) -> bool:
        """Whether its next request has still to begin, and can: nothing is left of the last one."""
        if self.request is None or self.request.body.failed:
            return False
        return not self.request.unreader.buf.getbuffer().nbytes


class Connections:
    """Those of one process; only its greenlets touch it."""

    def __init__(self, most: int, *, per_source: int, unbounded: Iterable[Network]) -> None:
        self._most, self._per_source = most, per_source
        self._unbounded = tuple(unbounded)
        self._by_source: Counter[str] = Counter()
        self._open: dict[Any, Connection] = {}
        self._upgraded = Group()
        self._waiting: dict[Any, gevent.Timeout] = {}  # the longest waiting first

    @contextmanager
    def open(self, client: socket.socket, address: str) -> Iterator[Connection | None]:
        """The current greenlet's connection from this address; None when the address has too many."""
        source = self._source(address)
        if source and self._by_source[source] >= self._per_source:
            yield None
            return
        connection = Connection(client, source)
        self._by_source[source] += 1
        self._open[connection.greenlet] = connection
        if len(self._open) > self._most:
            self._close_longest_waiting()
        try:
            yield connection
            if connection.upgraded is not None:
                self._hand_over(connection, connection.upgraded)
        finally:
            if connection.greenlet is gevent.getcurrent():
                self._forget(connection)

    def _hand_over(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Let a new greenlet serve it, whose stack is as small as the old one's was before its request.

        One that has served a request keeps for good what that has taken of stack.
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
        """Wait for those that are served in greenlets of their own to end."""
        self._upgraded.join(timeout=seconds)

    def _forget(self, connection: Connection) -> None:
        del self._open[connection.greenlet]
        self._by_source[connection.source] -= 1
        if not self._by_source[connection.source]:
            del self._by_source[connection.source]

    def _source(self, address: str) -> str:
        """What counts as one source; empty for a proxy, which is many."""
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return ""  # a unix socket has none
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
        """Let the current connection wait for its client this long at most; the block ends silently then."""
        here = gevent.getcurrent()
        silent: Any = False  # not raised outside of the block
        with gevent.Timeout(seconds, silent) as timeout:
            self._waiting[here] = timeout
            try:
                yield
            finally:
                self._waiting.pop(here, None)

    def close_waiting(self) -> None:
        """Close every connection that has no request."""
        while self._waiting:
            self._close_longest_waiting()

    def _close_longest_waiting(self) -> None:
        for greenlet in self._waiting:
            timeout = self._waiting.pop(greenlet)
            gevent.get_hub().loop.run_callback(_end, greenlet, timeout)
            return


def _end(greenlet: Any, timeout: gevent.Timeout) -> None:
    if timeout.pending:  # no request has come meanwhile
        greenlet.throw(timeout)
