"""Connections to PostgreSQL: adaptation of values, and errors that mean "temporarily unavailable"."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.event import listens_for
from sqlalchemy.exc import ProgrammingError

from shared.errors import Unavailable
from shared.infra import postgres as database_module
from shared.infra.postgres import connect, connection, driver, query
from tests.support.waiting import wait_until


@pytest.mark.usefixtures("db")
def test_lists_are_sent_in_their_binary_form() -> None:
    with connection() as conn, driver() as quick:
        for used in (conn.connection.driver_connection, quick):
            assert isinstance(Transformer(used).get_dumper([uuid4()], PyFormat.AUTO), ListBinaryDumper)


def test_a_connection_of_somebody_else_takes_strings_for_ids(database: str) -> None:
    id = uuid4()
    with psycopg.connect(database) as conn:
        found = conn.execute("SELECT %s::uuid = ANY(%s)", (id, [str(id)])).fetchone()
    assert found == (True,)


READ_ONLY = ("SET TRANSACTION READ ONLY", "CREATE TABLE a_new_one ()", "The database is unavailable.")
LOCKED = (
    "SET LOCAL lock_timeout = '1ms'",
    "LOCK TABLE organization IN EXCLUSIVE MODE",
    "Another transaction blocked this one. Try again.",
)


def by_connection(*statements: str) -> None:
    with connection() as conn:
        for statement in statements:
            conn.execute(text(statement))


def by_driver(*statements: str) -> None:
    with driver() as conn, conn.transaction():
        for statement in statements:
            query(conn, statement, {})


@pytest.mark.parametrize("run", [by_connection, by_driver])
@pytest.mark.parametrize(("first", "then", "said"), [READ_ONLY, LOCKED])
@pytest.mark.usefixtures("db")
def test_trouble_that_passes_is_unavailable(
    database: str, run: Callable[..., None], first: str, then: str, said: str
) -> None:
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE organization IN EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match=said):
            run(first, then)


@pytest.mark.parametrize(
    ("run", "error"), [(by_connection, ProgrammingError), (by_driver, psycopg.ProgrammingError)]
)
@pytest.mark.usefixtures("db")
def test_what_would_come_again_is_no_such_trouble(run: Callable[..., None], error: type[Exception]) -> None:
    with pytest.raises(error):
        run("SELECT nothing")


EVERY_DOOR = pytest.mark.parametrize("run", [by_connection, by_driver])


@pytest.fixture
def others(db: Engine, database: str) -> Iterator[psycopg.Connection[Any]]:
    """An operator's connection besides the engines of the test."""
    engine = connect(database, pool_size=2)
    with psycopg.connect(database, autocommit=True) as operator:
        yield operator
    engine.dispose()


def terminate(operator: psycopg.Connection[Any], *pids: int) -> None:
    for pid in pids:
        operator.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


