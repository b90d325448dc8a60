"""The authorization and the app of a revision, as the build found them.

The description is stored with the revision. Graph hosts are called only for what it contains, so no call is made that
user code could not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from cachetools import LRUCache
from sqlalchemy import Connection, text

KNOWN_REVISIONS = 256
ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """A project's `Auth` object, and the `auth` of its langgraph.json."""

    parameters: Sequence[str] = ()  # of its `authenticate` function
    handlers: frozenset[tuple[str, str]] = frozenset()  # (resource, action), either may be ANY
    cache_keys: Sequence[str] = ()  # headers, in lower case
    cache_seconds: float | None = None
    cache_size: int | None = None
    disable_studio_auth: bool = False
    openapi: Mapping[str, Any] = field(default_factory=dict)
    oauth: Mapping[str, Any] | None = None  # `authorization_servers` and `scopes`, for clients of MCP

    def decides(self, resource: str, action: str) -> bool:
        """Whether a handler is registered for this action."""
        return not self.handlers.isdisjoint(((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of a project's app."""

    path: str  # in Starlette's syntax: /files/{name:path}; of a mount, the prefix of its routes
    methods: Sequence[str] = ()  # empty: every method
    kind: str = "http"  # http, websocket, or mount, which matches everything below its path


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A project's ASGI app."""

    routes: Sequence[Route] = ()
    openapi: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The authorization and the app of a revision. None: the project has none."""

    auth: Auth | None = None
    app: App | None = None


_known: LRUCache[UUID, UserCode] = LRUCache(KNOWN_REVISIONS)


def of_revision(conn: Connection, revision_id: UUID) -> UserCode:
    """Return a revision's authorization and app. They never change, so the result is cached."""
    known = _known.get(revision_id)
    if known is None:
        query = text("SELECT user_code FROM revision WHERE id = :id")
        known = from_stored(conn.execute(query, {"id": revision_id}).scalar_one_or_none() or {})
        _known[revision_id] = known
    return known


def from_stored(document: Mapping[str, Any]) -> UserCode:
    """Parse the `user_code` column of a revision's row: {"auth": {…}, "app": {…}} with the fields above."""
    auth, app = document.get("auth"), document.get("app")
    return UserCode(
        auth=None if auth is None else Auth(**{**auth, "handlers": frozenset(map(tuple, auth["handlers"]))}),
        app=None if app is None else App(**{**app, "routes": [Route(**route) for route in app["routes"]]}),
    )
