"""Makes psycopg wait for PostgreSQL with a watcher of gevent's loop, in processes that gevent has patched.

psycopg would call `poll` every tenth of a second, which gevent emulates with a watcher, an event and a timer.

A server that hangs keeps its connections open and sends nothing, and psycopg has no timeout for a statement. This
module limits the silence: it shuts the socket down, and the statement fails as on a lost connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

RV = TypeVar("RV")

# libev's events for each wait mode, and the result for psycopg. Reporting more readiness than there is does no harm.
EVENTS = {Wait.R: (1, Ready.R), Wait.W: (2, Ready.W), Wait.RW: (3, Ready.RW)}

Limit = Callable[[], float | None]

_longest_silence: Limit | None = None


class Silence(psycopg.OperationalError):
    """PostgreSQL sent nothing within the statement's time limit."""


def install(longest_silence: Limit) -> None:
    """Replace psycopg's wait function for all connections of this process.

    Raises RuntimeError if psycopg has already chosen its C implementation. `longest_silence` returns the limit of the
    current statement in seconds, or None for no limit.
    """
    global _longest_silence
    if waiting.wait is getattr(waiting, "wait_c", None):
        raise RuntimeError("psycopg was imported before gevent patched this process")
    _longest_silence = longest_silence
    waiting.wait = wait


def wait(gen: PQGen[RV], fileno: int, interval: float = 0.0, timeout: float | None = None) -> RV:
    """Run a psycopg generator to its end and return its result. Replaces `psycopg.waiting.wait`.

    Raises Silence.
    """
    if timeout is not None:
        return waiting.wait_poll(gen, fileno, interval, timeout)
    limit = None if _longest_silence is None else _longest_silence()
    try:
        mode = next(gen)
        while True:
            events, ready = EVENTS[mode]
            if not _is_ready(fileno, events, limit):
                _break(gen, fileno, ready)
                raise Silence(f"PostgreSQL sent nothing for {limit:g} s")
            mode = gen.send(ready)
    except StopIteration as end:
        return end.value


def _is_ready(fileno: int, events: int, limit: float | None) -> bool:
    """Wait until the socket is ready. Returns False if the limit in seconds passes first."""
    hub = gevent.get_hub()
    watcher: Any = hub.loop.io(fileno, events)
    silent: Any = False  # the timeout ends the block and is not raised to the caller
    try:
        with gevent.Timeout(limit, silent):
            hub.wait(watcher)
            return True
        return False
    finally:
        watcher.close()


def _break(gen: PQGen[Any], fileno: int, ready: Ready) -> None:
    """Shut the socket down and let psycopg read the end, so that it marks the connection as broken."""
    with socket.socket(fileno=os.dup(fileno)) as connection:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server has just closed it
    try:
        while True:
            gen.send(ready)
    except (psycopg.Error, StopIteration):
        return
