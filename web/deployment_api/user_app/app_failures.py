"""Failures of a project's app to answer, translated into responses of the service."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Response, abort

from shared.errors import OutsideFailed, Unanswered, Unavailable
from shared.eventlog.hub import Stopping
from shared.user_code.exchanges import Lost
from web.deployment_api.user_app.app_answers import BadAnswer
from web.http.sse import ClientGone

log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0  # timeout for the head of an answer, also of a handshake
DIED = "The deployment's app exited before it answered"
RAISED = "Internal Server Error"
NO_ANSWER = "The deployment's app gave an invalid answer"
CLIENT_GONE = 499  # for logs and metrics only: the client has disconnected


@contextmanager
def answered(name: str) -> Iterator[None]:
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
        abort(Response(status=CLIENT_GONE))
    except Stopping:
        raise Unavailable("this process is shutting down: try again") from None
