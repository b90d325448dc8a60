"""The channel between callers and runners: messages of one process to another by Redis publish/subscribe.

Each process has one subscriber connection for all its calls, under a random address. Web processes receive answers and
the parts of apps, runners the parts of clients. Messages that are published while the connection is broken are lost, so
all receivers of a broken connection end, and the next connection has another address.

A publish without a subscriber shows that the other process has ended. Missing heartbeats show that it is frozen or
unreachable.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from redis import Redis
from redis.exceptions import RedisError

from shared.errors import Unavailable
from shared.infra.loops import forever
from shared.infra.redis import PREFIX, client
from shared.infra.redis_connections import PerProcess, keep_subscribed, messages

log = logging.getLogger(__name__)

HEADER = struct.Struct(">B16sI")  # kind of the message, id of the receiver, number among the sender's parts
NOBODY = bytes(16)

# Kinds of messages.
# ANSWER: the answer to a call. STORED: the answer is in Redis under the key `answer_key(id)`.
# TAKEN: a runner has taken the call; the body is the Endpoint of the runner.
# REFUSED: the call has failed; the body is `calls.refusal(…)`. PART: a part of an exchange.
# LOST: the sender gives up; the body is the reason. BEAT: a heartbeat; the body is the sender's address.
ANSWER, STORED, TAKEN, REFUSED, PART, LOST, BEAT = range(1, 8)

BEAT_SECONDS = 2.0
GONE_SECONDS = 15.0  # a peer without heartbeats for this long counts as gone
CONNECT_SECONDS = 2.0  # longest wait for a subscription


class Endpoint(NamedTuple):
    """The address of a process and the id of one of its receivers."""

    address: str
    id: bytes

    def encode(self) -> bytes:
        return self.id + self.address.encode()

    @classmethod
    def decode(cls, body: bytes) -> Endpoint:
        return cls(body[len(NOBODY) :].decode(), body[: len(NOBODY)])


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


class Subscription:
    """The lifetime of one subscriber connection: its address and its receivers."""

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
        """End these receivers: no further messages come. None: all receivers, present and future."""
        if receivers is None:
            self.is_lost = True
            receivers = tuple(self._receivers.values())
        for receiver in receivers:
            receiver.lost(reason)

    def beat(self) -> None:
        """Send a heartbeat to each peer, and end the receivers whose peer is gone."""
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
            pipeline.publish(topic(peer), beat)
        for (peer, receivers), subscribers in zip(by_peer.items(), pipeline.execute(), strict=True):
            if not subscribers:
                self.lose("the process at the other end has ended", receivers)
            elif now - self._beat_at[peer] > GONE_SECONDS:
                self.lose("the process at the other end sends no heartbeats", receivers)


class Channel:
    """The process's one subscriber connection for calls to graph hosts."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._subscription: Subscription | None = None
        self._is_started = False
        self._changed = threading.Condition()

    def subscription(self) -> Subscription:
        """Return the current subscription. Raises Unavailable if there is none within CONNECT_SECONDS."""
        subscription = self._subscription
        return subscription if subscription is not None else self._wait_for_subscription()

    def _wait_for_subscription(self) -> Subscription:
        with self._changed:
            if not self._is_started:
                self._is_started = True
                keep_subscribed(self._redis, self._follow, name="host-calls")
                threading.Thread(target=self._keep_beating, name="host-call-heartbeats", daemon=True).start()
            if not self._changed.wait_for(lambda: self._subscription is not None, CONNECT_SECONDS):
                raise Unavailable("the event bus does not answer")
            assert self._subscription is not None
            return self._subscription

    def _follow(self, connection: Any) -> None:
        """Subscribe under a new address and dispatch its messages until the connection is lost."""
        subscription = Subscription()
        connection.send_command("SUBSCRIBE", topic(subscription.address))
        try:
            for message in messages(connection, lambda: connection.send_command("PING")):
                if message[0] == b"message":
                    subscription.dispatch(message[2])
                elif message[0] == b"subscribe":
                    self._set(subscription)
        finally:
            self._set(None)
            subscription.lose("the connection to the event bus was lost")

    def _set(self, subscription: Subscription | None) -> None:
        with self._changed:
            self._subscription = subscription
            self._changed.notify_all()

    def _keep_beating(self) -> None:
        forever(
            self._beat, lambda: time.sleep(BEAT_SECONDS), what="sending heartbeats of calls to graph hosts"
        )

    def _beat(self) -> None:
        if self._subscription is not None:
            self._subscription.beat()


channel = PerProcess(lambda: Channel(client()))


def topic(address: str) -> str:
    """Return the Redis channel on which a process receives messages."""
    return f"{PREFIX}hosts:reply:{address}"


def answer_key(id: bytes) -> str:
    """Return the Redis key of an answer that is too large for a message."""
    return f"{PREFIX}hosts:answer:{id.hex()}"


def encode(kind: int, id: bytes, body: bytes, *, number: int = 0) -> bytes:
    return HEADER.pack(kind, id, number) + body


def send(to: Endpoint, kind: int, body: bytes) -> bool:
    """Send a message. Returns False if its receiver's process has no subscriber or Redis is unreachable."""
    try:
        return publish(to.address, encode(kind, to.id, body))
    except RedisError as error:
        log.warning("a message about a call to a graph host cannot be sent: %s", error)
        return False


def has_subscriber(address: str) -> bool:
    """Return whether a process receives messages under this address. Returns False if Redis is unreachable."""
    try:
        return any(count for _, count in client().pubsub_numsub(topic(address)))
    except RedisError:
        return False


def publish(address: str, *messages: bytes) -> bool:
    """Send encoded messages to a process in order. Returns False if it has no subscriber. Raises RedisError."""
    if len(messages) == 1:
        return bool(client().publish(topic(address), messages[0]))
    pipeline = client().pipeline(transaction=False)
    for message in messages:
        pipeline.publish(topic(address), message)
    return all(pipeline.execute())
