"""Short forms of ids and revision numbers in output and arguments.

The short form of an id is its end: ids begin with their creation time, so those of neighbouring rows begin alike.
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
    """Return whether a text has the form of an id.

    Commands treat such a text as an id. The service refuses it as an organization's name, but not as a deployment's.
    """
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def short(id: object) -> str:
    """Return the end of an id, which is usually unique."""
    return str(id)[-SHORT:]


def is_part(text: str) -> bool:
    """Return whether a text can be the beginning or end of an id."""
    return len(text) >= SHORTEST and PART.fullmatch(text.lower()) is not None


def with_part(rows: Iterable[dict[str, Any]], text: str, *, key: str = "id") -> list[dict[str, Any]]:
    """Return the rows whose id begins or ends with the text. `key` is the id's field."""
    part = text.lower()
    return [row for row in rows if str(row[key]).startswith(part) or str(row[key]).endswith(part)]


def number_of(text: str) -> int | None:
    """Return the number of a revision such as `v3`; None if the text has another form."""
    found = VERSION.fullmatch(text.lower())
    return int(found[1]) if found else None


def version(number: object) -> str:
    """Return a revision's number as `v3`; `-` if the service does not number revisions."""
    return f"v{number}" if number else "-"
