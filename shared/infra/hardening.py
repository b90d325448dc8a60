"""Keeps a process's memory and files from other users, and its long steps from holding up the rest of it."""

from __future__ import annotations

import os
import time

from shared.infra import system

YIELD_SECONDS = 0.0001


def close_memory() -> None:
    """Keep other processes of this user from reading our memory and environment through /proc."""
    system.prctl(system.PR_SET_DUMPABLE, 0)


def owners_alone(path: str, flags: int) -> int:
    """An opener for `open`: others can neither read the file nor lock it, also when it has been there before."""
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number


def let_others_run() -> None:
    """Yield to other greenlets where gevent is, else to other threads, between two long steps.

    It must be a sleep of some length: a `sleep(0)` of gevent's does not look at what has come over sockets.
    """
    time.sleep(YIELD_SECONDS)
