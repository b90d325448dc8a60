"""Looking into `json` columns whatever they hold, and what of a graph host's JSON is stored."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import text

from shared.infra.json_text import canonical, document_holds_nul, readable, without_nul
from shared.infra.postgres import connection

# A document, and what is read of it: U+FFFD where U+0000 was, everything else as it was.
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


@pytest.mark.parametrize(("value", "expected"), READ)
def test_a_document_is_readable_without_its_nul(db: Any, value: Any, expected: Any) -> None:
    document = orjson.dumps(value).decode()
    with connection() as conn:
        query = text(f"SELECT CAST({readable('CAST(:document AS json)')} AS jsonb)")
        found = conn.execute(query, {"document": document}).scalar_one()
    assert found == orjson.loads(without_nul(document)) == expected
    assert document_holds_nul(document) == ("\ufffd" in orjson.dumps(expected).decode())


def test_nothing_stays_nothing(db: Any) -> None:
    with connection() as conn:
        assert conn.execute(text(f"SELECT {readable('CAST(NULL AS json)')}")).scalar_one() is None


@pytest.mark.parametrize(
    "raw",
    [b'"\\ud800"', b'{"\\udc00": 1}', b"1e400000", b"NaN", b"-Infinity", b"9" * 400, b'"\xff"', b"{", b""],
)
def test_what_no_reader_could_read_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        canonical(raw)


def test_a_number_that_numeric_cannot_hold_is_stored_as_the_nearest_one() -> None:
    assert canonical(b'{"a":1e-400000,"b":"\\u0000"}') == '{"a":0.0,"b":"\\u0000"}'
