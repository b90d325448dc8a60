"""Requests for a project's app: parts exchanged between the web process and a graph host until either side ends.

A receiver credits parts that it has consumed. A sender waits after WINDOW parts without credit, so a slow reader slows
down the app and no parts pile up in between. Parts are numbered, so that a lost part is detected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import orjson
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared.errors import Unavailable
from shared.hosts import channel, pending_calls
from shared.hosts.channel import LOST, PART, REFUSED, TAKEN, Endpoint
from shared.hosts.pending_calls import EXCHANGES, HostCall, PendingCall

log = logging.getLogger(__name__)

# Kinds of parts; `workers/graph_host/frames.py` defines them.
HEAD, BODY, END, TEXT, BYTES, CLOSE, CREDIT, FAILED = b"h", b"b", b"e", b"t", b"y", b"c", b"k", b"x"
COSTING = frozenset((BODY, TEXT, BYTES))  # the kinds that need credit
WINDOW = 16  # parts that may be sent before their credit arrives
CREDIT_AT = WINDOW // 2  # consumed parts for which a receiver sends credit
LAST = frozenset((END, CLOSE, FAILED))  # the kinds that end the app's parts; CLOSE ends the client's parts
MOST_BYTES = 1024 * 1024  # size of a part: a message of a client or an app is not split
GONE = b'{"code":1006,"reason":"the client has gone"}'


class Sender:
    """Numbers parts and sends them to the other side."""

    def __init__(self, to: Endpoint) -> None:
        self._to = to
        self._number = 0
        self._lock = threading.Lock()  # numbers must be sent in order

    def send(self, *parts: bytes) -> bool:
        """Send parts. Returns False if they reach no subscriber or Redis is unreachable."""
        with self._lock:
            messages = [
                channel.encode(PART, self._to.id, part, number=number)
                for number, part in enumerate(parts, self._number)
            ]
            self._number += len(parts)
            try:
                return channel.publish(self._to.address, *messages)
            except RedisError as error:
                log.warning("parts of an exchange cannot be sent: %s", error)
                return False

    def give_up(self, reason: str) -> None:
        """Send LOST: no further parts follow. Raises RedisError."""
        channel.publish(self._to.address, channel.encode(LOST, self._to.id, reason.encode()))


class Lost(Exception):
    """The exchange broke off: the host died, or no heartbeat came for too long."""


class Exchange:
    """One request or WebSocket in the app of a host. Its methods may be called from several threads."""

    def __init__(self) -> None:
        self.peer: str | None = None
        self._sender: Sender | None = None  # set once a runner has taken the exchange
        self._refusal: str | None = None
        self._begun = threading.Event()
        self._lost: str | None = None
        self._is_closed = False  # by this process
        self._is_ended = False  # by the app
        self._incoming: SimpleQueue[bytes | None] = SimpleQueue()
        self._expected = 0  # the number of the next part
        self._is_exhausted = False  # `parts` has yielded the last part
        self._consumed = 0  # consumed parts for which no credit was sent yet
        self._uncredited = 0  # sent parts whose credit has not arrived
        self._changed = threading.Condition()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a part to the app (kinds: `workers/graph_host/frames.py`). Blocks until the app accepts more.

        Parts after the app's end are dropped. Raises Lost.
        """
        if len(data) > MOST_BYTES:
            raise Lost(f"a message of more than {MOST_BYTES} bytes")
        if kind in COSTING:
            self._wait_for_credit()
        if kind == CLOSE:
            self._is_closed = True
        self._send(kind + data)

    def parts(self, *, timeout_seconds: float | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the app's parts as `(kind, data)`, without credits. Raises Lost, TimeoutError.

        Requesting the next part marks the previous one as consumed.
        """
        while True:
            self._give_credit()
            if self._is_exhausted:
                return
            try:
                part = self._incoming.get(timeout=timeout_seconds)
            except Empty:
                raise TimeoutError from None
            if part is None:
                self._incoming.put(None)  # for later calls
                raise Lost(self._lost)
            kind, data = part[:1], part[1:]
            self._consumed += kind in COSTING
            self._is_exhausted = kind in LAST
            yield kind, data

    def _wait_for_credit(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._uncredited < WINDOW or self._is_over)
            self._uncredited += 1

    def _give_credit(self) -> None:
        if self._consumed >= CREDIT_AT:
            consumed, self._consumed = self._consumed, 0
            self._sender_or_lost().send(CREDIT + str(consumed).encode())

    @property
    def _is_over(self) -> bool:
        return self._is_ended or self._lost is not None

    def _send(self, part: bytes) -> None:
        if self._lost is not None:
            raise Lost(self._lost)
        if not self._is_ended and not self._sender_or_lost().send(part):
            self.lost("the runner of the app no longer receives messages")
            raise Lost(self._lost)

    def _sender_or_lost(self) -> Sender:
        if self._sender is None:
            raise Lost("no runner has taken the request")
        return self._sender

    # beginning and end

    def wait(self, seconds: float) -> Exchange | None:
        """Return this exchange once it has begun, None after the timeout in seconds.

        Raises Unavailable if it cannot begin.
        """
        if not self._begun.wait(seconds):
            return None
        if self._sender is None:
            raise Unavailable(self._refusal or self._lost)
        return self

    def leave(self) -> None:
        """Tell the app that the client disconnected, if its answer has not ended."""
        if not self._is_over and not self._is_closed and self._sender is not None:
            self._sender.send(CLOSE + GONE)

    # called by the subscription

    def received(self, kind: int, number: int, body: bytes) -> None:
        if kind == TAKEN and self._sender is None:
            runner = Endpoint.decode(body)
            self.peer, self._sender = runner.address, Sender(runner)
            self._begun.set()
        elif kind == REFUSED:
            self._refusal = orjson.loads(body)["message"]
            self._begun.set()
        elif kind == LOST:
            self.lost(body.decode())
        elif kind == PART:
            self._take(number, body)

    def _take(self, number: int, part: bytes) -> None:
        if number != self._expected:
            self.lost("parts of the message stream were lost")
            return
        self._expected += 1
        kind = part[:1]
        if kind == CREDIT:
            with self._changed:
                self._uncredited -= int(part[1:])
                self._changed.notify_all()
            return
        if kind in LAST:
            with self._changed:
                self._is_ended = True
                self._changed.notify_all()
        self._incoming.put(part)

    def lost(self, reason: str) -> None:
        if self._is_over:
            return
        with self._changed:
            self._lost = reason
            self._changed.notify_all()
        self._incoming.put(None)
        self._begun.set()


@contextmanager
def open_exchange(request: HostCall) -> Iterator[Exchange]:
    """Open a request to the revision's app. Leaving the block early tells the app that the client disconnected.

    Raises Unavailable if no host of the revision can be had in `request.start_seconds`.
    """
    subscription, exchange = channel.channel().subscription(), Exchange()
    caller = Endpoint(subscription.address, uuid7().bytes)
    with subscription.receiving(caller.id, exchange):
        try:
            pending_calls.send(EXCHANGES, PendingCall(caller, request), exchange.wait)
            yield exchange
        finally:
            exchange.leave()
