"""The signals that ask a process of `workers` to stop. The first one does: what comes after it changes nothing."""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def ignore() -> None:
    """This process stops already."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
