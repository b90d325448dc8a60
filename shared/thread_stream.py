"""One continuous stream of all runs of a thread, optionally with the thread's state after each change.

Runs of a thread are executed one after the other, and the stream contains their event logs in this order. An event id
is `<run>-<event>`: the number of the run in its thread and the number of the event in the run's log. If the stream
includes states, the id ends with `-<time>`, the time of the last state sent. `6-0` is the position after all of run 5.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from redis.exceptions import RedisError

from shared.errors import NotFound
from shared.eventlog import events, follow
from shared.eventlog.events import END, EXPIRED, Event
from shared.eventlog.hub import hub
from shared.infra import redis
from shared.infra.postgres import connection, dumps
from shared.models import LIVE_RUN_STATUSES
from shared.runs import end_event
from shared.sql import statement
from shared.thread_runs import Look, ThreadReader
from shared.threads import state

log = logging.getLogger(__name__)

RUN_MODES, LIFECYCLE, STATE_UPDATE = MODES = ("run_modes", "lifecycle", "state_update")
MAX_DIGITS = 17

Keep = Callable[[str], str | None]  # an event's name in its log → its name for the reader; None: omit it


class ThreadEvent(NamedTuple):
    """An event of the stream."""

    id: str
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A reader's position: after event `seq` of the thread's run number `run`."""

    run: int
    seq: int
    state_at: int | None = None  # time of the newest state the reader has, in microseconds

    @classmethod
    def parse(cls, last_event_id: str | None) -> StreamPosition | None:
        """Return the position of an event id. Returns None (no replay) if the id is missing or of another format."""
        event_id = (last_event_id or "").strip()
        if event_id in ("-", "-1", "0"):
            return cls(1, 0, 0)
        match = re.fullmatch(r"(\d+)-(\d+)(?:-(\d+))?", event_id, re.ASCII)
        if match is None or max(map(len, event_id.split("-"))) > MAX_DIGITS:
            return None
        run, seq, state_at = match.groups()
        return cls(int(run), int(seq), None if state_at is None else int(state_at))


_BEGIN = statement("threads.begin_stream")
_NEXT = statement("threads.next_of_stream")


