"""What a revision brings beside its graphs: its own authorization and its own routes, as its build found them.

User code is asked only where this says that it has an answer; what it says is never asked of a host again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

KNOWN_REVISIONS = 256
ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """A project's `Auth` object, and the `auth` of its langgraph.json."""

    parameters: Sequence[str] = ()  # of its authenticate
    handlers: frozenset[tuple[str, str]] = frozenset()  # (resource, action), either may be ANY
    cache_keys: Sequence[str] = ()  # headers, in lower case
    cache_seconds: float | None = None
    cache_size: int | None = None
    disable_studio_auth: bool = False
    openapi: Mapping[str, Any] = field(default_factory=dict)

    def decides(self, resource: str, action: str) -> bool:
        """Whether a handler is asked about this action."""
        return not self.handlers.isdisjoint(((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of a project's app."""

    path: str  # as Starlette writes it: /files/{name:path}; of a mount, what its routes begin with
    methods: Sequence[str] = ()  # none: every method
    kind: str = "http"  # http, websocket, or mount: everything below its path


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A project's ASGI app."""

    routes: Sequence[Route] = ()
    openapi: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    auth: Auth | None = None
    app: App | None = None


def of_revision(conn: Connection, revision_id: UUID) -> UserCode:
    """A revision's user code beside its graphs; it never changes."""
    known = _known(revision_id)
    if not known:
        query = text("SELECT user_code FROM revision WHERE id = :id")
        known.append(from_stored(conn.execute(query, {"id": revision_id}).scalar_one_or_none() or {}))
    return known[0]


@lru_cache(KNOWN_REVISIONS)
def _known(revision_id: UUID) -> list[UserCode]:
    return []


def from_stored(document: Mapping[str, Any]) -> UserCode:
    """The `user_code` of a revision's row: {"auth": {…}, "app": {…}} with the fields above."""
    auth, app = document.get("auth"), document.get("app")
    return UserCode(
        auth=None if auth is None else Auth(**{**auth, "handlers": frozenset(map(tuple, auth["handlers"]))}),
        app=None if app is None else App(**{**app, "routes": [Route(**route) for route in app["routes"]]}),
    )
