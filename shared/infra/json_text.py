"""JSON documents that PostgreSQL can store but not query.

A `json` column keeps any JSON text. PostgreSQL's operators (`->`, `->>`) and its casts to `jsonb` refuse a document
that contains U+0000 anywhere. A single such row would fail every search that reads it. Every statement that queries a
`json` column filled by callers or graphs therefore uses the database function `readable` (`shared/sql/rules.sql`).
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
    """Replace U+0000 by U+FFFD in a JSON document, for a `jsonb` column whose content is never returned to callers."""
    return re.sub(_ESCAPED_NUL, _REPLACEMENT, document) if NUL in document else document


def canonical(raw: bytes) -> str:
    """Rewrite a graph host's JSON document as this service would write it. Raises ValueError if it is not JSON.

    A host may send numbers outside the range of PostgreSQL's numeric, or half a surrogate pair. A row with these could
    be stored, but neither read nor searched.
    """
    return dumps(loads(raw))
