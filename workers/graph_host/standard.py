"""Functions of the standard library that the host itself uses, bound before user code can replace them.

A graph that replaces `json.dumps`, `time.sleep` or similar functions then harms only itself and no later runs. Threads
cannot be protected this way, so `has_own_threads` detects their replacement.
"""

from __future__ import annotations

import _thread
from _thread import get_ident, start_new_thread
from json import dumps as json_dumps
from json import loads as json_loads
from time import monotonic, sleep

__all__ = ["get_ident", "has_own_threads", "json_dumps", "json_loads", "monotonic", "sleep"]


def has_own_threads() -> bool:
    """Whether threads are still Python's own, and not green threads of a library such as gevent."""
    return _thread.start_new_thread is start_new_thread
