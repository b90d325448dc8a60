"""Tokens by which a deployment's own code calls the service, on behalf of the user it works for.

A runner makes one for each request of user code, and the service that receives it knows from it for which deployment
and which user the request is. It is encrypted with the service's keys, so that nobody else can make or read one, and
good for a minute by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from shared.errors import Unavailable
from shared.infra import clock, encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import dumps

HEADER = "X-Runyard-User-Code"
VALID_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OwnCode:
    """Code of a deployment, and the document of the user it works for; None: for nobody."""

    deployment_id: UUID
    user: Mapping[str, Any] | None


def make(deployment_id: UUID, user: Mapping[str, Any] | None) -> str:
    """A token, as the header's value. Raises Unavailable without keys to encrypt with, or without the time."""
    said = {"deployment_id": deployment_id, "user": user, "until": clock.seconds() + VALID_SECONDS}
    return encryption.encrypt(dumps(said)).decode()


def read(token: str) -> OwnCode | None:
    """What a token says; None for one that is none, or no longer good."""
    try:
        said = orjson.loads(encryption.decrypt(token.encode()))
        if said["until"] < clock.seconds():
            return None
        return OwnCode(UUID(said["deployment_id"]), said["user"])
    except (Undecryptable, Unavailable, ValueError, TypeError, KeyError):
        return None
