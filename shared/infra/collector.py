"""Python's collector of garbage, and what a process loads when it starts."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Begin to collect, where it was not done so far; what there is by now stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.enable()
