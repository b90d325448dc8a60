"""What keeps a project's app from answering, as answers of the service."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Response, abort

from shared.errors import OutsideFailed, Unanswered, Unavailable
from shared.eventlog.hub import Stopping
from shared.user_code.exchanges import Lost
from web.deployment_api.app_answers import BadAnswer
from web.sse import ClientGone

log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0  # for the head of an answer, or for a handshake's
DIED = "The deployment's app ended before it had answered"
RAISED = "Internal Server Error"
NO_ANSWER = "The deployment's app gave no answer that can be passed on"
CLIENT_GONE = 499  # nobody reads it


@contextmanager
def answered(name: str) -> Iterator[None]:
    """While an app of this deployment is waited for: each failure leaves as the answer to it."""
    try:
        yield
    except TimeoutError:
        raise Unanswered(
            f"The deployment's app has not answered within {ANSWER_SECONDS:.0f} seconds"
        ) from None
    except Lost as lost:
        log.warning("the app of %s: %s", name, lost)
        raise OutsideFailed(DIED) from lost
    except BadAnswer as bad:
        log.warning("the app of %s gave no answer: %s", name, bad)
        raise OutsideFailed(NO_ANSWER) from bad
    except ClientGone:
        abort(Response(status=CLIENT_GONE))
    except Stopping:
        raise Unavailable("this process stops") from None
