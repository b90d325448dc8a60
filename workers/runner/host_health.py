"""The health of one graph host, judged from its answers to pings and checks.

A ping shows that the event loop turns. A check asks the host whether it executes the runs that have sent no frames for
a while: answering needs the same parts of the host as a run does, and user code may have broken those.

`HostHealth` sends nothing itself. `workers/runner/host.py` sends the pings and checks, and acts on the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

STALLED_SECONDS = 5.0  # a host that leaves a ping unanswered for this long gets no new runs
QUIET_SECONDS = 5.0  # a new run without a frame for this long is checked: does the host execute it?
LONG_QUIET_SECONDS = 30.0  # … of a run that has already sent frames
PONGS = 5  # a host that answers this many pings while a check stays unanswered is unfit


class HostHealth:
    """Health of a host: silence, delay, starved runs, and runs that it may not execute.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.delay = 0.0  # seconds until the latest pong
        self.queued = 0  # node calls that waited for a thread at the time of that pong
        self._clock = clock
        self._starved: set[bytes] = set()  # runs with node calls, all of which had waited long for a thread
        self._pinged_at: float | None = None  # of the ping that is still unanswered
        self._check_due_at: dict[bytes, float] = {}  # by run
        self._active: set[bytes] = set()  # runs whose frames have arrived since the last look at quiet runs
        self._pending_check: set[bytes] | None = None  # runs of the check that is still unanswered
        self._pongs = 0  # pongs since that check was sent

    # pings

    @property
    def silence(self) -> float:
        """Seconds since the ping that is still unanswered; 0 if there is none."""
        return 0.0 if self._pinged_at is None else self._clock() - self._pinged_at

    @property
    def is_stalled(self) -> bool:
        return self.silence >= STALLED_SECONDS

    @property
    def starved(self) -> set[UUID]:
        """Runs that wait for a thread in this host and should move to another host."""
        return {UUID(bytes=id) for id in self._starved & self._check_due_at.keys()}

    def ping(self) -> bool:
        """Note that a ping is sent now. Returns False if the last one is still unanswered; then none may be sent."""
        if self._pinged_at is not None:
            return False
        self._pinged_at = self._clock()
        return True

    def pong(self, condition: dict[str, Any] | None) -> None:
        """Note a pong, with the condition that it reports if calls wait or the process is damaged."""
        if self._pinged_at is not None:
            self.delay, self._pinged_at = self._clock() - self._pinged_at, None
            self._pongs += 1
        self.queued = int(condition["queued"]) if condition else 0
        self._starved = {bytes.fromhex(id) for id in condition["starved"]} if condition else set()

    # runs

    def run_entered(self, id: bytes) -> None:
        self._check_due_at[id] = self._clock() + QUIET_SECONDS

    def run_left(self, id: bytes) -> None:
        self._check_due_at.pop(id, None)

    def frame_received(self, id: bytes) -> None:
        self._active.add(id)

    def next_check(self) -> set[bytes]:
        """Return the quiet runs that a check is to ask about now; empty if there are none, or one is unanswered."""
        self._postpone_active()
        if self._pending_check is not None:
            return set()
        quiet = self._due(set(self._check_due_at))
        if quiet:
            self._pending_check, self._pongs = quiet, 0
        return quiet

    @property
    def ignores_checks(self) -> bool:
        """Whether the host answers nothing but pings."""
        return self._pending_check is not None and self._pongs >= PONGS

    def checked(self, executed: set[bytes]) -> set[bytes]:
        """Note the answer to a check: the runs that the host executes. Returns the runs to displace."""
        pending, self._pending_check = self._pending_check or set(), None
        self._active |= executed
        return self._displace(pending - executed)

    def displace_all(self) -> set[bytes]:
        """Return the quiet runs, which must go to another host. Includes runs that entered after the check was sent."""
        return self._displace(set(self._check_due_at))

    def _displace(self, ids: set[bytes]) -> set[bytes]:
        """Forget and return the runs that must go to another host: those of `ids` that have not sent a frame in the meantime."""
        self._postpone_active()
        displaced = self._due(ids)
        for id in displaced:
            del self._check_due_at[id]
        return displaced

    def _due(self, ids: set[bytes]) -> set[bytes]:
        now = self._clock()
        return {id for id in ids & self._check_due_at.keys() if self._check_due_at[id] <= now}

    def _postpone_active(self) -> None:
        for id in self._active & self._check_due_at.keys():
            self._check_due_at[id] = self._clock() + LONG_QUIET_SECONDS
        self._active.clear()