@pytest.fixture
def terminated(
    others: psycopg.Connection[Any], run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> psycopg.Connection[Any]:
    """The operator's connection, after it has terminated the pooled sessions."""
    made = sessions_of_the_pools()
    run("SELECT 1")
    terminate(others, *made)
    monkeypatch.setattr(database_module, "TRUSTED_SECONDS", 0)
    return others


@EVERY_DOOR
@pytest.mark.usefixtures("terminated")
def test_sessions_that_were_terminated_in_the_pool_are_replaced(run: Callable[..., None]) -> None:
    run("SELECT 1")


@EVERY_DOOR
def test_sessions_that_are_terminated_as_soon_as_they_are_made_are_unavailable(
    terminated: psycopg.Connection[Any], run: Callable[..., None]
) -> None:
    for engine in (database_module._engine, database_module._quick):
        listens_for(engine, "connect")(lambda made, _: terminate(terminated, made.info.backend_pid))

    for _ in range(3):
        with pytest.raises(Unavailable):
            run("SELECT 1")


def test_connections_that_stay_unused_are_closed_except_one(
    others: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sessions_of_the_pools()
    monkeypatch.setattr(database_module, "IDLE_SECONDS", 0.01)

    def living() -> int:
        found = others.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", (made,)
        ).fetchone()
        assert found is not None
        return found[0]

    for _ in range(2):
        with connection(), connection():
            assert living() == 2
        wait_until(lambda: living() == 1)


@EVERY_DOOR
def test_a_session_that_is_terminated_in_use_is_unavailable(
    others: psycopg.Connection[Any], run: Callable[..., None]
) -> None:
    with pytest.raises(Unavailable):
        run("SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1")
    run("SELECT 1")


def freeze(conn: Connection, operator: psycopg.Connection[Any]) -> None:
    pid = conn.scalar(text("SELECT pg_backend_pid()"))
    conn.execute(text("SET idle_in_transaction_session_timeout = 1"))
    wait_until(lambda: not operator.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone())
    conn.execute(text("SELECT 1"))


def test_a_session_that_is_terminated_at_the_commit_or_was_idle_for_too_long_is_unavailable(
    others: psycopg.Connection[Any],
) -> None:
    with pytest.raises(Unavailable), connection() as conn:
        terminate(others, conn.scalar(text("SELECT pg_backend_pid()")))
    with pytest.raises(Unavailable), driver() as quick, quick.transaction():
        terminate(others, quick.execute("SELECT pg_backend_pid()").fetchone()[0])
    # The idle timeout ends the session of a frozen process.
    with pytest.raises(Unavailable), connection() as conn:
        freeze(conn, others)


def sessions_of_the_pools() -> list[int]:
    """Return a list that collects the backend process id of each new connection of the engines."""
    made: list[int] = []
    for engine in (database_module._engine, database_module._quick):
        listens_for(engine, "connect")(lambda connection, _: made.append(connection.info.backend_pid))
    return made


TURNS = """
from gevent import monkey
monkey.patch_all()
import gevent, socket
from shared.infra.postgres import LARGE, dumps, loads
ours, theirs = socket.socketpair()
seen = []
def serve():
    while True:
        seen.append(theirs.recv(10))
gevent.spawn(serve)
gevent.sleep(0.01)
for message, convert, document in (
    (b"request", loads, lambda size: '"' + size * "x" + '"'),
    (b"another", dumps, lambda size: size * "x"),
):
    ours.sendall(message)
    convert(document(10))
    assert message not in seen, "nothing need wait for a small one"
    for _ in range(3):  # a turn may come and go while this process gets none
        convert(document(LARGE))
print(seen)
"""


def test_what_has_come_meanwhile_is_served_beside_large_documents() -> None:
    told = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, check=True)
    assert told.stdout == "[b'request', b'another']\n"


def test_a_statement_that_takes_too_long_is_for_later(db: Engine) -> None:
    with pytest.raises(Unavailable, match="took too long"), connection() as conn:
        conn.execute(text("SET LOCAL statement_timeout = 20; SELECT pg_sleep(30)"))
    with connection() as conn:
        assert conn.execute(text("SELECT 1")).scalar_one() == 1


@pytest.fixture
def narrow(db: Engine, database: str) -> Iterator[None]:
    """Engines of a role limited to one connection."""
    with psycopg.connect(database, autocommit=True) as operator:
        operator.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
        engine = connect(str(make_url(database).set(username="narrow")))
        yield
        engine.dispose()
        operator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'narrow'"
        )
        operator.execute("DROP ROLE narrow")


@pytest.mark.parametrize(
    ("first", "other"), [(by_connection, by_driver), (by_driver, by_connection)], ids=["driver", "connection"]
)
@pytest.mark.usefixtures("narrow")
def test_an_idle_connection_makes_way_for_one_that_is_refused(
    first: Callable[..., None], other: Callable[..., None]
) -> None:
    first("SELECT 1")
    with pytest.raises(Unavailable, match="The database is unavailable"):
        other("SELECT 1")
    wait_until(lambda: succeeds(other))


def succeeds(run: Callable[..., None]) -> bool:
    try:
        run("SELECT 1")
    except Unavailable:
        return False
    return True
