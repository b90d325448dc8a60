"""Wait for a condition instead of sleeping for a fixed time.

Pauses grow with the time waited, to a twentieth of it: a condition costs CPU time, which other tests need.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import gevent

T = TypeVar("T")
PATIENCE = 4  # factor on timeouts for busy machines; costs time only when a test fails


def wait_until(condition: Callable[[], T], timeout: float = 10, what: str | None = None) -> T:
    """Return the condition's first true value. Fails after `timeout` seconds, multiplied by PATIENCE."""
    limit = timeout * PATIENCE
    started = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - started
        if waited > limit:
            raise AssertionError(f"waited {limit} s in vain for {what or condition!r}; last: {value!r}")
        time.sleep(min(max(waited / 20, 0.02), 0.2))


def until(condition: Callable[[], T], timeout: float = 60, what: str = "") -> T:
    """Return the condition's first true value, while other greenlets of this process run. Fails on a timeout."""
    limit = timeout * PATIENCE
    started = time.monotonic()
    with gevent.Timeout(limit, AssertionError(f"waited {limit} s in vain for {what or condition!r}")):
        while not (value := condition()):
            gevent.sleep(min(max((time.monotonic() - started) / 20, 0.005), 0.05))
        return value
