"""The migrations create exactly the tables of the models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import NullPool, create_engine

from cli.errors import CannotStart
from cli.machine import procfile, up
from shared import migrations, sql
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra import database_version
from shared.infra.postgres import driver_url
from shared.migrations import __main__ as command
from shared.models import (
    LIVE_RUN_STATUSES,
    METADATA,
    RUN,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    is_unsuccessful,
)
from shared.settings import Settings
from tests.support import next_release
from tests.support.databases import fresh
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(database: str) -> Iterator[str]:
    """The address of a new, empty database, separate from that of other tests."""
    with fresh(database) as url:
        yield url


def test_they_make_what_the_models_say(migrated: str) -> None:
    with create_engine(driver_url(migrated), poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_object": migrations.is_compared}
        )
        assert compare_metadata(context, METADATA) == []


def test_a_database_is_current_once_they_have_run_and_running_them_again_changes_nothing(empty: str) -> None:
    assert database_version.applied(empty) is None
    for _ in range(2):
        migrations.upgrade(empty)
        assert database_version.applied(empty) == database_version.needed()
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT id FROM organization").fetchall() == [(DEFAULT_ORGANIZATION_ID,)]


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of a later release, whose migration adds a column and an index to `run`."""
    return next_release.tree(tmp_path_factory.mktemp("later"))


def test_an_interrupted_migration_is_carried_out_again_and_waits_for_tables_without_keeping_others_away(
    empty: str, later: Path
) -> None:
    migrations.upgrade(empty)
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE run ADD COLUMN {next_release.COLUMN} bigint")
        connection.execute(f"CREATE INDEX {next_release.INDEX} ON run (run_id)")
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [next_release.INDEX]
        )
    with psycopg.connect(empty) as reader:
        reader.execute("SELECT count(*) FROM run")  # its transaction stays open
        migrating = _start(empty, later)
        with psycopg.connect(empty, autocommit=True, options="-c statement_timeout=20s") as other:
            wait_until(lambda: _waits_for_a_table(other), 30)
            other.execute("SELECT count(*) FROM run")
        assert migrating.poll() is None
    assert migrating.wait(timeout=60) == 0

    with psycopg.connect(empty) as connection:
        invalid = connection.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone()
        index = connection.execute("SELECT pg_get_indexdef(%s::regclass)", [next_release.INDEX]).fetchone()
    assert invalid == (0,)
    assert index is not None
    assert index[0].endswith(f"({next_release.COLUMN})")
    assert database_version.applied(empty) == next_release.NUMBER


def test_a_new_database_of_a_later_release_has_the_functions_that_this_one_calls(
    empty: str, later: Path
) -> None:
    assert _start(empty, later).wait(timeout=60) == 0

    with psycopg.connect(empty) as connection:
        found = connection.execute("SELECT proname FROM pg_proc WHERE proname LIKE 'claim_runs_%'").fetchall()
    assert set(found) == {("claim_runs_1",), ("claim_runs_2",)}


@pytest.fixture
def migrate(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str | None]:
    """Return a function that executes the command in this process. Returns its error message."""

    def run(url: str) -> str | None:
        monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:9/x")  # a pooler that is unreachable
        monkeypatch.setenv("DATABASE_DIRECT_URL", url)
        return command.main([])

    return run


def test_a_database_from_before_the_first_release_is_refused_and_one_of_a_newer_is_left_as_it_is(
    database: str, migrated: str, migrate: Callable[[str], str | None], caplog: pytest.LogCaptureFixture
) -> None:
    with fresh(database, template=migrated) as url:
        _set_version(url, "0023")
        assert "made before the first release" in str(migrate(url))
        assert database_version.applied(url) == "0023"
        with pytest.raises(SystemExit, match=r"made before the first release\. Use an empty database"):
            database_version.wait(url)

        _set_version(url, "9999")
        assert migrate(url) is None
        assert "the database is at version 9999, newer than this release's" in caplog.text
        assert database_version.applied(url) == "9999"
        assert database_version.is_enough("9999")


def _set_version(url: str, version: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [version])


