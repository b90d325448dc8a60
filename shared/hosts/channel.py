"""The inbox of a process for user code: one channel on one connection, shared by all receivers.

Both sides have an inbox: a web process receives answers and the parts of an app, a runner the parts of clients. A line
lives as long as its connection, and messages sent between two lines are lost. Its receivers are then told that the line
is lost, and the next line has another address. A peer that has ended is detected at once, because a message to it has
no subscriber. A peer that is frozen or cut off is detected by its missing heartbeats.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from redis import Redis
from redis.exceptions import RedisError

from shared.errors import Unavailable
from shared.infra.loops import forever
from shared.infra.redis import PREFIX, client
from shared.infra.subscriptions import OneOfProcess, keep_subscribed, messages

log = logging.getLogger(__name__)

HEADER = struct.Struct(">B16sI")  # kind of the message, id of the receiver, number among the sender's parts
NOBODY = bytes(16)
# ANSWER: the answer of a call. TAKEN: a runner has taken the request; the body says where it receives what follows.
# REFUSED: the request cannot be served, and why. PART: a part of an exchange. LOST: the sender gives up, and why. BEAT:
# the sender's address, as a sign of life.
ANSWER, TAKEN, REFUSED, PART, LOST, BEAT = range(1, 7)

BEAT_SECONDS = 2.0
GONE_SECONDS = 15.0  # a peer without heartbeats for this long counts as gone
CONNECT_SECONDS = 2.0  # longest wait for a line


class Receiver(Protocol):
    """Receiver of the messages under an id. Neither method may block."""

    peer: str | None  # the address of the other end, once it is known and must be watched

    def received(self, kind: int, number: int, body: bytes) -> None:
        """Handle a message."""

    def lost(self, reason: str) -> None:
        """Handle the end: no further messages come."""


class Watched:
    """A receiver without messages. Its peer gets heartbeats as long as it exists."""

    def __init__(self, peer: str) -> None:
        self.peer: str | None = peer

    def received(self, kind: int, number: int, body: bytes) -> None:
        """Ignore the message; none is expected."""

    def lost(self, reason: str) -> None:
        """Do nothing."""


class InboxLine:
    """The lifetime of one connection: its address and its receivers."""

    def __init__(self) -> None:
        self.address = secrets.token_hex(8)
        self.is_lost = False
        self._receivers: dict[bytes, Receiver] = {}
        self._beat_at: dict[str, float] = {}  # time of the last heartbeat of each peer

    @contextmanager
    def receiving(self, id: bytes, receiver: Receiver) -> Iterator[None]:
        """Deliver the messages under an id to a receiver, within the block."""
        self._receivers[id] = receiver
        if self.is_lost:
            receiver.lost("the connection to the event bus was lost")
        try:
            yield
        finally:
            self._receivers.pop(id, None)

    def dispatch(self, message: bytes) -> None:
        kind, id, number = HEADER.unpack_from(message)
        body = message[HEADER.size :]
        if kind == BEAT:
            self._beat_at[body.decode()] = time.monotonic()
        elif receiver := self._receivers.get(id):
            receiver.received(kind, number, body)

    def lose(self, reason: str, receivers: Iterable[Receiver] | None = None) -> None:
        """Tell these receivers that no further messages come. None: all receivers, present and future."""
        if receivers is None:
            self.is_lost = True
            receivers = tuple(self._receivers.values())
        for receiver in receivers:
            receiver.lost(reason)

    def beat(self) -> None:
        """Send a heartbeat to each peer, and tell the receivers whose peer is gone."""
        by_peer: dict[str, list[Receiver]] = {}
        for receiver in tuple(self._receivers.values()):
            if receiver.peer is not None:
                by_peer.setdefault(receiver.peer, []).append(receiver)
        now = time.monotonic()
        self._beat_at = {peer: self._beat_at.get(peer, now) for peer in by_peer}
        if not by_peer:
            return
        beat = encode(BEAT, NOBODY, self.address.encode())
        pipeline = client().pipeline(transaction=False)
        for peer in by_peer:
            pipeline.publish(channel(peer), beat)
        for (peer, receivers), subscribers in zip(by_peer.items(), pipeline.execute(), strict=True):
            if not subscribers:
                self.lose("the process at the other end has ended", receivers)
            elif now - self._beat_at[peer] > GONE_SECONDS:
                self.lose("the process at the other end sends no heartbeats", receivers)


class Inbox:
    """The process's one subscriber connection for user code."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._line: InboxLine | None = None
        self._is_started = False
        self._changed = threading.Condition()

    def line(self) -> InboxLine:
        """Return the current line. Raises Unavailable if there is none within CONNECT_SECONDS."""
        line = self._line
        return line if line is not None else self._wait_for_line()

    def _wait_for_line(self) -> InboxLine:
        with self._changed:
            if not self._is_started:
                self._is_started = True
                keep_subscribed(self._redis, self._follow, name="user-code-inbox")
                threading.Thread(target=self._keep_beating, name="user-code-heartbeats", daemon=True).start()
            if not self._changed.wait_for(lambda: self._line is not None, CONNECT_SECONDS):
                raise Unavailable("the event bus does not answer")
            assert self._line is not None
            return self._line

    def _follow(self, connection: Any) -> None:
        """Subscribe to a new line and dispatch its messages until the connection is lost."""
        line = InboxLine()
        connection.send_command("SUBSCRIBE", channel(line.address))
        try:
            for message in messages(connection, lambda: connection.send_command("PING")):
                if message[0] == b"message":
                    line.dispatch(message[2])
                elif message[0] == b"subscribe":
                    self._set(line)
        finally:
            self._set(None)
            line.lose("the connection to the event bus was lost")

    def _set(self, line: InboxLine | None) -> None:
        with self._changed:
            self._line = line
            self._changed.notify_all()

    def _keep_beating(self) -> None:
        forever(self._beat, lambda: time.sleep(BEAT_SECONDS), what="sending heartbeats for user code")

    def _beat(self) -> None:
        if self._line is not None:
            self._line.beat()


def channel(address: str) -> str:
    return f"{PREFIX}user-code:inbox:{address}"


def encode(kind: int, id: bytes, body: bytes, *, number: int = 0) -> bytes:
    """Encode a message."""
    return HEADER.pack(kind, id, number) + body


def place(address: str, id: bytes) -> bytes:
    """Return the body of TAKEN: the address and id under which its sender receives messages."""
    return id + address.encode()


def address_of(place: bytes) -> str:
    return place[len(NOBODY) :].decode()


def id_at(place: bytes) -> bytes:
    return place[: len(NOBODY)]


def send(address: str, *messages: bytes) -> bool:
    """Send messages to an inbox in order. Returns False if it has no subscriber or Redis is unreachable."""
    try:
        return publish(address, *messages)
    except RedisError as error:
        log.warning("an inbox cannot be reached: %s", error)
        return False


def publish(address: str, *messages: bytes) -> bool:
    """Send messages to an inbox in order. Returns False if it has no subscriber. Raises RedisError."""
    if len(messages) == 1:
        return bool(client().publish(channel(address), messages[0]))
    pipeline = client().pipeline(transaction=False)
    for message in messages:
        pipeline.publish(channel(address), message)
    return all(pipeline.execute())


inbox = OneOfProcess(lambda: Inbox(client()))
