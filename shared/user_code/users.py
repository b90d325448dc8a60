"""Users as a deployment's authorization returns them, as data that is stored with runs and crons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps

MAX_BYTES = 32 * 1024
MAX_IDENTITY = 1024

# The user of callers with the platform's own tools. Graph hosts turn it into the SDK's StudioUser.
STUDIO = {
    "identity": "langgraph-studio-user",
    "display_name": "langgraph-studio-user",
    "is_authenticated": True,
    "permissions": [],
    "kind": "StudioUser",
}


@dataclass(frozen=True, slots=True)
class User:
    """A user of the deployment's own authorization. Graphs see `document` and nothing else."""

    identity: str
    permissions: Sequence[str]
    document: Mapping[str, Any]


def user_of(document: Any) -> User:
    """Build a user from a document of `authenticate` or a stored one. Raises ValueError if it is invalid."""
    if not isinstance(document, dict):
        raise ValueError("authenticate returned no user")
    identity, permissions = document.get("identity"), document.get("permissions", [])
    if not isinstance(identity, str) or not identity:
        raise ValueError("authenticate returned no user: it has no identity")
    if len(identity) > MAX_IDENTITY:
        raise ValueError(f"authenticate returned an identity of more than {MAX_IDENTITY} characters")
    if not isinstance(permissions, list) or not all(isinstance(one, str) for one in permissions):
        raise ValueError("authenticate returned permissions that are not a list of strings")
    written = dumps(document)
    if len(written.encode()) > MAX_BYTES:
        raise ValueError(f"authenticate returned a user of more than {MAX_BYTES} bytes")
    if document_holds_nul(written):
        raise ValueError("authenticate returned a user with NUL characters")
    return User(identity, permissions, {**document, "permissions": permissions})


def studio_user() -> User:
    return user_of({**STUDIO})
