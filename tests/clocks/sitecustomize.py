"""A wall clock that is wrong, for processes of a platform under test, started by `python -m tests.clocks up`.

TEST_CLOCKS says which ones, and by how many seconds: `web=86400 runner=-86400`.
"""

from __future__ import annotations

import os
import sys
import time

MARKS = {"web": "web/gunicorn.py", "runner": "runner@", "builder": "builder@"}  # in their command lines


def offset() -> float:
    """By how much the clock of this process is wrong."""
    command = " ".join(sys.orig_argv)
    for part in os.environ.get("TEST_CLOCKS", "").split():
        name, _, seconds = part.partition("=")
        if MARKS[name] in command:
            return float(seconds)
    return 0.0


def shift(seconds: float) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)


if offset():
    shift(offset())
