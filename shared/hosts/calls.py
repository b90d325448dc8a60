"""Calls of user code with one answer: web calls, and a runner with a host of the revision forwards the call."""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from shared.errors import HostDied, HostError, Unanswered, Unavailable
from shared.hosts import channel, pending_calls
from shared.hosts.channel import ANSWER, LOST, REFUSED, TAKEN
from shared.hosts.pending_calls import CALL, WaitingRequest

START_SECONDS = 60.0  # time to get a host
TRIES = 2  # a call changes nothing, so it may be repeated if the runner that took it is gone

# The caller's error for each `kind` of a refusal.
REFUSALS = {"unavailable": Unavailable, "unanswered": Unanswered, "failed": HostError, "died": HostDied}


def call(
    revision_id: UUID,
    pool: str,
    document: Mapping[str, Any],
    *,
    timeout_seconds: float,
    start_seconds: float = START_SECONDS,
) -> bytes:
    """Send a QUERY document to a host of the revision and return the answer of its `op`, as JSON.

    Raises Unanswered if it does not come in time, Unavailable if no host of the revision can be had, HostDied if the
    host died twice, and HostError for other failures of the host.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            return _Call(revision_id, pool, document, timeout_seconds, start_seconds).answer()
        except _RunnerGone as error:
            if not tries_left:
                raise Unavailable(f"{error} (in both attempts)") from error
    raise AssertionError("the last try returns or raises")


class _RunnerGone(Exception):
    """The runner that took the call is gone, or can no longer send its answer to this process."""


class _Call:
    """One call that waits at the process's channel."""

    def __init__(
        self,
        revision_id: UUID,
        pool: str,
        document: Mapping[str, Any],
        seconds: float,
        start_seconds: float,
    ) -> None:
        self.peer: str | None = None
        self._id = uuid7().bytes
        self._revision_id = revision_id
        self._pool = pool
        self._document = document
        self._seconds = seconds
        self._start_seconds = start_seconds
        self._messages: SimpleQueue[tuple[int, bytes]] = SimpleQueue()

    def answer(self) -> bytes:
        line = channel.inbox().line()
        request = WaitingRequest(line.address, self._document, self._seconds)
        with line.receiving(self._id, self):
            item = pending_calls.put(CALL, self._revision_id, self._id, request)
            is_over = False
            try:
                message = self._first_message(item)
                is_over = True
            finally:
                if not is_over:
                    pending_calls.take_back(CALL, self._revision_id, item)
            return self._accepted(message)

    def _first_message(self, item: bytes) -> tuple[int, bytes] | None:
        return pending_calls.first_sign(
            CALL,
            self._revision_id,
            self._pool,
            item,
            wait=self._next,
            start_seconds=self._start_seconds,
        )

    def _accepted(self, message: tuple[int, bytes] | None) -> bytes:
        if message is None and (message := self._next(pending_calls.SLACK_SECONDS)) is None:
            raise _RunnerGone("the runner that took the call does not answer")
        if message[0] == TAKEN:  # a runner that sends heartbeats ends the call in time
            message = self._next(2 * (self._seconds + self._start_seconds))
        if message is None:
            raise Unanswered("the project's function did not answer in time")
        kind, body = message
        if kind == LOST:
            raise _RunnerGone(body.decode())
        if kind == REFUSED:
            refused = orjson.loads(body)
            raise REFUSALS[refused["kind"]](refused["message"])
        return body

    def _next(self, seconds: float) -> tuple[int, bytes] | None:
        try:
            return self._messages.get(timeout=seconds)
        except Empty:
            return None

    # called by the inbox

    def received(self, kind: int, number: int, body: bytes) -> None:
        if kind == TAKEN:
            self.peer = channel.address_of(body)
        if kind in (ANSWER, TAKEN, REFUSED):
            self._messages.put((kind, body))

    def lost(self, reason: str) -> None:
        self._messages.put((LOST, reason.encode()))
