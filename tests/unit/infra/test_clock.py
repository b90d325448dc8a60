"""The database's time, independent of the process's wall clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from shared.errors import Unavailable
from shared.infra import postgres
from shared.infra.postgres import connection, database_time
from shared.user_code import loopback
from tests.support import factories

DAY = 86_400


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_clock", None)


def is_the_databases(said: datetime) -> bool:
    with connection() as conn:
        there = conn.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return abs(said - there) < timedelta(hours=1)


def test_it_is_the_databases_also_while_that_is_away(db: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + DAY)
    assert is_the_databases(database_time())

    def refuse() -> float:
        raise Unavailable("The database is unavailable.")

    monkeypatch.setattr(postgres, "_read_clock", refuse)
    monkeypatch.setattr(postgres, "CLOCK_SECONDS", -1.0)
    assert is_the_databases(database_time())
    monkeypatch.setattr(postgres, "_clock", None)
    with pytest.raises(Unavailable):
        database_time()


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_token_of_own_code_is_good_on_a_machine_whose_clock_differs(
    db: Engine, own_key: None, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    token = loopback.make(factories.deployment().id, None)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + ahead)
    monkeypatch.setattr(postgres, "_clock", None)  # as in another process

    assert loopback.read(token) is not None

    later = database_time() + timedelta(seconds=loopback.VALID_SECONDS + 1)
    monkeypatch.setattr(loopback, "database_seconds", later.astimezone(UTC).timestamp)
    assert loopback.read(token) is None


def test_the_last_reading_counts_while_another_caller_reads_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "CLOCK_SECONDS", -1.0)
    monkeypatch.setattr(postgres, "_clock", (1_000.0, time.monotonic()))
    meanwhile: list[float] = []

    def read() -> float:
        meanwhile.append(postgres.database_seconds())
        return 2_000.0

    monkeypatch.setattr(postgres, "_read_clock", read)
    assert postgres.database_seconds() >= 2_000
    assert 1_000 <= meanwhile[0] < 2_000
