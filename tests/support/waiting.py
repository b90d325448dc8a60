"""Wait for a condition instead of sleeping for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import gevent

T = TypeVar("T")
PAUSE_SECONDS = 0.02
PATIENCE = 4  # factor on timeouts for busy machines; costs time only when a test fails


def wait_until(condition: Callable[[], T], timeout: float = 10, what: str | None = None) -> T:
    """Return the condition's first true value. Fails after `timeout` seconds, multiplied by PATIENCE."""
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
    """Return the condition's first true value, while other greenlets of this process run. Fails on a timeout."""
    limit = timeout * PATIENCE
    with gevent.Timeout(limit, AssertionError(f"waited {limit} s in vain for {what or condition!r}")):
        while not (value := condition()):
            gevent.sleep(0.005)
        return value
