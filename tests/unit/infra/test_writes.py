"""Readiness checks that the database accepts writes: on a full disk, on a read-only server, and at low cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from shared.errors import Unavailable
from shared.infra import postgres, writes
from shared.infra.writes import WriteCheck
from tests.support import full_disk, replication


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Restore the process's connection pools afterwards."""
    before = postgres._engine, postgres._quick
    yield
    postgres.engine().dispose()
    postgres._engine, postgres._quick = before


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("sandbox", [full_disk.SANDBOX] if full_disk.SANDBOX else [])
def test_a_full_disk_is_noticed_though_small_changes_still_fit(sandbox: str, tmp_path: Path) -> None:
    with full_disk.database_on_a_small_disk(tmp_path / "data") as url:
        postgres.connect(url)
        with postgres.connection() as conn:
            conn.execute(text("CREATE TABLE small AS SELECT 1 AS n"))
        assert writes.refusal() is None

        full_disk.fill(url)

        with postgres.connection() as conn:
            conn.execute(text("UPDATE small SET n = n + 1"))
        assert writes.refusal() == "the database has no disk space left"

        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("DROP TABLE filler")
            conn.execute("CHECKPOINT")  # releases the disk space
        assert writes.refusal() is None


@pytest.mark.usefixtures("elsewhere")
def test_a_standby_and_a_read_only_database_refuse_writes(tmp_path: Path) -> None:
    with replication.primary(tmp_path / "primary") as url:
        with replication.standby(url, tmp_path / "standby") as standby:
            postgres.connect(standby)
            assert writes.refusal() == "the database is read-only"
            postgres.engine().dispose()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            conn.execute("SELECT pg_reload_conf()")
        postgres.connect(url)
        assert writes.refusal() == "the database is read-only"


@pytest.mark.usefixtures("elsewhere")
def test_a_database_that_is_away_is_unavailable() -> None:
    postgres.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(Unavailable, match="The database is unavailable"):
        writes.refusal()


class Looks:
    """A fake write check with a settable answer and clock, and a count of its calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self.answer: str | None = None

    def refusal(self) -> str | None:
        self.count += 1
        return self.answer

    def is_ready(self, check: WriteCheck) -> bool:
        try:
            check.require()
        except Unavailable:
            return False
        return True


def test_it_is_looked_at_every_two_seconds_however_often_somebody_asks() -> None:
    looks = Looks()
    check = WriteCheck(looks.refusal, lambda: looks.now)

    assert all(looks.is_ready(check) for _ in range(100))
    assert looks.count == 1

    looks.answer, looks.now = "full", 2.5
    assert not any(looks.is_ready(check) for _ in range(100))
    assert looks.count == 2

    looks.answer, looks.now = None, 5.0
    assert looks.is_ready(check)
