"""Places in a thread's sequence of events: made of a run's number in its thread and an event's in the run's log."""

from __future__ import annotations

EVENT_BITS = 26
NONE = 0  # before the first event of a run
FIRST = 1  # that a run has begun, whichever attempt wrote it
LAST = (1 << EVENT_BITS) - 1  # that a run has ended, whether or not there is still a log of it


def seq(run: int, event: int = NONE) -> int:
    """The number of an event in the thread; of no event, one that all of this run's are above."""
    return run << EVENT_BITS | min(event, LAST)


def parts(seq: int) -> tuple[int, int]:
    """The number of the run and of the event in its log."""
    return seq >> EVENT_BITS, seq & LAST
