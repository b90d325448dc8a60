"""Group commit of checkpoints and ends of runs: one transaction serves all runs that wait for one.

Returns to the queue are committed the same way: when a host dies, all its runs are requeued at once.

The frames of a run are written in the order in which they arrive. A run with `durability: sync` waits for each of its
checkpoints. Other runs do not wait, so the checkpoints and the end of a short run are often in the same commit. Every
write is fenced: if another attempt owns the run, the write is dropped and the execution is fenced.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, cast
from uuid import UUID

import gevent
from gevent.event import AsyncResult
from gevent.event import Event as Signal
from psycopg import Error as DatabaseError

from shared.errors import Fenced, RunyardError, Unavailable
from shared.infra.loops import RETRY_SECONDS, forever
from shared.infra.postgres import CANCELED, Driver, driver, sqlstate
from shared.runs import claims, finish
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Requeue, Wish
from shared.runs.finish import Finish
from shared.threads.checkpoints import Write

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.02  # longest delay of a checkpoint that no run waits for, to commit it with others
MOST_TIMEOUTS = 3  # of commits of one run alone
TOO_SLOW = f"its commit exceeded the statement_timeout of the database {MOST_TIMEOUTS} times"


class CommitOwner(Protocol):
    """The attempt that a commit belongs to. All writes of an attempt have the same owner."""

    run: Claimed

    def fence(self, reason: str) -> None:
        """Handle the loss of the lease: another attempt may own the run."""

    def stored(self, ask: int) -> None:
        """Handle the commit of a checkpoint that the graph waits for."""

    def refuse(self, reason: str) -> None:
        """Handle a checkpoint that the database refuses permanently."""


@dataclass(slots=True, eq=False)
class CommitEntry:
    """One entry to commit: a checkpoint frame of a run, its end, or its return to the queue.

    An entry with none of these only waits for the run's earlier entries.
    """

    owner: CommitOwner
    write: Write | None = None
    ask: int = 0
    end: Finish | None = None
    back: Requeue | None = None
    result: AsyncResult | None = field(default=None)
    retried: bool = False  # the answer of an earlier commit was lost: that commit may have succeeded

    @property
    def is_barrier(self) -> bool:
        return self.write is None and self.end is None and self.back is None

    @property
    def has_state(self) -> bool:
        return self.write is not None or (self.end is not None and self.end.values is not None)


@dataclass(frozen=True, slots=True)
class _Group:
    """Entries of one commit."""

    entries: Sequence[CommitEntry]
    timeouts: int = 0  # earlier commits of this group that exceeded the timeout

    def by_run(self) -> list[_Group]:
        by_owner: dict[int, list[CommitEntry]] = {}
        for entry in self.entries:
            by_owner.setdefault(id(entry.owner), []).append(entry)
        return [_Group(entries) for entries in by_owner.values()]


class Committer:
    """Collects the writes of runs and commits them in batches, in order."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._entries: list[CommitEntry] = []
        self._wake = Signal()
        self._urgent = Signal()
        self._greenlet = gevent.spawn(
            forever, self._commit_waiting, self._wait, what="storing checkpoints", retry=RETRY_SECONDS
        )

    def store(self, owner: CommitOwner, write: Write, ask: int) -> None:
        """Queue a checkpoint or its writes. Unless `ask` is 0, `owner.stored(ask)` is called after the commit."""
        self._entries.append(CommitEntry(owner, write=write, ask=ask))
        if ask:
            self._urgent.set()
        self._wake.set()

    def finish(self, owner: CommitOwner, end: Finish) -> NextRun | None:
        """Store a run's end after its earlier writes. Returns the thread's run that may start next.

        Raises Fenced, or RunyardError if the database refuses the data.
        """
        return cast("NextRun | None", self._enter(CommitEntry(owner, end=end)))

    def settle(self, owner: CommitOwner) -> Wish | None:
        """Wait until the run's earlier writes are committed or refused. Returns the requested cancellation, or None."""
        return cast("Wish | None", self._enter(CommitEntry(owner)))

    def give_back(self, owner: CommitOwner, back: Requeue) -> bool:
        """Return a run to the queue. Returns False if this owner has lost it or its cancellation is requested."""
        return cast("bool", self._enter(CommitEntry(owner, back=back)))

    def _enter(self, entry: CommitEntry) -> object:
        entry.result = AsyncResult()
        self._entries.append(entry)
        self._urgent.set()
        self._wake.set()
        return entry.result.get()

    def _wait(self) -> None:
        self._wake.wait()
        self._urgent.wait(LINGER_SECONDS)
        self._wake.clear()
        self._urgent.clear()

    def _commit_waiting(self) -> None:
        batch, self._entries = self._entries, []
        if not batch:
            return
        groups = deque([_Group(batch)])
        try:
            while groups:
                self._commit_first(groups)
        except Unavailable:
            waiting = [entry for group in groups for entry in group.entries]
            for entry in waiting:
                entry.retried = True
            self._entries[:0] = waiting
            raise
        except Exception:
            # Drop these entries: a bug here must not block every run of the process. Their runs are fenced, since their
            # later checkpoints must not be stored without the dropped ones.
            for entry in (entry for group in groups for entry in group.entries):
                self._fail(entry, Fenced())
                entry.owner.fence("a defect of the runner dropped its checkpoints")
            raise

    def _commit_first(self, groups: deque[_Group]) -> None:
        """Commit the first group and remove it. A group that the database refuses is divided by runs.

        A run whose own commit exceeds the timeout is committed again after all others, a few times: it must not block
        them for ever. Other temporary errors are raised.
        """
        group = groups[0]
        try:
            self._commit_together(group.entries)
        except (DatabaseError, Unavailable) as error:
            is_timeout = sqlstate(error.__cause__) == CANCELED
            if isinstance(error, Unavailable) and not is_timeout:
                raise
            runs = group.by_run()
            if len(runs) > 1:
                log.warning("a batch was refused, committing each run separately", exc_info=True)
                groups.extend(runs)
            elif is_timeout and group.timeouts < MOST_TIMEOUTS - 1:
                groups.append(_Group(group.entries, group.timeouts + 1))
            else:
                self._refuse(group.entries, TOO_SLOW if is_timeout else str(error))
        groups.popleft()

    def _refuse(self, entries: Sequence[CommitEntry], reason: str) -> None:
        """Fail these entries of a run, and its later ones that must not be stored without them.

        These are its checkpoints, and an end with values. The run then ends without values.
        """
        owner = entries[0].owner
        log.warning("run %s: the database refuses its checkpoints or its end: %s", owner.run.run_id, reason)
        owner.refuse(reason)
        later = [entry for entry in self._entries if entry.owner is owner and entry.has_state]
        self._entries = [entry for entry in self._entries if entry not in later]
        for entry in (*entries, *later):
            self._fail(entry, RunyardError(f"the database refuses it: {reason}"))

    def _commit_together(self, batch: Sequence[CommitEntry]) -> None:
        """Commit a batch and answer its entries. Takes locks in the global order: threads, ends, checkpoints."""
        writes = [entry.write for entry in batch if entry.write is not None]
        ends = [entry.end for entry in batch if entry.end is not None]
        backs = [entry.back for entry in batch if entry.back is not None]
        settled = [entry.owner.run for entry in batch if entry.is_barrier]
        to_disk = any(entry.ask for entry in batch)
        with driver() as conn:
            done, fenced = self._store(conn, ends, writes, to_disk=to_disk)
            done |= self._done_before(conn, batch, done)
            returned = claims.give_back(conn, backs) if backs else set()
            requests = claims.wishes_to_stop(conn, settled) if settled else {}
        self._answer_waiting(batch, done, returned, requests)
        self._answer_writes(batch, fenced)

    def _store(
        self, conn: Driver, ends: Sequence[Finish], writes: Sequence[Write], *, to_disk: bool
    ) -> tuple[dict[UUID, NextRun | None], set[UUID]]:
        """Store ends and checkpoints atomically. Opens a transaction only if more than one statement is needed."""
        kept = [end for end in ends if not end.run.temporary]
        temporary = [end for end in ends if end.run.temporary]
        if not kept and not writes:
            return finish.finish_runs(conn, temporary, owner=self._owner), set()
        if not temporary:
            return finish.commit(conn, kept, writes, owner=self._owner, to_disk=to_disk)
        with conn.transaction():
            done, fenced = finish.commit(conn, kept, writes, owner=self._owner, to_disk=to_disk)
            return done | finish.finish_runs(conn, temporary, owner=self._owner), fenced

    def _done_before(
        self, conn: Driver, batch: Sequence[CommitEntry], done: Mapping[UUID, NextRun | None]
    ) -> dict[UUID, NextRun | None]:
        """Return the ends that an earlier commit has stored although its answer was lost."""
        unsure = [entry.end.run for entry in batch if entry.retried and entry.end is not None]
        unsure = [run for run in unsure if run.run_id not in done]
        ended = finish.ended_before(conn, unsure, owner=self._owner) if unsure else set()
        return dict.fromkeys(ended)  # None: the threads' next runs are unknown here; upkeep notifies of them

    @staticmethod
    def _answer_waiting(
        batch: Sequence[CommitEntry],
        done: Mapping[UUID, NextRun | None],
        returned: Set[UUID],
        requests: Mapping[UUID, Wish],
    ) -> None:
        for entry in batch:
            if entry.result is None or entry.result.ready():
                continue
            run_id = entry.owner.run.run_id
            if entry.is_barrier:
                entry.result.set(requests.get(run_id))
            elif entry.back is not None:
                entry.result.set(run_id in returned)
            elif run_id in done:
                entry.result.set(done[run_id])
            else:
                entry.result.set_exception(Fenced())

    @staticmethod
    def _answer_writes(batch: Sequence[CommitEntry], fenced: set[UUID]) -> None:
        for entry in batch:
            if entry.write is None:
                continue
            if entry.owner.run.run_id in fenced:
                entry.owner.fence("its checkpoints are refused")
            elif entry.ask:
                entry.owner.stored(entry.ask)

    @staticmethod
    def _fail(entry: CommitEntry, error: Exception) -> None:
        if entry.result is not None and not entry.result.ready():
            entry.result.set_exception(error)
