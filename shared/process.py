"""What every process of the service does to itself before it does anything else."""

from __future__ import annotations

import ctypes
import sys

PR_SET_DUMPABLE = 4


def close_memory() -> None:
    """Keep other processes of this user from reading our memory and environment through /proc."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
