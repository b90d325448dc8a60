"""Tokens with which a deployment's own code calls the service on behalf of a user.

A runner makes a token for each request of user code. It tells the receiving process for which deployment and user the
request is. It is encrypted with the service's keys, so that no other program can make or read one, and is valid for a
minute by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from shared.errors import Unavailable
from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import database_seconds, dumps

HEADER = "X-Runyard-User-Code"
VALID_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OwnCode:
    """The deployment and the user document of a token. `user` is None if the code acts for no user."""

    deployment_id: UUID
    user: Mapping[str, Any] | None


def make(deployment_id: UUID, user: Mapping[str, Any] | None) -> str:
    """Return a token, as a header value. Raises Unavailable without encryption keys or the database's time."""
    said = {"deployment_id": deployment_id, "user": user, "until": database_seconds() + VALID_SECONDS}
    return encryption.encrypt(dumps(said)).decode()


def read(token: str) -> OwnCode | None:
    """Decode a token. Returns None for an invalid or expired one."""
    try:
        said = orjson.loads(encryption.decrypt(token.encode()))
        if said["until"] < database_seconds():
            return None
        return OwnCode(UUID(said["deployment_id"]), said["user"])
    except (Undecryptable, Unavailable, ValueError, TypeError, KeyError):
        return None
