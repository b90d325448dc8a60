"""Reads that may lag go to a standby that has caught up, otherwise to the primary. The standby is real."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from shared.errors import NotFound
from shared.infra import postgres, replica
from tests.support import replication
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URLs of a primary and of its standby."""
    folder = tmp_path_factory.mktemp("replicated")
    with replication.primary(folder / "primary") as primary:
        with psycopg.connect(primary, autocommit=True) as conn:
            conn.execute("CREATE TABLE written (number int)")
        with replication.standby(primary, folder / "standby") as standby:
            yield primary, standby


@pytest.fixture(autouse=True)
def _connected(servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replica, "MAX_LAG_SECONDS", 60.0)  # tolerates a process that waits for a CPU
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.1)
    before = postgres._engine, postgres._quick
    postgres.connect(servers[0], application="runyard test")
    replica.connect(servers[1])
    yield
    if (used := replica.replica()) is not None:
        used.close()
    replica.connect(None)
    for engine in filter(None, (postgres._engine, postgres._quick)):
        engine.dispose()
    postgres._engine, postgres._quick = before


def is_standby(conn: Connection) -> bool:
    return bool(conn.execute(text("SELECT pg_is_in_recovery()")).scalar_one())


def numbers(conn: Connection) -> list[int]:
    return list(conn.execute(text("SELECT number FROM written ORDER BY 1")).scalars())


def write(number: int) -> None:
    with postgres.connection() as conn:
        conn.execute(text("INSERT INTO written VALUES (:number)"), {"number": number})


def test_a_standby_that_has_kept_up_is_read_and_one_that_has_not_is_not(
    servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "MAX_LAG_SECONDS", 1.0)
    assert replica.read(is_standby) in (False, True)  # the first read may not know the lag yet
    wait_until(lambda: replica.read(is_standby), what="the standby to be read")

    with psycopg.connect(servers[1], autocommit=True) as standby:
        standby.execute("SELECT pg_wal_replay_pause()")
        write(1)
        wait_until(lambda: not replica.read(is_standby), what="the primary to be read")
        assert replica.read(numbers)[-1:] == [1]
        standby.execute("SELECT pg_wal_replay_resume()")

    wait_until(lambda: replica.read(is_standby), what="the standby to be read again")
    assert replica.read(numbers)[-1:] == [1]


def test_idle_servers_do_not_look_like_a_lag() -> None:
    wait_until(lambda: replica.read(is_standby), what="the standby to be read")
    used = replica.replica()
    assert used is not None
    used._written.clear()  # as if the write were long ago

    used.look()

    assert used.is_fresh


def test_what_the_standby_does_not_have_yet_or_would_not_write_is_asked_of_the_primary() -> None:
    wait_until(lambda: replica.read(is_standby), what="the standby to be read")
    asked: list[bool] = []

    def find(conn: Connection) -> str:
        asked.append(is_standby(conn))
        if asked[-1]:
            raise NotFound("not there yet")
        return "found"

    assert replica.read(find) == "found"
    assert asked == [True, False]

    replica.read(
        lambda conn: conn.execute(text("INSERT INTO written VALUES (7)"))
    )  # a write by mistake is repeated on the primary

    with postgres.connection() as conn:
        assert 7 in numbers(conn)


def test_a_standby_that_is_away_costs_no_answer(servers: tuple[str, str]) -> None:
    wait_until(lambda: replica.read(is_standby), what="the standby to be read")
    with psycopg.connect(servers[1], autocommit=True) as standby:
        found = standby.execute("SHOW data_directory").fetchone()
    assert found is not None
    pid = int((Path(found[0]) / "postmaster.pid").read_text().split()[0])

    os.kill(pid, signal.SIGINT)

    wait_until(lambda: not replica.read(is_standby), what="the primary to be read")
    used = replica.replica()
    assert used is not None
    wait_until(lambda: not used.is_fresh, what="the standby not to be used")
    assert isinstance(replica.read(numbers), list)


def test_what_is_no_replica_is_not_read(servers: tuple[str, str]) -> None:
    replica.connect(servers[0])
    used = replica.replica()
    assert used is not None

    used.look()

    assert not used.is_fresh


def test_without_an_address_there_is_none() -> None:
    replica.connect(None)

    assert replica.replica() is None
    assert not replica.read(is_standby)
