"""How psycopg waits for PostgreSQL where gevent has patched the process: by a watcher of gevent's loop.

psycopg's own way is `poll`, asked every tenth of a second; gevent plays that with a watcher, an event and a timer.

A server that hangs keeps its connections open and sends nothing. psycopg has no timeout for a statement, so this is the
place that limits the silence: the socket is shut down, and the statement fails like one whose connection was lost.
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

# Which events of libev are waited for, and what they mean: being told of more than there is does no harm.
EVENTS = {Wait.R: (1, Ready.R), Wait.W: (2, Ready.W), Wait.RW: (3, Ready.RW)}


Limit = Callable[[], float | None]

_longest_silence: Limit | None = None


class Silence(psycopg.OperationalError):
    """PostgreSQL sent nothing for as long as the statement could wait."""


def install(longest_silence: Limit) -> None:
    """Let all connections of this process wait so; raises RuntimeError where psycopg cannot be told any more.

    `longest_silence` returns the limit of the current statement in seconds, None for no limit.
    """
    global _longest_silence
    if waiting.wait is getattr(waiting, "wait_c", None):
        raise RuntimeError("psycopg was imported before gevent patched this process")
    _longest_silence = longest_silence
    waiting.wait = wait


def wait(gen: PQGen[RV], fileno: int, interval: float = 0.0, timeout: float | None = None) -> RV:
    """What the generator returns, which says what it waits for; in place of `psycopg.waiting.wait`.

    Raises Silence.
    """
    if timeout is not None:
        return waiting.wait_poll(gen, fileno, interval, timeout)
    limit = None if _longest_silence is None else _longest_silence()
    try:
        wanted = next(gen)
        while True:
            events, ready = EVENTS[wanted]
            if not _is_ready(fileno, events, limit):
                _break(gen, fileno, ready)
                raise Silence(f"PostgreSQL sent nothing for {limit:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _is_ready(fileno: int, events: int, limit: float | None) -> bool:
    """Wait until the socket is ready; False when that took longer than the limit."""
    hub = gevent.get_hub()
    watcher: Any = hub.loop.io(fileno, events)
    late: Any = False  # not raised outside of the block
    try:
        with gevent.Timeout(limit, late):
            hub.wait(watcher)
            return True
        return False
    finally:
        watcher.close()


def _break(gen: PQGen[Any], fileno: int, ready: Ready) -> None:
    """Shut the socket down and let psycopg find out, so that the connection knows that it is broken."""
    with socket.socket(fileno=os.dup(fileno)) as end:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server has closed it just now
    try:
        while True:
            gen.send(ready)
    except (psycopg.Error, StopIteration):
        return
