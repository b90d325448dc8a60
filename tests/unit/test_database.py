"""The connection to PostgreSQL: how values reach it, and which of its errors mean "not now"."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from shared.database import connection, driver, query
from shared.errors import Unavailable


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


READ_ONLY = ("SET TRANSACTION READ ONLY", "CREATE TABLE a_new_one ()", "database unavailable")
LOCKED = (
    "SET LOCAL lock_timeout = '1ms'",
    "LOCK TABLE organization IN EXCLUSIVE MODE",
    "another transaction was in the way",
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
