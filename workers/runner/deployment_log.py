"""Writing of deployment logs: the lines of user code and of its graph hosts.

A writer never waits; one greenlet stores the collected lines. A host that writes more than its allowance loses lines,
and the deployment's log states how many. While the database is unreachable, lines beyond MOST_LINES are dropped, and
the runner's own log states how many.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from uuid import UUID

import gevent
from gevent.event import Event as Signal

from shared.deployments.logs import DEPLOY, Line, RisingClock, append, clean, notify
from shared.errors import Unavailable
from shared.infra.loops import forever
from shared.infra.postgres import connection
from shared.runs.claims import Claimed
from workers.graph_host.masking import masker
from workers.runner.host import Output

log = logging.getLogger(__name__)

MOST_LINES = 20_000
AT_ONCE = 500
PAUSE_SECONDS = 0.5
SETTLE_SECONDS = 2.0  # how long a run's end waits for its lines
RETRY_SECONDS = (1.0, 1.0)
BURST_LINES, LINES_A_SECOND = 10_000, 200
REPORT_SECONDS = 1.0
REMEMBERED_REVISIONS = 1_000  # revisions whose allowance for lines about ended runs is kept


class Allowance:
    """The rate limit of one host's lines: BURST_LINES at once, then LINES_A_SECOND per second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self._clock = clock
        self._left = float(BURST_LINES)
        self._seen_at = clock()

    def take(self) -> bool:
        """Whether one more line may be written. After the first refused line, refuse all until `report` is called."""
        now = self._clock()
        self._left = min(BURST_LINES, self._left + (now - self._seen_at) * LINES_A_SECOND)
        self._seen_at = now
        if self.dropped or self._left < 1:
            self.dropped += 1
            return False
        self._left -= 1
        return True

    def report(self) -> int:
        """Return the number of dropped lines, and allow lines again."""
        dropped, self.dropped = self.dropped, 0
        return dropped


class DeployLog:
    """The writer of deployment logs. A process has one."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._dropped = 0
        self._clock = RisingClock()
        self._wake = Signal()
        self._urgent = Signal()
        self._unstored: Counter[UUID | None] = Counter()  # number of lines by run
        self._settled: dict[UUID, Signal] = {}  # set when all lines of the run are stored
        self._of_ends = functools.lru_cache(REMEMBERED_REVISIONS)(functools.partial(self.of, secrets=()))
        self._greenlet = gevent.spawn(
            forever, self._store, self._wait, what="storing deployment logs", retry=RETRY_SECONDS
        )

    def of(self, deployment_id: UUID, revision_id: UUID, secrets: Iterable[str]) -> Output:
        """Return a function that writes lines of one revision and masks these secret values."""
        mask = masker(secrets)
        allowance = Allowance()

        def write(level: str, message: str, run_id: UUID | None) -> None:
            if allowance.take():
                store(level, message, run_id)
            elif allowance.dropped == 1:
                gevent.spawn_later(REPORT_SECONDS, report)

        def report() -> None:
            store("WARNING", f"{allowance.report()} lines dropped: more than {LINES_A_SECOND} a second", None)

        def store(level: str, message: str, run_id: UUID | None) -> None:
            if len(self._lines) >= MOST_LINES:
                self._dropped += 1
                return
            known = level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "INFO"
            text = clean(mask(message))
            line = Line(deployment_id, revision_id, DEPLOY, self._clock.now(), known, text, run_id)
            self._lines.append(line)
            self._unstored[run_id] += 1
            self._wake.set()

        return write

    def add_end(self, run: Claimed, status: str, seconds: float) -> None:
        """Write the line that states how a run ended."""
        how = f"run {run.run_id} of {run.graph_id!r}: {status} after {seconds:.2f} s, attempt {run.attempt}"
        self._of_ends(run.deployment_id, run.revision_id)("INFO", how, run.run_id)

    def hurry(self, run_id: UUID) -> None:
        """Store the waiting lines now if any of them are of this run."""
        if self._unstored[run_id]:
            self._urgent.set()

    def settle(self, run_id: UUID) -> None:
        """Wait until a run's lines are stored, at most SETTLE_SECONDS."""
        if self._unstored[run_id]:
            settled = self._settled.setdefault(run_id, Signal())
            settled.wait(SETTLE_SECONDS)
            self._settled.pop(run_id, None)

    def _wait(self) -> None:
        self._wake.wait()
        self._urgent.wait(PAUSE_SECONDS)
        self._wake.clear()
        self._urgent.clear()

    def _store(self) -> None:
        while self._lines:
            batch = [self._lines.popleft() for _ in range(min(AT_ONCE, len(self._lines)))]
            try:
                with connection() as conn:
                    append(conn, batch)
                notify(batch)
            except Unavailable:
                self._lines.extendleft(reversed(batch))
                raise
            self._count_stored(batch)
        if self._dropped:
            log.warning("%d lines of deployment logs were dropped", self._dropped)
            self._dropped = 0

    def _count_stored(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._unstored[line.run_id] -= 1
            if not self._unstored[line.run_id]:
                del self._unstored[line.run_id]
                if settled := self._settled.get(line.run_id):  # type: ignore[arg-type]
                    settled.set()
