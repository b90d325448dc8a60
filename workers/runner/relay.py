"""The relay of a request to a project's app: forwards parts between the web process and the graph host.

Credits pass through the relay. Each end waits for credits from the other end, so the relay never holds more parts than
either end may have in flight. A host that sends more is killed.
"""

from __future__ import annotations

import logging

import gevent
from gevent.queue import Empty, SimpleQueue
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared.errors import HostDied, HostError
from shared.hosts import channel
from shared.hosts.channel import LOST, PART, TAKEN, Endpoint
from shared.hosts.exchanges import CLOSE, COSTING, CREDIT, HEAD, LAST, MOST_BYTES, WINDOW, Sender
from shared.hosts.pending_calls import PendingCall
from shared.infra.postgres import dumps
from workers.graph_host import frames
from workers.runner.host import Host
from workers.runner.host_pool import HostPool

log = logging.getLogger(__name__)

FROM_APP = frozenset((HEAD, *COSTING, *LAST, CREDIT))
AT_ONCE = WINDOW  # most parts in one message
RETRY_SECONDS = 1.0  # pause before an end that Redis did not accept is sent again
DISCONNECTED = CLOSE + b'{"code":1006,"reason":"the client has gone"}'


class Relay:
    """One request or WebSocket: the occupant of its host."""

    def __init__(self, pending: PendingCall) -> None:
        self._call = pending.call
        self._caller = pending.caller
        self._id = pending.id
        self._up: SimpleQueue[bytes | None] = SimpleQueue()  # None: no part follows
        self._held = 0  # parts of the app that the client has not credited yet
        self._owed = 0  # parts of the client that the app has not credited yet
        self._has_head = self._has_ended = False
        self._why_lost: str | None = None

    def execute(self, hosts: HostPool) -> None:
        """Forward parts until either end closes. Raises HostError if no host accepts the request."""
        subscription, id = channel.channel().subscription(), uuid7().bytes
        host = hosts.acquire(self._call.revision_id)
        client = _Client(self, self._caller.address)
        sender = Sender(self._caller)
        is_over = False
        with subscription.receiving(id, client):
            try:
                host.enter(self._id, self, dumps(self._call.document).encode(), kind=frames.OPEN)
                gevent.spawn(client.pass_down, host, self._id)
                channel.send(self._caller, TAKEN, Endpoint(subscription.address, id).encode())
                is_over = self._pass_up(sender)
            except gevent.GreenletExit:
                self._why_lost = "the runner stops"
                raise
            finally:
                host.leave(self._id)
                if not is_over:
                    _give_up(sender, self._why_lost or "its client has gone")
                    client.lost(self._why_lost or "the web process receives no more parts")
                client.end()

    def _pass_up(self, sender: Sender) -> bool:
        """Send the app's parts to the client. Returns True if the app has ended the exchange."""
        while (first := self._up.get()) is not None:
            batch = [first, *self._more()]
            if not sender.send(*batch):
                return False
            if any(part[:1] in LAST for part in batch):
                return True
        return False

    def _more(self) -> list[bytes]:
        """Return the parts that are already queued, to send them in the same message."""
        parts: list[bytes] = []
        while len(parts) < AT_ONCE - 1:
            try:
                part = self._up.get_nowait()
            except Empty:
                break
            if part is None:
                self._up.put(None)
                break
            parts.append(part)
        return parts

    def end(self) -> None:
        """Stop sending parts to the client."""
        self._up.put(None)

    def credit(self, parts: int) -> None:
        """Record that the client has credited so many of the app's parts."""
        self._held -= parts

    def owe(self) -> None:
        """Record that the client has sent a part that the app must credit."""
        self._owed += 1

    # as an occupant of the host

    def received(self, kind: int, body: bytes) -> None:
        if kind != frames.PART:
            return
        if body[:1] not in FROM_APP:
            raise frames.BadFrame(f"a part that is {body[:1]!r}")
        if len(body) > MOST_BYTES + 1:
            self._lose(f"a message of more than {MOST_BYTES} bytes")
            return
        self._count(body[:1], body[1:])
        self._up.put(body)

    def _count(self, kind: bytes, data: bytes) -> None:
        """Update the counts of parts. Raises BadFrame if the app must not send this part now.

        Parts that need no credit are bounded, too: the head and the end come once, and a credit answers a part.
        """
        if self._has_ended or (kind == HEAD and self._has_head):
            raise frames.BadFrame("a part too many")
        if kind in COSTING:
            self._held += 1
        elif kind == CREDIT:
            self._owed -= _number(data)
        if self._held > WINDOW or self._owed < 0:
            raise frames.BadFrame("more parts than may be on their way")
        self._has_head = self._has_head or kind == HEAD
        self._has_ended = kind in LAST

    def host_died(self, error: HostError) -> None:
        self._lose(f"the graph host {error.message}")

    def _lose(self, reason: str) -> None:
        self._why_lost = reason
        self._up.put(None)

    def wait_until_drained(self) -> None:
        """Return at once: an app request has no events."""


class _Client:
    """The client's end of a relay: its parts go down to the host."""

    def __init__(self, relay: Relay, peer: str) -> None:
        self.peer: str | None = peer
        self._relay = relay
        self._down: SimpleQueue[bytes | None] = SimpleQueue()
        self._expected = 0
        self._has_closed = False

    def pass_down(self, host: Host, id: bytes) -> None:
        """Send the client's parts to the host.

        Runs in its own greenlet, which is never killed: the host may be slow, and a partly sent frame cannot be undone.
        """
        try:
            while (part := self._down.get()) is not None:
                host.send(frames.PART, id, part)
        except HostDied:
            return  # the relay's `host_died` handles it

    def end(self) -> None:
        """End the greenlet after it has sent the parts received so far."""
        self._down.put(None)

    def received(self, kind: int, number: int, body: bytes) -> None:
        if kind == LOST or (kind == PART and number != self._expected):
            self.lost("parts of the message stream were lost")
        elif kind == PART and not self._has_closed:
            self._expected += 1
            self._pass(body)

    def _pass(self, part: bytes) -> None:
        if part[:1] == CREDIT:
            self._relay.credit(int(part[1:]))
        elif part[:1] in COSTING:
            self._relay.owe()
        self._down.put(part)
        if part[:1] == CLOSE:
            self._has_closed = True
            self._relay.end()

    def lost(self, reason: str) -> None:
        if not self._has_closed:
            log.info("a request in an app ends early: %s", reason)
            self._pass(DISCONNECTED)


def _give_up(sender: Sender, reason: str) -> None:
    """Tell the web process that no part follows. Retries until Redis accepts the message.

    Heartbeats are per process, so the heartbeats of other exchanges would keep the web process waiting forever.
    """
    try:
        sender.give_up(reason)
    except RedisError as error:
        log.warning("the end of a request in an app cannot be sent: %s", error)
        gevent.spawn_later(RETRY_SECONDS, _give_up, sender, reason)


def _number(data: bytes) -> int:
    """Return the number in a credit. Raises BadFrame."""
    if not data.isdigit() or len(data) > 2:
        raise frames.BadFrame(f"a credit that is {data!r:.20}")
    return int(data)
