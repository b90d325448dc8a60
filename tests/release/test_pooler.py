"""With a pooler that assigns a server connection per transaction, nothing is lost, mixed up or refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import text

from shared import migrations
from shared.errors import Unavailable
from shared.infra import database_version, postgres
from tests.support import replication
from tests.support.pooler import PGBOUNCER, TransactionPooler, pgbouncer
from tests.support.stack import free_port

PIDS = "SELECT pg_backend_pid() AS pid, %(number)s::int AS number"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL on TCP."""
    port = free_port()
    folder = tmp_path_factory.mktemp("pooled")
    with replication.primary(folder, "listen_addresses=127.0.0.1", f"port={port}"):
        yield f"postgresql://runyard@127.0.0.1:{port}/postgres"


@pytest.fixture(params=["stand-in", "pgbouncer"])
def pooler(request: pytest.FixtureRequest, server: str) -> Iterator[str]:
    """URL of a pooler in front of an empty database."""
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS pooled WITH (FORCE)")
        conn.execute("CREATE DATABASE pooled")
    target = server.removesuffix("/postgres") + "/pooled"
    if request.param == "stand-in":
        with TransactionPooler(target) as pooler:
            yield pooler.url
    elif PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed (apt install pgbouncer): the stand-in alone is tried")
    else:
        with pgbouncer(target) as url:
            yield url


@contextmanager
def connected(url: str, pooler: str) -> Iterator[None]:
    before = postgres._engine, postgres._quick
    postgres.connect(url, application="runyard test", waits_for_disk=False, pooler=pooler)
    try:
        yield
    finally:
        for engine in filter(None, (postgres._engine, postgres._quick)):
            engine.dispose()
        postgres._engine, postgres._quick = before


def test_statements_and_transactions_find_what_they_need_in_any_session(pooler: str) -> None:
    migrations.upgrade(pooler, pooler="transaction")
    migrations.upgrade(pooler, pooler="transaction")  # again, from a session that has already migrated
    assert database_version.applied(pooler) == database_version.needed()

    def use(number: int) -> set[int]:
        pids = set()
        for _ in range(10):
            with postgres.driver() as conn:
                row = postgres.query(conn, PIDS, {"number": number}).fetchone()
                assert row is not None
                assert row["number"] == number
                pids.add(row["pid"])
            with postgres.connection() as conn:
                conn.execute(text("SET LOCAL application_name = 'mine'"))
                conn.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
                first = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
                assert conn.execute(text("SELECT pg_backend_pid()")).scalar_one() == first
                assert conn.execute(text("SHOW application_name")).scalar_one() == "mine"
        return pids

    with connected(pooler, "transaction"):
        with ThreadPoolExecutor(6) as threads:
            sessions = list(threads.map(use, range(6)))
        with postgres.connection() as conn:
            held = conn.execute(
                text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            ).scalar_one()
            prepared = conn.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()

    assert any(len(pids) > 1 for pids in sessions)  # precondition: sessions change
    assert (held, prepared) == (0, 0)


def test_the_role_has_what_each_session_of_ours_would_set(pooler: str, server: str) -> None:
    migrations.upgrade(pooler, pooler="transaction")

    with psycopg.connect(server.removesuffix("/postgres") + "/pooled") as conn:  # a new session
        found = {
            name: conn.execute(f"SHOW {name}").fetchone()  # type: ignore[arg-type]  a name of ours
            for name in postgres.session_defaults(migrations.STATEMENT_TIMEOUT_SECONDS)
        }

    assert found == {
        "statement_timeout": ("30s",),
        "lock_timeout": ("5s",),
        "idle_in_transaction_session_timeout": ("15s",),
        "timezone": ("UTC",),
    }


def test_without_the_setting_it_is_refused_at_once(pooler: str) -> None:
    with connected(pooler, "none"), pytest.raises(Unavailable), postgres.connection():
        pass
