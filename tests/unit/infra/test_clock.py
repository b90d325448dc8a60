"""The database's time, independent of the process's wall clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from shared.errors import Unavailable
from shared.infra import clock
from shared.infra.postgres import connection
from shared.user_code import loopback
from tests.support import factories

DAY = 86_400


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_known", None)


def is_the_databases(said: datetime) -> bool:
    with connection() as conn:
        there = conn.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return abs(said - there) < timedelta(hours=1)


def test_it_is_the_databases_also_while_that_is_away(db: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + DAY)
    assert is_the_databases(clock.now())

    def refuse() -> float:
        raise Unavailable("The database is unavailable.")

    monkeypatch.setattr(clock, "_ask", refuse)
    monkeypatch.setattr(clock, "KNOWN_SECONDS", -1.0)
    assert is_the_databases(clock.now())
    monkeypatch.setattr(clock, "_known", None)
    with pytest.raises(Unavailable):
        clock.now()


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_token_of_own_code_is_good_on_a_machine_whose_clock_differs(
    db: Engine, own_key: None, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    token = loopback.make(factories.deployment().id, None)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + ahead)
    monkeypatch.setattr(clock, "_known", None)  # as in another process

    assert loopback.read(token) is not None

    later = clock.now() + timedelta(seconds=loopback.VALID_SECONDS + 1)
    monkeypatch.setattr(clock, "seconds", later.astimezone(UTC).timestamp)
    assert loopback.read(token) is None
