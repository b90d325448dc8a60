"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import gevent

T = TypeVar("T")
PAUSE_SECONDS = 0.02
PATIENCE = 4  # times as long as on a quiet machine: a limit costs time only when a test fails


def wait_until(condition: Callable[[], T], timeout: float = 10, what: str | None = None) -> T:
    """The condition's first true value; fails the test when it has none in `timeout` seconds of a quiet machine."""
    limit = timeout * PATIENCE
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit} s in vain for {what or condition!r}; last: {value!r}")
        time.sleep(PAUSE_SECONDS)


def until(condition: Callable[[], T], timeout: float = 60, what: str = "") -> T:
    """The same where greenlets of this process make it true: they go on meanwhile."""
    limit = timeout * PATIENCE
    with gevent.Timeout(limit, AssertionError(f"waited {limit} s in vain for {what or condition!r}")):
        while not (value := condition()):
            gevent.sleep(0.005)
        return value
