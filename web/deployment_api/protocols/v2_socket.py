"""A thread over a WebSocket, by the protocol: commands, and the events of the client's subscriptions.

One reader of the thread serves all subscriptions of a socket, so each event is sent once. For a new subscription the
reader goes back to where that subscription begins. Until it has caught up, the events that the other subscriptions have
had already are sent for the new one only.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from flask import Response, request
from wsproto.frame_protocol import CloseReason

from shared import thread_stream
from shared.errors import Invalid, Refused, RunyardError, TooMany, Unavailable
from shared.eventlog.hub import Reader, Stopping, hub
from shared.infra.postgres import connection, dumps
from shared.protocol import stream, watching
from shared.protocol.events import Failure, Item, Note, ProtocolEvent
from shared.protocol.stream import Joined, ProtocolStream
from shared.threads import records
from shared.user_code import filters
from shared.user_code.filters import Filter
from web.deployment_api.protocols.v2_commands import (
    COMMAND_ROLE,
    ProtocolCommand,
    error_answer,
    execute,
    id_of,
    success_answer,
)
from web.deployment_api.protocols.v2_events import (
    Subscribed,
    Subscription,
    encode_event,
    encode_failure,
)
from web.gate import limits
from web.gate.context import SocketContext, allow, caller, deployment, settings
from web.http import sse, websocket
from web.http.errors import status_of
from web.http.websocket import ClientMessage, Closed, NoUpgrade, SocketStream, Upgraded, WebSocket, text_frame
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import checked, parse_body

log = logging.getLogger(__name__)

bp = RouteGroup(
    "protocol_socket",
    section="Protocol v2",
    switches=("disable_threads", "disable_runs"),
)

MAX_SUBSCRIPTIONS = 100  # per socket
FAILED = Failure("unknown_error", "500: internal error")


class Unsubscribed(fields.Schema):
    subscription_id = fields.StrictString(required=True)


@bp.operation(
    "GET /threads/<thread_id>/stream/events",
    "Open a WebSocket for a thread's events and commands in protocol v2",
    role="read",
    long=True,
    status=101,
    errors=(400, 404, 426),
    websocket=True,
)
def open_socket(thread_id: UUID) -> Response:
    """Open a WebSocket that takes the commands of `POST …/commands`, `subscription.subscribe` and
    `subscription.unsubscribe`, as text messages."""
    visible = _require_visible(thread_id)
    try:
        opened, opening = websocket.Opening(request.environ).accept()
    except NoUpgrade as refusal:
        return websocket.refusal(refusal)
    # Mark the thread as watched before the socket opens. A connected client expects the events of the run it starts
    # next, even if it starts that run over another connection and the request overtakes its subscription.
    watching.mark({"deployment_id": deployment().id, "thread_id": thread_id})
    client = request.environ[websocket.GATEWAY_SOCKET]
    served = WebSocket(client, opened, opening, max_bytes=settings().max_body_bytes)
    session = Session(served, thread_id, visible, heartbeat_seconds=settings().heartbeat_seconds)
    return Upgraded(SocketStream(served, session.steps()))


def _require_visible(thread_id: UUID) -> Filter | None:
    """Return the caller's filter for threads, which applies for as long as the socket is open.

    Raises NotFound if the filter hides the thread, or if the thread is missing and the caller may not wait for it.
    """
    visible = allow("threads", "read", thread_id=thread_id).filter
    if caller().may(COMMAND_ROLE) and not visible:
        return visible
    with connection() as conn:
        if filters.is_thread_hidden(conn, deployment().id, thread_id, visible):
            raise records.missing(thread_id)
        if not caller().may(COMMAND_ROLE):
            records.require(conn, deployment().id, thread_id)
    return visible


@dataclass(slots=True)
class Live:
    """A subscription that receives events: those that it selects with a number above `begins_after`."""

    subscription: Subscription
    begins_after: int

    def matches(self, event: ProtocolEvent) -> bool:
        return event.seq > self.begins_after and self.subscription.matches(event)


@dataclass(slots=True)
class Replay:
    """A subscription that is catching up; `through` is the number of the newest event when the replay began."""

    id: str
    command_id: int
    through: int
    count: int = 0


class Session:
    """The session of one socket. Created within the request that opens the socket; outlives that request.

    `steps` runs in the greenlet of the connection and sends events. Another greenlet handles the client's messages, so
    a command does not wait for events, and events do not wait for a slow command.
    """

    def __init__(
        self, socket: WebSocket, thread_id: UUID, visible: Filter | None, *, heartbeat_seconds: float
    ) -> None:
        self._socket, self._thread_id, self._visible = socket, thread_id, visible
        self._context = SocketContext.of_request()
        self._deployment_id = deployment().id
        self._heartbeat = sse.HeartbeatTimer(heartbeat_seconds)
        self._wake_ups: Reader | None = None
        self._stream: ProtocolStream | None = None
        self._requested: list[tuple[int, Subscription]] = []
        self._live: dict[str, Live] = {}
        self._replay: Replay | None = None
        self._seen = 0  # number of the last event that was read for the live subscriptions

    # Events.

    def steps(self) -> Generator[bytes]:
        """Serve the socket until it is closed. Raises Closed and Stopping.

        Yields after each batch, so that `SocketStream` can check whether the caller's key is still valid.
        """
        try:
            with (
                self._socket.receiving(self._take, self._wake),
                hub().reader(self._thread_id, at=thread_stream.channel(self._thread_id)) as wake_ups,
            ):
                self._wake_ups = wake_ups
                while True:
                    yield from self._serve(wake_ups)
        except (Closed, Stopping):
            raise
        except Exception:  # outermost loop of this socket: the client gets an error message
            log.exception("the socket of thread %s failed", self._thread_id)
            self._fail(FAILED)

    def _serve(self, wake_ups: Reader) -> Iterator[bytes]:
        """Send batches of events until the thread has to be read from another position. Raises Closed."""
        with closing(self._batches(wake_ups)) as batches:
            for batch in batches:
                if self._socket.is_closed:
                    raise Closed
                self._pass_on(batch)
                if self._heartbeat.take_due():
                    self._socket.beat()
                yield b""
                if self._must_switch_stream():
                    return

    def _batches(self, wake_ups: Reader) -> Generator[list[Item]]:
        if self._stream is not None:
            yield from self._stream.batches(wake_ups, self._quiet_seconds)
        while True:
            wake_ups.take(self._quiet_seconds())
            yield []

    def _quiet_seconds(self) -> float:
        if self._replay or self._requested or self._socket.is_closed or self._is_idle():
            return 0.0
        return self._heartbeat.quiet_seconds()

    def _wake(self) -> None:
        if self._wake_ups is not None:
            self._wake_ups.wake()
        if self._stream is not None:
            self._stream.wake()

    def _is_idle(self) -> bool:
        """Return whether the thread is read although no subscription is left."""
        return self._stream is not None and not self._live

    def _must_switch_stream(self) -> bool:
        """Switch to the next requested subscription, or stop reading if no subscription is left.

        Returns whether either happened, so that the thread has to be read from another position.
        """
        if self._is_idle():
            self._stream = None
            return True
        return not self._replay and self._begin_next()

    def _begin_next(self) -> bool:
        while self._requested:
            command_id, subscription = self._requested.pop(0)
            try:
                opened = self._open_stream(subscription)
                through = self._newest()
            except RunyardError as error:
                self._answer(_refusal(command_id, error))
                continue
            if not self._live:
                self._seen = opened.begins_after
            for live in self._live.values():
                live.begins_after = max(live.begins_after, self._seen)
            self._replay = Replay(str(uuid4()), command_id, through)
            self._live[self._replay.id] = Live(subscription, opened.begins_after)
            self._stream = opened
            return True
        return False

    def _open_stream(self, subscription: Subscription) -> ProtocolStream:
        others = any(live.subscription.waits for live in self._live.values())
        opened = ProtocolStream(
            self._deployment_id,
            self._thread_id,
            since=subscription.since,
            ends_only=subscription.waits,
            awaits_creation=self._context.caller.may(COMMAND_ROLE),
            joined=Joined(self._seen, ends_only=others) if self._live else None,
            filter=self._visible,
        )
        opened.open()
        return opened

    def _pass_on(self, batch: Sequence[Item]) -> None:
        """Send a batch of events. An empty batch ends the replay: the reader has reached the newest event."""
        frames: list[bytes] = []
        for item in batch:
            if isinstance(item, Failure):
                self._fail(item)
            elif not isinstance(item, Note):
                frames += self._frames_of(item)
        if not batch:
            frames += self._caught_up()
        if frames:
            self._socket.send_frames(frames)

    def _frames_of(self, event: ProtocolEvent) -> Iterator[bytes]:
        if self._replay is not None and event.seq > max(self._replay.through, self._seen):
            yield from self._caught_up()
        self._seen = max(self._seen, event.seq)
        if self._replay is not None:
            self._replay.count += self._live[self._replay.id].matches(event)
        if any(live.matches(event) for live in self._live.values()):
            yield event.form("socket", _frame)

    def _caught_up(self) -> Iterator[bytes]:
        """Yield the answer to a subscription whose replay is complete, if there is one."""
        replay, self._replay = self._replay, None
        if replay is not None:
            result = {"subscription_id": replay.id, "replayed_events": replay.count}
            yield text_frame(_encoded(success_answer(replay.command_id, result, replay.through)))

    def _fail(self, failure: Failure) -> None:
        """Send a failure as the last message, then close the socket. Raises Closed."""
        self._socket.send(encode_failure(failure))
        self._socket.close(CloseReason.INTERNAL_ERROR, failure.message)
        raise Closed

    # Commands.

    def _take(self, message: ClientMessage) -> None:
        """Handle a message of the client and send the answer to it."""
        with self._context.activate():
            answer = self._handle(message.data)
        if answer is not None:
            self._answer(answer)

    def _handle(self, message: bytes) -> Mapping[str, Any] | None:
        """Return the answer to a message, or None if the answer follows later."""
        sent: Any = None
        too_many = self._count()
        try:
            sent = parse_body(message)
            command = checked(ProtocolCommand, sent if isinstance(sent, dict) else {}, "body")
        except Invalid as error:
            return error_answer(id_of(sent), "invalid_argument", error.message)
        try:
            if too_many is not None:
                raise too_many
            self._context.resolve_deployment()
            return self._execute(command)
        except RunyardError as error:
            return self._numbered(_refusal(command["id"], error))

    def _count(self) -> TooMany | None:
        """Return the error if the key exceeds its rate limit, else None. Every message counts, valid or not."""
        try:
            limits.count_request(caller())
        except TooMany as error:
            return error
        return None

    def _execute(self, command: dict[str, Any]) -> Mapping[str, Any] | None:
        id, params = command["id"], command.get("params", {})
        if command["method"] == "subscription.subscribe":
            return self._subscribe(id, params)
        if command["method"] == "subscription.unsubscribe":
            return self._unsubscribe(id, params)
        if not caller().may(COMMAND_ROLE):
            message = f"This needs the role {COMMAND_ROLE}: the API key has the role {caller().role}"
            return self._numbered(error_answer(id, "permission_denied", message))
        answer = execute(str(self._thread_id), command)
        return answer if answer["type"] == "success" else self._numbered(answer)

    def _subscribe(self, id: int, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            subscription = Subscription.of(checked(Subscribed, params, "params"))
        except Invalid as error:
            return self._numbered(error_answer(id, "invalid_argument", error.message))
        if len(self._live) + len(self._requested) >= MAX_SUBSCRIPTIONS:
            message = (
                f"This socket has {MAX_SUBSCRIPTIONS} subscriptions, the maximum: unsubscribe from one first"
            )
            return self._numbered(error_answer(id, "invalid_argument", message))
        self._requested.append((id, subscription))
        self._wake()
        return None

    def _unsubscribe(self, id: int, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            subscription_id = checked(Unsubscribed, params, "params")["subscription_id"]
        except Invalid as error:
            return self._numbered(error_answer(id, "invalid_argument", error.message))
        if self._replay is not None and subscription_id == self._replay.id:
            return self._unknown(id, subscription_id)  # the client has not received this id yet
        if self._live.pop(subscription_id, None) is None:
            return self._unknown(id, subscription_id)
        self._wake()
        return self._numbered({"type": "success", "id": id, "result": {}})

    def _unknown(self, id: int, subscription_id: str) -> Mapping[str, Any]:
        message = f"Unknown subscription '{subscription_id[:100]}'"
        return self._numbered(error_answer(id, "no_such_subscription", message))

    def _numbered(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the number of the thread's newest event to an answer, unless the database is unavailable."""
        try:
            return {**answer, "meta": {"applied_through_seq": self._newest()}}
        except Unavailable:
            return answer

    def _newest(self) -> int:
        with connection() as conn:
            if filters.is_thread_hidden(conn, self._deployment_id, self._thread_id, self._visible):
                return 0  # another user has created the thread that this client waits for
            return stream.newest(conn, self._deployment_id, self._thread_id)

    def _answer(self, answer: Mapping[str, Any]) -> None:
        self._socket.send(_encoded(answer))


def _frame(event: ProtocolEvent) -> bytes:
    return text_frame(encode_event(event))


def _encoded(answer: Mapping[str, Any]) -> bytes:
    return dumps(answer).encode()


def _refusal(id: int, error: RunyardError) -> dict[str, Any]:
    """Return an error as an answer, with its HTTP status. An unexpected error is not described to the client."""
    status = status_of(error)
    is_described = isinstance(error, Refused | Unavailable)
    return error_answer(id, "unknown_error", f"{status}: {error.message}" if is_described else FAILED.message)
