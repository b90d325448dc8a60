"""Users who were found a moment ago, by what they showed: the same credentials are not asked about again.

They are known by an HMAC of the revision's id and the values of the headers that decide, with a secret of the process:
credentials are kept nowhere. Refusals are not remembered; equal questions on their way are asked once.

Why so few are cached by default: only where `authenticate` takes nothing but the authorization header does its answer
surely depend on nothing else. A project may name more headers (`auth.cache.cache_keys`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import orjson

from shared.deployments.user_code import Auth
from shared.errors import Unavailable
from shared.user_code.users import User

KNOWN_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
MAX_USERS = 10_000  # of a revision, in this process
MAX_REVISIONS = 64
MAX_DOCUMENT_BYTES = 4 * 1024  # larger users are asked about again: so many of them would not fit

_secret = secrets.token_bytes(32)


class KnownUsers:
    """Of one revision."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._known: OrderedDict[bytes, tuple[float, User]] = OrderedDict()  # the oldest first
        self._asked: dict[bytes, Future[User]] = {}
        self._lock = threading.Lock()

    def find(self, key: bytes, ask: Callable[[], User]) -> User:
        """The user behind this key, asked about unless known; raises what `ask` does."""
        with self._lock:
            until, user = self._known.get(key, (0.0, None))
            if user is not None and until > time.monotonic():
                return user
            others = self._asked.get(key)
            own: Future[User] = self._asked.setdefault(key, Future())
        return self._ask(key, own, ask) if others is None else others.result()

    def _ask(self, key: bytes, own: Future[User], ask: Callable[[], User]) -> User:
        try:
            user = ask()
        except BaseException as error:
            self._end(key)
            # whoever waits with us has not been stopped, when we have
            own.set_exception(error if isinstance(error, Exception) else Unavailable())
            raise
        self._end(key, user)
        own.set_result(user)
        return user

    def _end(self, key: bytes, user: User | None = None) -> None:
        with self._lock:
            del self._asked[key]
            self._known.pop(key, None)
            if user is None or self._seconds <= 0 or len(orjson.dumps(user.document)) > MAX_DOCUMENT_BYTES:
                return
            while len(self._known) >= self._most:
                self._known.popitem(last=False)
            self._known[key] = (time.monotonic() + self._seconds, user)


_revisions: OrderedDict[UUID, KnownUsers] = OrderedDict()  # the one used last is last


def forget() -> None:
    """Ask about everybody anew."""
    _revisions.clear()


def find(revision_id: UUID, auth: Auth, facts: Mapping[str, Any], ask: Callable[[], User]) -> User:
    """The user behind a request, asked about unless known; raises what `ask` does."""
    deciding = deciding_headers(auth)
    if not deciding:
        return ask()
    return _of_revision(revision_id, auth).find(_key(revision_id, deciding, facts), ask)


def deciding_headers(auth: Auth) -> Sequence[str]:
    """The headers that decide who a caller is; none where it may depend on the rest of a request."""
    if auth.cache_keys:
        return auth.cache_keys
    return ("authorization",) if tuple(auth.parameters) == ("authorization",) else ()


def _of_revision(revision_id: UUID, auth: Auth) -> KnownUsers:
    users = _revisions.get(revision_id)
    if users is None:
        seconds = KNOWN_SECONDS if auth.cache_seconds is None else min(auth.cache_seconds, LONGEST_SECONDS)
        most = min(MAX_USERS if auth.cache_size is None else max(auth.cache_size, 1), MAX_USERS)
        users = _revisions[revision_id] = KnownUsers(seconds, most)
        while len(_revisions) > MAX_REVISIONS:
            _revisions.popitem(last=False)
    else:
        _revisions.move_to_end(revision_id)
    return users


def _key(revision_id: UUID, deciding: Sequence[str], facts: Mapping[str, Any]) -> bytes:
    wanted = {name.lower() for name in deciding}
    shown = sorted([name, value] for name, value in facts["headers"] if name in wanted)
    return hmac.digest(_secret, orjson.dumps([str(revision_id), shown]), hashlib.sha256)
