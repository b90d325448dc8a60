"""Checkpoints and ends of runs, committed together: one transaction for all runs that wait for one.

So are returns to the queue: when a host dies, all that were on it go back at once.

Frames of a run are written in the order in which they came. A run with `durability: sync` waits for each
of its checkpoints; the others only lend them here, and a short run's checkpoints and its end travel in
the same commit. Everything is fenced: what a run that is no longer ours wanted to write is dropped, and
its execution is fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, cast
from uuid import UUID

import gevent
from gevent.event import AsyncResult
from gevent.event import Event as Signal
from psycopg import Error as DatabaseError

from shared.errors import Fenced, RunyardError, Unavailable
from shared.infra.loops import forever
from shared.infra.postgres import Driver, driver
from shared.runs import claims, commits, finish
from shared.runs.claims import Claimed, Requeue, Wish
from shared.runs.eligibility import Next
from shared.runs.finish import Finish
from shared.threads.checkpoints import Write

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.02  # how long a checkpoint nobody waits for may wait for others to commit with
RETRY_SECONDS = (0.05, 1.0)  # the first pause while the database is away, and the longest


class Owner(Protocol):
    """What a run's execution offers to the committer."""

    run: Claimed

    def fence(self, why: str) -> None:
        """The run is not ours any more."""

    def written(self, ask: int) -> None:
        """A checkpoint the graph waits for is stored."""

    def unwritable(self, error: Exception) -> None:
        """A checkpoint cannot be stored, now or ever."""


@dataclass(slots=True)
class CommitEntry:
    """One thing to commit: a frame of a run, its end, its return to the queue, or none of these: who waits
    for all before it."""

    owner: Owner
    write: Write | None = None
    ask: int = 0
    end: Finish | None = None
    back: Requeue | None = None
    result: AsyncResult | None = field(default=None)
    retried: bool = False  # an earlier commit's answer was lost: it may have been carried out

    @property
    def waits_only(self) -> bool:
        return self.write is None and self.end is None and self.back is None


