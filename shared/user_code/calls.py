"""Calls of user code that answer once: web asks, a runner that has a host of the revision passes the question on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from shared.errors import HostError, Unanswered, Unavailable
from shared.user_code import inbox, requests
from shared.user_code.inbox import ANSWER, LOST, REFUSED, TAKEN
from shared.user_code.requests import CALL, Request

START_SECONDS = 60.0  # for a host to be had
SLACK_SECONDS = 2.0  # for an answer to come here, or for a runner to say that it has taken the call
TRIES = 2  # what is asked changes nothing: it may be asked again when the runner that took it is gone

# What a refusal's `kind` is to the caller.
REFUSALS = {"unavailable": Unavailable, "unanswered": Unanswered, "failed": HostError}


def call(
    revision_id: UUID,
    pool: str,
    document: Mapping[str, Any],
    *,
    timeout_seconds: float,
    start_seconds: float = START_SECONDS,
) -> bytes:
    """The answer of the host's `op` to this QUERY document, as JSON.

    Raises Unanswered when it does not come in time, Unavailable when no host of the revision can be had,
    HostError when the host died twice or answered nonsense.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            return _Call(revision_id, pool, document, timeout_seconds, start_seconds).answer()
        except _RunnerGone as error:
            if not tries_left:
                raise Unavailable(f"{error}, twice") from error
    raise AssertionError("the last try returns or raises")


class _RunnerGone(Exception):
    """The runner that took the call is gone, or its answer cannot come here any more."""


class _Call:
    """One call, waited for at the process's inbox."""

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
        line = inbox.inbox().line()
        is_over = False
        with line.receiving(self._id, self):
            try:
                request = Request(line.address, self._document, self._seconds)
                requests.put(CALL, self._revision_id, self._id, request)
                message = self._first_message()
                is_over = True
            finally:
                if not is_over:
                    requests.take_back(CALL, self._revision_id, self._id)
            return self._accepted(message)

    def _first_message(self) -> tuple[int, bytes] | None:
        """What comes first, or None once a runner has taken the call; raises Unavailable when none does."""
        give_up_at = time.monotonic() + self._start_seconds
        pause = requests.UNTAKEN_SECONDS
        while (message := self._next(pause)) is None:
            if not requests.is_waiting(CALL, self._revision_id, self._pool, self._id):
                return None
            if time.monotonic() > give_up_at:
                raise Unavailable("no host of the revision could be had in time")
            pause = requests.NOTIFY_AGAIN_SECONDS
        return message

    def _accepted(self, message: tuple[int, bytes] | None) -> bytes:
        if message is None:
            message = self._next(self._seconds + SLACK_SECONDS)
        if message is not None and message[0] == TAKEN:  # a runner whose heartbeats come ends it in time
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

    # what the inbox sees

    def received(self, kind: int, number: int, body: bytes) -> None:
        if kind == TAKEN:
            self.peer = body.decode()
        if kind in (ANSWER, TAKEN, REFUSED):
            self._messages.put((kind, body))

    def lost(self, reason: str) -> None:
        self._messages.put((LOST, reason.encode()))
