"""Python's garbage collector, and the modules that a process loads when it starts."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Enable the garbage collector and exclude all existing objects from its scans: they stay in memory anyway."""
    gc.collect()
    gc.freeze()
    gc.enable()
