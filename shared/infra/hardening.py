"""What every process of the service does to itself before anything else, and how its long steps let others go on."""

from __future__ import annotations

import ctypes
import sys
import time

PR_SET_DUMPABLE = 4
TURN_SECONDS = 0.0001


def close_memory() -> None:
    """Keep other processes of this user from reading our memory and environment through /proc."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def let_others_run() -> None:
    """Let others go on, between two long steps: greenlets where gevent is, else threads.

    It must be a sleep of some length: a `sleep(0)` of gevent's does not look at what has come over sockets.
    """
    time.sleep(TURN_SECONDS)
