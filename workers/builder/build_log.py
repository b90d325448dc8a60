"""The log of a build: rows of the deployment's log, and live events of the revision."""

from __future__ import annotations

from collections.abc import Mapping

import gevent
from gevent.event import Event as Signal
from gevent.lock import RLock
from sqlalchemy import Connection

from shared.deployments import logs, revision_events, revisions
from shared.deployments.logs import BUILD, Line, RisingClock
from shared.deployments.revisions import ClaimedRevision
from shared.errors import Fenced, Unavailable
from shared.infra.loops import forever
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from workers.graph_host.masking import masker
from workers.runner.event_writer import RunLog, Writer

MAX_LOG_BYTES = 20 * 1024 * 1024
FLUSH_SECONDS = 0.3  # interval of storing the collected lines
EVENTS_SECONDS = 5.0  # how long the end of a build waits until its events are sent


class BuildLog:
    """The lines and statuses of one attempt. Lines are stored in batches while the block runs."""

    def __init__(self, writer: Writer, claimed: ClaimedRevision, secrets: Mapping[str, str]) -> None:
        self._claimed = claimed
        self._mask = masker(secrets.values())
        self._clock = RisingClock()
        self._lines: list[Line] = []
        self._bytes = 0
        self._closed = Signal()
        self.storing = RLock()
        self.events = RunLog(
            writer,
            claimed.revision_id,
            self,
            attempt=claimed.attempt * 2,  # the control plane uses odd numbers
            worker=claimed.owner,
            floor=claimed.floor,
        )

    def __enter__(self) -> BuildLog:
        self._flusher = gevent.spawn(
            forever,
            self._flush,
            lambda: self._closed.wait(FLUSH_SECONDS),
            what=f"storing the log of revision {self._claimed.revision_id}",
            until=self._closed.is_set,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._flusher.join()
        self._flush()
        if self.events.ended:
            self.events.flushed.wait(EVENTS_SECONDS)

    def write(self, level: str, message: str) -> None:
        """Add a message of one or more lines."""
        for part in message.splitlines() or [""]:
            if self._bytes > MAX_LOG_BYTES:
                return
            self._bytes += len(part)
            if self._bytes > MAX_LOG_BYTES:
                level, part = "WARNING", f"the build log is cut off at {MAX_LOG_BYTES // 1024 // 1024} MiB"
            self._add(level, self.shown(part))

    def shown(self, message: str) -> str:
        """Return the message with secrets masked and control characters cleaned."""
        return logs.clean(self._mask(message))

    def _add(self, level: str, message: str) -> None:
        claimed = self._claimed
        line = Line(claimed.deployment_id, claimed.revision_id, BUILD, self._clock.now(), level, message)
        self._lines.append(line)
        self.events.add(revision_events.log_payload(line))

    def add_status(self, status: RevisionStatus, message: str | None = None) -> None:
        """Add an event with the revision's new status."""
        self.events.add(revision_events.status_payload(status, message))

    def end(self, status: RevisionStatus, message: str | None = None) -> None:
        """Add the last status and the end event."""
        self.add_status(status, message)
        self.events.end(revision_events.end_payload(status))

    def reserve(self, upto: int) -> bool:
        """Reserve event numbers for the log of events."""
        try:
            with connection() as conn:
                revisions.reserve(conn, self._claimed, upto)
        except (Unavailable, Fenced):
            return False
        return True

    def fence(self, reason: str) -> None:
        """Do nothing: the lease detects that another attempt builds the revision, and stops this one."""

    def _flush(self) -> None:
        with self.storing:
            if not self._lines:
                return
            lines, self._lines = self._lines, []
            try:
                with connection() as conn:
                    logs.append(conn, lines)
            except BaseException:  # after any error the lines are not stored
                self._lines[:0] = lines
                raise

    def store(self, conn: Connection) -> None:
        """Store the collected lines. The caller must hold `storing`, so that no other greenlet is storing lines."""
        lines, self._lines = self._lines, []
        logs.append(conn, lines)
