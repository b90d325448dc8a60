"""Users as a deployment's authorization returns them: data that is stored with runs and crons, and a short-lived cache.

The cache keeps repeated credentials from calling user code each time. Its key is an HMAC, with a secret of the process,
of the revision's id and the deciding headers. Credentials are stored nowhere. Refusals are not cached. Concurrent
lookups of the same key share one call.

By default, an answer is cached only if `authenticate` takes nothing but the authorization header: only then can it
depend on nothing else. A project may name other headers (`auth.cache.cache_keys`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from cachetools import LRUCache, TTLCache

from shared.deployments.user_code import Auth
from shared.errors import Unavailable
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps

MAX_BYTES = 32 * 1024
MAX_IDENTITY = 1024
KNOWN_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
MAX_USERS = 10_000  # per revision and process
MAX_REVISIONS = 64
MAX_CACHED_BYTES = 4 * 1024  # larger users are not cached: MAX_USERS of them would not fit into memory

_secret = secrets.token_bytes(32)

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


class KnownUsers:
    """The cached users of one revision."""

    def __init__(self, seconds: float, most: int) -> None:
        self._known: TTLCache[bytes, User] = TTLCache(most, seconds)
        self._asked: dict[bytes, Future[User]] = {}
        self._lock = threading.Lock()

    def find(self, key: bytes, ask: Callable[[], User]) -> User:
        """Return the user of this key, from the cache or by calling `ask`. Raises what `ask` raises."""
        with self._lock:
            user = self._known.get(key)
            if user is not None:
                return user
            others = self._asked.get(key)
            own: Future[User] = self._asked.setdefault(key, Future())
        return self._ask(key, own, ask) if others is None else others.result()

    def _ask(self, key: bytes, own: Future[User], ask: Callable[[], User]) -> User:
        try:
            user = ask()
        except BaseException as error:
            self._end(key)
            # a kill of this greenlet must not stop those that wait for its result
            own.set_exception(error if isinstance(error, Exception) else Unavailable())
            raise
        self._end(key, user)
        own.set_result(user)
        return user

    def _end(self, key: bytes, user: User | None = None) -> None:
        with self._lock:
            del self._asked[key]
            if user is not None and len(orjson.dumps(user.document)) <= MAX_CACHED_BYTES:
                self._known[key] = user


_revisions: LRUCache[UUID, KnownUsers] = LRUCache(MAX_REVISIONS)


def forget() -> None:
    """Clear the cache."""
    _revisions.clear()


def find_or_ask(revision_id: UUID, auth: Auth, facts: Mapping[str, Any], ask: Callable[[], User]) -> User:
    """Return the user of a request, from the cache or by calling `ask`. Raises what `ask` raises."""
    deciding = deciding_headers(auth)
    if not deciding:
        return ask()
    return _of_revision(revision_id, auth).find(_key(revision_id, deciding, facts), ask)


def deciding_headers(auth: Auth) -> Sequence[str]:
    """Return the headers that determine the user. Empty if other parts of a request may matter."""
    if auth.cache_keys:
        return auth.cache_keys
    return ("authorization",) if tuple(auth.parameters) == ("authorization",) else ()


def _of_revision(revision_id: UUID, auth: Auth) -> KnownUsers:
    users = _revisions.get(revision_id)
    if users is None:
        seconds = KNOWN_SECONDS if auth.cache_seconds is None else min(auth.cache_seconds, LONGEST_SECONDS)
        most = min(MAX_USERS if auth.cache_size is None else max(auth.cache_size, 1), MAX_USERS)
        users = _revisions[revision_id] = KnownUsers(max(seconds, 0.0), most)
    return users


def _key(revision_id: UUID, deciding: Sequence[str], facts: Mapping[str, Any]) -> bytes:
    wanted = {name.lower() for name in deciding}
    shown = sorted([name, value] for name, value in facts["headers"] if name in wanted)
    return hmac.digest(_secret, orjson.dumps([str(revision_id), shown]), hashlib.sha256)
