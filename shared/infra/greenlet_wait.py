"""How psycopg waits for PostgreSQL where gevent has patched the process: by a watcher of gevent's loop.

psycopg's own way is `poll`, asked every tenth of a second; gevent plays that with a watcher, an event and a timer.
"""

from __future__ import annotations

from typing import Any, TypeVar

import gevent
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

RV = TypeVar("RV")

# Which events of libev are waited for, and what they mean: being told of more than there is does no harm.
EVENTS = {Wait.R: (1, Ready.R), Wait.W: (2, Ready.W), Wait.RW: (3, Ready.RW)}


def install() -> None:
    """Let all connections of this process wait so; raises RuntimeError where psycopg cannot be told any more."""
    if waiting.wait is getattr(waiting, "wait_c", None):
        raise RuntimeError("psycopg was imported before gevent patched this process")
    waiting.wait = wait


def wait(gen: PQGen[RV], fileno: int, interval: float = 0.0, timeout: float | None = None) -> RV:
    """What the generator returns, which says what it waits for; in place of `psycopg.waiting.wait`."""
    if timeout is not None:
        return waiting.wait_poll(gen, fileno, interval, timeout)
    hub = gevent.get_hub()
    try:
        wanted = next(gen)
        while True:
            events, ready = EVENTS[wanted]
            watcher: Any = hub.loop.io(fileno, events)
            try:
                hub.wait(watcher)
            finally:
                watcher.close()
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
