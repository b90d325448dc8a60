"""Protects a process's memory and files from other users, and lets other greenlets run between long steps."""

from __future__ import annotations

import os
import time

from shared.infra import system

YIELD_SECONDS = 0.0001


def close_memory() -> None:
    """Prevent other processes of this user from reading this process's memory and environment through /proc."""
    system.prctl(system.PR_SET_DUMPABLE, 0)


def owners_alone(path: str, flags: int) -> int:
    """Opener for `open` that makes the file accessible to its owner only, even if it already exists."""
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number


def let_others_run() -> None:
    """Yield to other greenlets under gevent, else to other threads, between two long steps.

    The sleep must have a duration: gevent's `sleep(0)` does not poll sockets.
    """
    time.sleep(YIELD_SECONDS)