class ThreadStream(ThreadReader[ThreadEvent]):
    """A reader of one thread, from `position`, or from now on if that is None.

    `filter_of` returns, for a run's `kwargs`, the filter for the events that the run's creator requested.
    """

    def __init__(
        self,
        deployment_id: UUID,
        thread_id: UUID,
        *,
        modes: Collection[str],
        position: StreamPosition | None,
        filter_of: Callable[[Mapping[str, Any]], Keep],
        retention_seconds: int,
    ) -> None:
        super().__init__(deployment_id, thread_id)
        self._modes, self._filter_of = frozenset(modes), filter_of
        self._sends_states = STATE_UPDATE in modes
        self._position = position
        self._retention = retention_seconds
        self._known = 0  # last run before those that are live or new: see the statement _NEXT
        self._newest = 0  # newest run when the stream began
        self._state_at = 0
        self._has_run = False  # the last poll found a run to follow

    def open(self) -> None:
        """Determine where the stream begins. Raises NotFound if the thread does not exist."""
        with connection() as conn:
            row = _BEGIN.row(conn, **self._keys)
        if row is None:
            raise NotFound(f"Thread with ID {self._thread_id} not found")
        self._known, self._newest = row["known"], row["last_seq"]
        self._after = self._known if self._position is None else min(self._position.run - 1, self._known)
        state_at = self._position.state_at if self._position is not None else None
        self._state_at = _microseconds(row["state_updated_at"]) if state_at is None else state_at

    def _look(self) -> Look | None:
        position = self._position
        bounds = {
            "after": self._after,
            "known": self._known,
            "retention": self._retention,
            "reading": position.run if position is not None and position.seq else None,
        }
        with connection() as conn:
            row = _NEXT.row(conn, **self._keys, **bounds)
        if row is None:
            return None
        run = None if row["run_id"] is None else row
        return Look(row["last_seq"], run, _microseconds(row["state_updated_at"]))

    def _between(self, look: Look) -> Sequence[list[ThreadEvent]]:
        """Return the state if it has changed, but never before the run that has changed it."""
        has_run, self._has_run = self._has_run, look.run is not None
        has_changed = look.state_at != self._state_at
        is_due = self._sends_states and has_changed and (has_run or look.run is None)
        return [self._state(look)] if is_due else ()

    def _state(self, look: Look) -> list[ThreadEvent]:
        """Return the newest state. It may be newer than the one that `look` saw, and is then sent twice."""
        with connection() as conn:
            record = state.newest(conn, self._deployment_id, self._thread_id).record
        self._state_at = look.state_at
        return [ThreadEvent(self._id(self._after + 1, 0), "state_update", dumps(record).encode())]

    def _id(self, run: int, seq: int) -> str:
        return f"{run}-{seq}-{self._state_at}" if self._sends_states else f"{run}-{seq}"

    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[ThreadEvent]]:
        """Yield the events of one run's log that the reader's modes include, and the end of the run."""
        run_id, after, keep = run["run_id"], self._begin(run), self._keep(run)
        with hub().reader(run_id) as reader:
            newest, log_has_ended = end_event.extent(run_id)
            run_has_ended = run["status"] not in LIVE_RUN_STATUSES
            if not newest and after and run_has_ended and run["seq_reserved"] <= after:
                return  # the log was lost after the reader has received its end
            # The numbers of an empty log were used before the log was lost, so the position is kept.
            if after is not None and newest:
                after = min(after, newest)
            if log_has_ended and after == newest:
                return  # the reader has received the end
            seq = after or 0
            for batch in follow.follow(
                reader,
                run_id,
                after=after,
                ended=partial(end_event.end_of_lost, self._deployment_id, run_id),
                quiet_seconds=quiet_seconds,
            ):
                sent: list[ThreadEvent] = []
                for event in batch:
                    seq = event.seq or seq + (event is not EXPIRED)
                    if name := keep(event.name):
                        sent.append(self._sent(event, name, run["created_seq"], seq, run_id))
                yield sent

    def _begin(self, run: Any) -> int | None:
        """Return the number of the event in the run's log after which to continue. None means from now on."""
        if run["created_seq"] > self._newest:
            return 0
        if self._position is not None and (run["kwargs"]["resumable"] or run["created_seq"] <= self._known):
            return self._position.seq if run["created_seq"] == self._position.run else 0
        was_first = run["created_seq"] == self._known + 1
        return None if was_first and run["attempt"] else 0

    def _keep(self, run: Any) -> Keep:
        """Return the filter of a run's events for the modes. A run that is not replayed sends only its end."""
        if (
            run["created_seq"] <= self._known
            and not run["kwargs"]["resumable"]
            and self._modes != {STATE_UPDATE}
        ):
            return lambda name: name if name == END else None
        if RUN_MODES in self._modes:
            keep = self._filter_of(run["kwargs"])
            return lambda name: name if name in (END, EXPIRED.name) else keep(name)
        if LIFECYCLE in self._modes:
            return lambda name: name if name in ("metadata", END) else None
        return lambda name: None

    def _sent(self, event: Event, name: str, run: int, seq: int, run_id: UUID) -> ThreadEvent:
        if event.name != END:
            return ThreadEvent(self._id(run, seq), name, event.data)
        done = {"status": "run_done", "run_id": str(run_id)}
        return ThreadEvent(self._id(run, seq), "metadata", dumps(done).encode())


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def channel(thread_id: UUID) -> bytes:
    """Return the channel on which readers of a thread are woken."""
    return f"{redis.PREFIX}thread:{thread_id}".encode()


def notify(thread_id: UUID) -> None:
    """Wake the readers of a thread after a commit that has written its state without a run."""
    try:
        redis.events(thread_id).publish(channel(thread_id), events.WAKE_UP)
    except RedisError as error:
        log.warning(
            "thread %s: could not notify its readers of the new state, they see it later: %s",
            thread_id,
            error,
        )
