"""How values reach PostgreSQL: the engines' connections have ways of their own, other connections do not."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.array import ListBinaryDumper

from shared.database import connection, driver


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