def test_a_process_waits_for_the_version_it_needs(empty: str, caplog: pytest.LogCaptureFixture) -> None:
    """It polls often at first, for a database that is being prepared, and logs a long wait once."""
    versions = iter([*[None] * 12, database_version.needed()])
    pauses: list[float] = []

    database_version.wait(empty, sleep=pauses.append, ask=lambda _: next(versions))

    assert next(versions, None) is None
    assert (pauses[0], pauses[-1]) == (
        database_version.FIRST_PAUSE_SECONDS, database_version.LONGEST_PAUSE_SECONDS
    )  # fmt: skip
    assert sum(pauses) < database_version.QUIET_SECONDS + database_version.MENTION_SECONDS
    assert [record.getMessage() for record in caplog.records if record.name == database_version.__name__] == [
        f"the database has no tables, and this release needs {database_version.needed()}:"
        " waiting for `python -m shared.migrations`"
    ]


def test_a_start_knows_whether_an_earlier_one_was_ended_before_the_database_was_prepared(
    empty: str, migrate: Callable[[str], str | None]
) -> None:
    settings = Settings.from_env({"DATABASE_URL": empty})
    assert not up._is_prepared(settings)

    assert migrate(empty) is None

    assert up._is_prepared(settings)
    _set_version(empty, "0023")
    with pytest.raises(CannotStart, match="0023"):
        up._is_prepared(settings)


def _start(url: str, code: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DATABASE_URL": url}
    return subprocess.Popen([sys.executable, "-m", "shared.migrations"], cwd=code, env=environment)


def _waits_for_a_table(connection: psycopg.Connection) -> bool:
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    row = connection.execute(query).fetchone()
    return row is not None and row[0] > 0


def test_the_command_says_what_it_lacks_and_no_process_waits_for_a_database_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DATABASE_URL", "DATABASE_DIRECT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "DATABASE_URL must name the database" in str(command.main([]))
    database_version.wait("postgresql://nobody@127.0.0.1:9/nowhere")


def test_two_starters_migrate_one_after_the_other_and_the_one_of_honcho_waits_for_the_end_of_all(
    empty: str,
) -> None:
    """The release of the Procfile ends, but not under honcho, which ends all processes when one ends."""
    [release] = [line for line in procfile.read() if line.name == procfile.RELEASE]
    environment = {**os.environ, **procfile.base_environment(os.environ), "DATABASE_URL": empty}

    def start(**more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            release.argv, cwd=ROOT, env={**environment, **more}, stdout=subprocess.PIPE, text=True
        )

    with start(HONCHO_PROCESS_NAME="release.1") as stays, start() as ends:
        assert stays.stdout is not None
        assert "The database is ready" in stays.stdout.readline()
        assert ends.wait(60) == 0
        assert database_version.applied(empty) == database_version.needed()
        assert stays.poll() is None
        stays.terminate()
        assert stays.wait(60) == 0


def test_a_database_of_another_encoding_is_refused_in_a_sentence_before_anything_starts(
    database: str, migrate: Callable[[str], str | None]
) -> None:
    with fresh(database, options="ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as url:
        said = migrate(url)
        for ask in (
            database_version.applied, database_version.applied_by_child, database_version.applied_by_fork
        ):  # fmt: skip
            with pytest.raises(SystemExit, match="encoding SQL_ASCII") as refused:
                database_version.wait(url, ask=ask)
            assert said == str(refused.value)


def test_what_is_written_all_the_time_is_vacuumed_before_much_of_it_is_dead(migrated: str) -> None:
    with psycopg.connect(migrated) as connection:
        query = "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL"
        options = dict(connection.execute(query).fetchall())
    assert set(options) >= {
        "run",
        "thread",
        "checkpoint",
        "checkpoint_blob",
        "checkpoint_write",
        "webhook_delivery",
    }
    assert all("autovacuum_vacuum_scale_factor=0.02" in given for given in options.values())


# Predicates of partial indexes


def test_every_end_is_a_success_or_not() -> None:
    assert {*LIVE_RUN_STATUSES, *UNSUCCESSFUL_RUN_STATUSES, RunStatus.SUCCESS} == set(RunStatus)


def test_the_conditions_are_those_of_their_indexes() -> None:
    [failed, live] = [_condition(name) for name in ("ix_run_failed", "ix_run_live")]

    assert failed == is_unsuccessful()
    assert f"SELECT {live}\n" in sql.installed()["is_live"]


def _condition(index_name: str) -> str:
    [index] = [index for index in RUN.indexes if index.name == index_name]
    return str(index.dialect_options["postgresql"]["where"])
