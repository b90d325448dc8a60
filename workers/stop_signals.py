"""Signals that stop a process of `workers`. Only the first one has an effect."""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def ignore() -> None:
    """Ignore further stop signals: this process is stopping already."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
