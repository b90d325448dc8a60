"""Lists that are packed by the type wanted come back as they were, and are always of that type."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import DataError
from sqlalchemy import Engine

from shared.infra.arrays import PACK
from shared.infra.postgres import driver

CASES: list[tuple[str, list[Any]]] = [
    ("uuid[]", [uuid4(), None, UUID(int=0)]),
    ("text[]", ["", None, "Zürich \N{SNOWMAN} {\"a\",'b'}\\ NULL", "x" * 100_000]),
    ("bytea[]", [b"", None, bytes(range(256))]),
    ("bigint[]", [0, 1, -1, None, 2**63 - 1, -(2**63)]),
    ("float8[]", [0.5, None, -1e300, 3]),
    *((type, []) for type in PACK),
    *((type, [None, None]) for type in PACK),
]


@pytest.mark.parametrize(("type", "items"), CASES)
def test_a_list_comes_back_as_it_was(db: Engine, type: str, items: list[Any]) -> None:
    packed = PACK[type](items)
    with driver() as conn:
        found = conn.execute("SELECT %(a)s, CAST(pg_typeof(%(a)s) AS text)", {"a": packed}).fetchone()

    assert found is not None
    back, was = found
    assert back == items
    assert was == type.replace("float8", "double precision")


@pytest.mark.parametrize(
    ("type", "item"),
    [
        ("bigint[]", 2**63),
        ("bigint[]", "1"),
        ("float8[]", "1"),
        ("uuid[]", "x"),
        ("text[]", 1),
        ("text[]", "\ud800"),
        ("bytea[]", 10),
    ],
)
def test_what_is_of_another_type_is_refused(type: str, item: Any) -> None:
    with pytest.raises(DataError, match="not for the database"):
        PACK[type]([item])
