"""Idle readers of threads: one query checks all of them and wakes those that have missed an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared import thread_runs
from shared.deployments.deployments import DeploymentRef
from shared.eventlog.hub import Reader
from shared.infra.postgres import connection
from shared.sql import Conn, Statement
from shared.thread_runs import Look, ThreadReader
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db")

SOON = 0.2  # seconds between two checks in these tests


class Watching(ThreadReader[str]):
    """A reader that yields nothing and counts its own queries."""

    def __init__(self, deployment: DeploymentRef, thread_id: UUID) -> None:
        super().__init__(deployment.id, thread_id)
        self.looks = 0
        self.wake_ups = Reader(b"", before_creation=True)
        self.spells = self.batches(self.wake_ups, lambda: 3_600.0)

    def leave(self) -> None:
        self.spells.close()  # type: ignore[attr-defined]  a generator

    def _look(self) -> Look | None:
        self.looks += 1
        with connection() as conn:
            query = text("SELECT last_seq FROM thread WHERE thread_id = :id")
            last = conn.execute(query, {"id": self._thread_id}).scalar()
        return None if last is None else Look(last, None)

    def _run(self, run: Any, quiet_seconds: Any) -> Iterator[list[str]]:
        raise AssertionError("no look has found a run")


Watch = Callable[[int], Sequence[Watching]]


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The executed statements that check several readers."""
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", SOON)
    monkeypatch.setattr(thread_runs, "_idle_readers", thread_runs._IdleReaders())
    executed: list[str] = []
    rows = Statement.rows

    def note(statement: Statement, conn: Conn, **parameters: Any) -> list[dict[str, Any]]:
        executed.append(statement.text)
        return rows(statement, conn, **parameters)

    monkeypatch.setattr(Statement, "rows", note)
    return executed


@pytest.fixture
def watching(deployment: DeploymentRef, executed: list[str]) -> Iterator[Watch]:
    """Create readers that have queried once and wait. As with greenlets, each continues only when it is woken."""
    made: list[Watching] = []

    def watch(count: int) -> Sequence[Watching]:
        readers = [Watching(deployment, factories.thread(deployment.id)) for _ in range(count)]
        for reader in readers:
            reader.wake_ups.wake()
            assert next(reader.spells) == []
        made.extend(readers)
        return readers

    yield watch
    for reader in made:
        reader.leave()


def test_one_statement_looks_for_all(watching: Watch, executed: list[str]) -> None:
    first, *others = watching(50)
    time.sleep(SOON)  # all are due now, however long their creation took
    executed.clear()
    first.wake_ups.wake()
    assert next(first.spells) == []

    assert len(executed) == 1
    assert [reader.looks for reader in (first, *others)] == [1] * 50
    assert not any(reader.wake_ups.take(0)[0] for reader in others), "nobody has missed anything"


def test_who_has_missed_something_is_woken_and_looks(watching: Watch, executed: list[str]) -> None:
    first, second, third = watching(3)
    with connection() as conn:
        move = text("UPDATE thread SET last_seq = 7 WHERE thread_id = :id")
        conn.execute(move, {"id": second._thread_id})
        conn.execute(text("DELETE FROM thread WHERE thread_id = :id"), {"id": third._thread_id})
    time.sleep(SOON)
    first.wake_ups.wake()
    assert next(first.spells) == []

    assert next(second.spells) == []
    assert (first.looks, second.looks) == (1, 2)
    assert list(third.spells) == [], "its thread is gone"


def test_a_reader_that_leaves_is_looked_for_no_longer(watching: Watch, executed: list[str]) -> None:
    readers = watching(3)
    for reader in readers:
        reader.leave()
    time.sleep(SOON)
    thread_runs._idle_readers.poll()

    assert executed == []
    assert not thread_runs._idle_readers._all
