"""What the host's own work needs of the standard library, bound before user code can replace it there.

A graph that sets `json.dumps`, `time.sleep` or the like to something of its own harms itself, not the runs
that come after it. Threads cannot be kept so: whoever replaces them is found out (`has_own_threads`).
"""

from __future__ import annotations

import _thread
from _thread import get_ident, start_new_thread
from json import dumps as json_dumps
from json import loads as json_loads
from time import monotonic, sleep

__all__ = ["get_ident", "has_own_threads", "json_dumps", "json_loads", "monotonic", "sleep"]


def has_own_threads() -> bool:
    """Whether threads are still those of Python, and not a library's that take turns in one."""
    return _thread.start_new_thread is start_new_thread
