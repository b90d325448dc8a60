"""Ids and revision numbers as people read and type them.

Why the end of an id: it begins with its time, so that neighbours begin alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID

SHORT = 8
SHORTEST = 4
PART = re.compile(r"[0-9a-f-]+")
VERSION = re.compile(r"v(\d{1,9})")


def is_id(text: str) -> bool:
    """Whether this is the form of an id: names are free, but for that."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def short(id: object) -> str:
    """So much of an id as usually names one thing."""
    return str(id)[-SHORT:]


def is_part(text: str) -> bool:
    """Whether this can be a part of an id."""
    return len(text) >= SHORTEST and PART.fullmatch(text.lower()) is not None


def with_part(rows: Iterable[dict[str, Any]], text: str, *, key: str = "id") -> list[dict[str, Any]]:
    """Those whose id begins or ends so."""
    part = text.lower()
    return [row for row in rows if str(row[key]).startswith(part) or str(row[key]).endswith(part)]


def number_of(text: str) -> int | None:
    """3, of `v3`; None where the text is no version."""
    found = VERSION.fullmatch(text.lower())
    return int(found[1]) if found else None


def version(number: object) -> str:
    """`v3`; `-` where the service does not number its revisions."""
    return f"v{number}" if number else "-"