class Committer:
    """Collects what runs want stored and commits it in batches, in order."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._entries: list[CommitEntry] = []
        self._wake = Signal()
        self._urgent = Signal()
        self._greenlet = gevent.spawn(
            forever, self._commit_waiting, self._wait, what="storing checkpoints", retry=RETRY_SECONDS
        )

    def store(self, owner: Owner, write: Write, ask: int) -> None:
        """Store a checkpoint or its writes; `ask` not 0: `owner.written(ask)` follows."""
        self._entries.append(CommitEntry(owner, write=write, ask=ask))
        if ask:
            self._urgent.set()
        self._wake.set()

    def finish(self, owner: Owner, end: Finish) -> Next | None:
        """Store a run's end after everything it stored before.

        Raises Fenced, or RunyardError when the database refuses what is to be stored.
        """
        return cast("Next | None", self._enter(CommitEntry(owner, end=end)))

    def settle(self, owner: Owner) -> Wish | None:
        """Return when everything this run stored before is committed or refused; whether it is to be stopped."""
        return cast("Wish | None", self._enter(CommitEntry(owner)))

    def give_back(self, owner: Owner, back: Requeue) -> bool:
        """Return a run to the queue; False when it is not this owner's any more, or to be stopped."""
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
        try:
            self._commit(batch)
        except Unavailable:
            for entry in batch:
                entry.retried = True
            self._entries[:0] = batch
            raise
        except Exception:  # out of the others' way: a bug here must not stop every run of the process
            for entry in batch:
                self._fail(entry, Fenced())
            raise

    def _commit(self, batch: Sequence[CommitEntry]) -> None:
        try:
            self._commit_together(batch)
        except DatabaseError:
            log.warning("a batch of checkpoints was refused, going on run by run", exc_info=True)
            self._commit_one_by_one(batch)

    def _commit_one_by_one(self, batch: Sequence[CommitEntry]) -> None:
        """Push the run whose data the database refuses out of the others' way."""
        by_owner: dict[int, list[CommitEntry]] = {}
        for entry in batch:
            by_owner.setdefault(id(entry.owner), []).append(entry)
        for entries in by_owner.values():
            try:
                self._commit_together(entries)
            except DatabaseError as error:
                self._refuse(entries, error)

    def _refuse(self, entries: Sequence[CommitEntry], error: DatabaseError) -> None:
        """The database will not have this; nothing of the run that came later may be stored either."""
        owner = entries[0].owner
        log.warning("run %s: what it wants to store is refused: %s", owner.run.run_id, error)
        owner.unwritable(error)
        self._entries = [entry for entry in self._entries if entry.owner is not owner or entry.write is None]
        for entry in entries:
            self._fail(entry, RunyardError(f"the database refuses it: {error}"))

    def _commit_together(self, batch: Sequence[CommitEntry]) -> None:
        """Locks, ends, checkpoints: in the order in which locks are taken everywhere."""
        writes = [entry.write for entry in batch if entry.write is not None]
        ends = [entry.end for entry in batch if entry.end is not None]
        backs = [entry.back for entry in batch if entry.back is not None]
        settled = [entry.owner.run for entry in batch if entry.waits_only]
        to_disk = any(entry.ask for entry in batch)
        with driver() as conn:
            done, fenced = self._store(conn, ends, writes, to_disk=to_disk)
            done |= self._done_before(conn, batch, done)
            given = claims.give_back(conn, backs) if backs else set()
            wishes = claims.wishes_to_stop(conn, settled) if settled else {}
        self._answer_waiting(batch, done, given, wishes)
        self._answer_written(batch, fenced)

    def _store(
        self, conn: Driver, ends: Sequence[Finish], writes: Sequence[Write], *, to_disk: bool
    ) -> tuple[dict[UUID, Next | None], set[UUID]]:
        """All or nothing; a statement by itself is a transaction."""
        kept = [end for end in ends if not end.run.temporary]
        temporary = [end for end in ends if end.run.temporary]
        if not kept and not writes:
            return finish.finish_runs(conn, temporary, owner=self._owner), set()
        if not temporary:
            return commits.commit(conn, kept, writes, owner=self._owner, to_disk=to_disk)
        with conn.transaction():
            done, fenced = commits.commit(conn, kept, writes, owner=self._owner, to_disk=to_disk)
            return done | finish.finish_runs(conn, temporary, owner=self._owner), fenced

    def _done_before(
        self, conn: Driver, batch: Sequence[CommitEntry], done: Mapping[UUID, Next | None]
    ) -> dict[UUID, Next | None]:
        """Ends that an earlier commit carried out, whose answer was lost."""
        unsure = [entry.end.run for entry in batch if entry.retried and entry.end is not None]
        unsure = [run for run in unsure if run.run_id not in done]
        found = finish.ended_before(conn, unsure, owner=self._owner) if unsure else set()
        return dict.fromkeys(found)  # upkeep notifies of what comes next

    @staticmethod
    def _answer_waiting(
        batch: Sequence[CommitEntry],
        done: Mapping[UUID, Next | None],
        given: Set[UUID],
        wishes: Mapping[UUID, Wish],
    ) -> None:
        for entry in batch:
            if entry.result is None or entry.result.ready():
                continue
            run_id = entry.owner.run.run_id
            if entry.waits_only:
                entry.result.set(wishes.get(run_id))
            elif entry.back is not None:
                entry.result.set(run_id in given)
            elif run_id in done:
                entry.result.set(done[run_id])
            else:
                entry.result.set_exception(Fenced())

    @staticmethod
    def _answer_written(batch: Sequence[CommitEntry], fenced: set[UUID]) -> None:
        for entry in batch:
            if entry.write is None:
                continue
            if entry.owner.run.run_id in fenced:
                entry.owner.fence("its checkpoints are refused")
            elif entry.ask:
                entry.owner.written(entry.ask)

    @staticmethod
    def _fail(entry: CommitEntry, error: Exception) -> None:
        if entry.result is not None and not entry.result.ready():
            entry.result.set_exception(error)
