"""Values for the database: JSON of graph hosts as it is stored and read, and lists packed by type."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from psycopg import DataError
from sqlalchemy import Engine, text

from shared.infra.arrays import PACK
from shared.infra.json_text import canonical, document_holds_nul, without_nul
from shared.infra.postgres import connection, driver

# Documents, each with the value read back: U+FFFD replaces U+0000, everything else is unchanged.
READ = [
    ({"a": "\x00"}, {"a": "\ufffd"}),
    ({"a": "\x00\x00b\x00"}, {"a": "\ufffd\ufffdb\ufffd"}),
    ({"\x00": 1, "a": ["\\\x00", "\\\\\x00"]}, {"\ufffd": 1, "a": ["\\\ufffd", "\\\\\ufffd"]}),
    ({"a": "\\u0000", "b": "\x00"}, {"a": "\\u0000", "b": "\ufffd"}),
    ({"a": ["\\" * n + "\x00" for n in range(6)]}, {"a": ["\\" * n + "\ufffd" for n in range(6)]}),
    ({"a": ["\\" * n + "u0000\x00" for n in range(6)]}, {"a": ["\\" * n + "u0000\ufffd" for n in range(6)]}),
    ({"a": "\\\\u0000"}, {"a": "\\\\u0000"}),
    ({"a": "\\u0000"}, {"a": "\\u0000"}),
    ({"a": "\u0001 \"é\" \n"}, {"a": "\u0001 \"é\" \n"}),
    ({"a": 1.5, "b": None}, {"a": 1.5, "b": None}),
    ("\x00", "\ufffd"),
]  # fmt: skip


def test_a_document_is_readable_without_its_nul_and_nothing_stays_nothing(db: Any) -> None:
    query = text("SELECT CAST(readable(CAST(:document AS json)) AS jsonb)")
    with connection() as conn:
        for value, expected in READ:
            document = orjson.dumps(value).decode()
            found = conn.execute(query, {"document": document}).scalar_one()
            assert found == orjson.loads(without_nul(document)) == expected, document
            assert document_holds_nul(document) == ("\ufffd" in orjson.dumps(expected).decode()), document
        assert conn.execute(text("SELECT readable(NULL)")).scalar_one() is None


@pytest.mark.parametrize(
    "raw",
    [b'"\\ud800"', b'{"\\udc00": 1}', b"1e400000", b"NaN", b"-Infinity", b"9" * 400, b'"\xff"', b"{", b""],
)
def test_what_no_reader_could_read_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        canonical(raw)


def test_a_number_that_numeric_cannot_hold_is_stored_as_the_nearest_one() -> None:
    assert canonical(b'{"a":1e-400000,"b":"\\u0000"}') == '{"a":0.0,"b":"\\u0000"}'


# Lists packed by PostgreSQL type


CASES: list[tuple[str, list[Any]]] = [
    ("uuid[]", [uuid4(), None, UUID(int=0)]),
    ("text[]", ["", None, "Zürich \N{SNOWMAN} {\"a\",'b'}\\ NULL", "x" * 100_000]),
    ("bytea[]", [b"", None, bytes(range(256))]),
    ("bigint[]", [0, 1, -1, None, 2**63 - 1, -(2**63)]),
    ("float8[]", [0.5, None, -1e300, 3]),
    *((type, []) for type in PACK),
    *((type, [None, None]) for type in PACK),
]


def test_a_list_comes_back_as_it_was(db: Engine) -> None:
    for type, items in CASES:
        packed = PACK[type](items)
        with driver() as conn:
            found = conn.execute("SELECT %(a)s, CAST(pg_typeof(%(a)s) AS text)", {"a": packed}).fetchone()
        assert found is not None, (type, items)
        back, was = found
        assert back == items, type
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
    with pytest.raises(DataError, match="does not fit its database type"):
        PACK[type]([item])
