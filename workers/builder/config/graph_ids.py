"""Which names a graph may have. Callers put them into addresses, and in the place of an assistant's UUID."""

from __future__ import annotations

import unicodedata
from uuid import UUID

MAX_LENGTH = 255
SEPARATORS = ("/", "\\", "..")
# Control, format (the marks that turn the direction of writing among them), surrogate, line, paragraph.
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def why_not(graph_id: str) -> str | None:
    """What is wrong with this name; None when a graph may have it."""
    if not graph_id:
        return "it must not be empty"
    if len(graph_id) > MAX_LENGTH:
        return f"it must not be longer than {MAX_LENGTH} characters"
    if graph_id != graph_id.strip():
        return "it must not begin or end with white space"
    if graph_id == "." or any(separator in graph_id for separator in SEPARATORS):
        return "it stands in addresses, so it must not be '.' nor hold '/', '\\' or '..'"
    if any(unicodedata.category(character) in UNSEEN for character in graph_id):
        return "it must not hold control or format characters"
    if _is_uuid(graph_id):
        return "it would be taken for the UUID of an assistant"
    return None


def _is_uuid(text: str) -> bool:
    """Whether it is read as a UUID, in whichever form: with braces, without hyphens, as a URN."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True
