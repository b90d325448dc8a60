"""The loop that a worker process has for each thing it does all the time."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from redis.exceptions import RedisError

from shared.errors import Unavailable

log = logging.getLogger(__name__)


def forever(
    step: Callable[[], object],
    pause: float | Callable[[], object],
    *,
    what: str,
    retry: tuple[float, float] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Step and pause, again and again; whatever a step raises is logged and ends nothing.

    `pause`: so many seconds, or what returns when there is something to do. `retry`: a step that failed is
    tried again after the first of these pauses, doubled each time up to the second; None: at its usual time.
    """
    failures = 0
    while not until():
        try:
            step()
            failures = 0
        except Exception as error:  # the outermost loop of all that a worker does: a bug must not end it
            if _is_away(error):
                log.warning("%s waits: %s", what, error)
            else:
                log.exception("%s failed, going on", what)
            failures += 1
        if failures and retry is not None:
            first, most = retry
            gevent.sleep(min(first * 2 ** min(failures - 1, 10), most))
        elif callable(pause):
            pause()
        else:
            gevent.sleep(pause)


def _is_away(error: Exception) -> bool:
    """Whether something that a step needs cannot be reached."""
    from sqlalchemy import exc  # here: beat has such loops, and no database

    return isinstance(error, (Unavailable, exc.OperationalError, exc.InterfaceError, RedisError, OSError))
