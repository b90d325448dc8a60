"""JSON that PostgreSQL can store but not look into.

A `json` column keeps any JSON text. PostgreSQL's operators (`->`, `->>`) and its casts to `jsonb` refuse a document that
holds U+0000, wherever it is: one such row would fail every search that comes across it. So every statement that looks
into a `json` column which callers or graphs fill names the column as `readable(…)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shared.infra.postgres import dumps, loads

NUL = "\\u0000"
# The escape, unless its own backslash is escaped.
_ESCAPED_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"
_REPLACEMENT = r"\1\\ufffd"


def readable(column: str) -> str:
    """SQL for the value of a `json` column with U+FFFD in place of U+0000. Other documents are passed on as they are."""
    as_text = f"CAST({column} AS text)"
    # Escaped backslashes are set aside as a character that no JSON document holds as it is. A regular expression would
    # take a second for each megabyte of U+0000.
    without_pairs = rf"replace({as_text}, '\\', chr(1))"
    replaced = rf"replace(replace({without_pairs}, '{NUL}', '\ufffd'), chr(1), '\\')"
    return f"(CASE WHEN strpos({as_text}, '{NUL}') = 0 THEN {column} ELSE CAST({replaced} AS json) END)"


def holds_nul(value: Any) -> bool:
    """Whether a text or a name inside a JSON value holds U+0000, which no `text` and no `jsonb` column stores."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if "\x00" in one:
                return True
        elif isinstance(one, Mapping):
            waiting += (*one.keys(), *one.values())
        elif isinstance(one, list | tuple):
            waiting += one
    return False


def document_holds_nul(document: str) -> bool:
    """Whether a JSON document holds U+0000. A document without the escape is not parsed."""
    return NUL in document and holds_nul(loads(document))


def without_nul(document: str) -> str:
    """A JSON document with U+FFFD in place of U+0000: for a `jsonb` column whose content nobody is to get back."""
    return re.sub(_ESCAPED_NUL, _REPLACEMENT, document) if NUL in document else document


def canonical(raw: bytes) -> str:
    """A JSON document of a graph host as this service would have written it.

    Raises ValueError for what is no JSON. A host may send numbers out of the range of PostgreSQL's numeric, or half
    a surrogate pair: a row with these could be stored, but neither read nor searched.
    """
    return dumps(loads(raw))
