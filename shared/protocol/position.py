"""Positions in a thread's sequence of events: a run's number in the thread, and an event's number in the run's log."""

from __future__ import annotations

EVENT_BITS = 26
NONE = 0  # before the first event of a run
FIRST = 1  # the start of a run, whichever attempt wrote it
LAST = (1 << EVENT_BITS) - 1  # the end of a run, whether or not its log still exists


def seq(run: int, event: int = NONE) -> int:
    """Return the number of an event in its thread. The default is the number before all events of the run."""
    return run << EVENT_BITS | min(event, LAST)


def parts(seq: int) -> tuple[int, int]:
    """Return the number of the run and the number of the event in its log."""
    return seq >> EVENT_BITS, seq & LAST
