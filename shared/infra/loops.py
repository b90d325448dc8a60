"""The loop of a worker process's background tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from redis.exceptions import RedisError

from shared.errors import Unavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.05, 1.0)  # the usual first and longest pause of loops that retry


def forever(
    step: Callable[[], object],
    pause: float | Callable[[], object],
    *,
    what: str,
    retry: tuple[float, float] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Repeat a step and a pause until `until()` is true. Exceptions of a step are logged and do not end the loop.

    `pause` is a number of seconds, or a function that returns when there is work. `retry` is `(first, most)` seconds: a
    failed step is retried after the first pause, doubled each time up to the second. None: after the usual pause.
    """
    failures = 0
    while not until():
        try:
            step()
            failures = 0
        except Exception as error:  # outermost loop of a worker's work: a defect must not end it
            if _is_unreachable(error):
                log.warning("%s waits: %s", what, error)
            else:
                log.exception("%s failed, continuing", what)
            failures += 1
        if failures and retry is not None:
            first, most = retry
            gevent.sleep(min(first * 2 ** min(failures - 1, 10), most))
        elif callable(pause):
            pause()
        else:
            gevent.sleep(pause)


def _is_unreachable(error: Exception) -> bool:
    """Whether the exception means that a server is unreachable."""
    from sqlalchemy import exc  # imported here: beat has such loops but no database

    return isinstance(error, (Unavailable, exc.OperationalError, exc.InterfaceError, RedisError, OSError))
