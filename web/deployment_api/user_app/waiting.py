"""Waiting for the next part of an app's answer, and the translation of failures into responses of the service.

Other greenlets can end the wait: when the client disconnects, when the request's body breaks off, and when the server
stops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import gevent
from flask import Response, abort

from shared.errors import OutsideFailed, Unanswered, Unavailable
from shared.eventlog.hub import Stopping
from shared.hosts.exchanges import Lost
from web.deployment_api.user_app.heads import BadAnswer
from web.http.connections import shutdown_hooks
from web.http.sse import ClientGone

Part = tuple[bytes, bytes]

_all: WeakSet[Waiting] = WeakSet()


class Waiting:
    """The successive waits of one greenlet, which other greenlets can end."""

    def __init__(self) -> None:
        self._alarm = gevent.Timeout()  # never started: only thrown into the greenlet to wake it
        self._greenlet: Any = None
        self.reason: Exception | None = None
        _all.add(self)

    def next(self, parts: Iterator[Part]) -> Part | None:
        """Return the next part, or None after the last one. Raises the reason given to `end`."""
        if self.reason is not None:
            raise self.reason
        self._greenlet = gevent.getcurrent()
        try:
            return next(parts, None)
        except gevent.Timeout as alarm:
            if alarm is not self._alarm or self.reason is None:
                raise
            raise self.reason from None
        finally:
            self._greenlet = None

    def end(self, reason: Exception) -> None:
        """End the current wait and all later ones with this reason. May be called from any greenlet of the process."""
        if self.reason is None:
            self.reason = reason
        if self._greenlet is not None:
            gevent.get_hub().loop.run_callback(self._throw)

    def _throw(self) -> None:
        if self._greenlet is not None:
            self._greenlet.throw(self._alarm)


def end_all(reason: Exception) -> None:
    """End all waits of this process, because it shuts down."""
    for waiting in list(_all):
        waiting.end(reason)


shutdown_hooks.append(end_all)


log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0  # timeout for the head of an answer, also of a handshake
DIED = "The deployment's app exited before it answered"
RAISED = "Internal Server Error"
NO_ANSWER = "The deployment's app gave an invalid answer"
CLIENT_DISCONNECTED = 499  # for logs and metrics only: the client has disconnected


@contextmanager
def translated_failures(name: str) -> Iterator[None]:
    """Translate each failure that occurs while the app of this deployment is awaited into an error of the service.

    Raises Unanswered, OutsideFailed and Unavailable, and aborts with 499 if the client has disconnected.
    """
    try:
        yield
    except TimeoutError:
        raise Unanswered(f"The deployment's app did not answer within {ANSWER_SECONDS:.0f} seconds") from None
    except Lost as lost:
        log.warning("the exchange with the app of %s was lost: %s", name, lost)
        raise OutsideFailed(DIED) from lost
    except BadAnswer as bad:
        log.warning("the app of %s gave an invalid answer: %s", name, bad)
        raise OutsideFailed(NO_ANSWER) from bad
    except ClientGone:
        abort(Response(status=CLIENT_DISCONNECTED))
    except Stopping:
        raise Unavailable("this process is shutting down: try again") from None
