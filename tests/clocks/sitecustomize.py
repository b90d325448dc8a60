"""A wall clock that is wrong, for the processes of a machine under test, whose PYTHONPATH begins with this folder.

TEST_CLOCKS says which ones, and by how many seconds: `web=86400 runner=-86400`.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

from uuid_utils import compat

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
    shift_datetime(datetime.timedelta(seconds=seconds))
    shift_uuid7()


def shift_datetime(by: datetime.timedelta) -> None:
    """What asks the clock is changed; all that is made is what the library makes."""
    right = datetime.datetime

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, right)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, right)

    class Shifted(right, metaclass=Kind):
        def __new__(cls, *args: Any, **options: Any) -> Any:
            return right(*args, **options)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return right.now(tz) + by

        @classmethod
        def utcnow(cls) -> Any:
            return right.utcnow() + by

    datetime.datetime = Shifted


def shift_uuid7() -> None:
    made = compat.uuid7

    def shifted(timestamp: int | None = None, nanos: int | None = None) -> Any:
        if timestamp is None:
            timestamp, nanos = divmod(time.time_ns(), 1_000_000_000)
        return made(timestamp, nanos)

    compat.uuid7 = shifted


if offset():
    shift(offset())
