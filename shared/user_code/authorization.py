"""What a deployment's own authorization says: who a caller is, and what they may do.

It fails closed: no answer, or one that cannot be read, is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.deployments.deployments import DeploymentRef

ASK_SECONDS = 10.0  # for the project's functions


@dataclass(frozen=True, slots=True)
class User:
    """Whom a deployment's authorization found a caller to be; `document` is all that graphs learn of them."""

    identity: str
    permissions: Sequence[str]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to the handlers; ids in `value` are UUIDs."""

    resource: str
    action: str
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Granted:
    """An allowed action: its value as the handler left it, and which records it may see; None: all."""

    value: dict[str, Any]
    filter: Mapping[str, Any] | None = None


def authenticate(deployment: DeploymentRef, facts: Mapping[str, Any]) -> User:
    """Ask the project's `authenticate`; `facts` are the request's method, path, query and headers.

    Raises Denied, Unanswered, Unavailable.
    """
    raise NotImplementedError


def authorize(deployment: DeploymentRef, user: User, asks: Sequence[Ask]) -> list[Granted]:
    """Ask the handlers, in one call; what no handler decides is allowed as it is. Raises as `authenticate`."""
    raise NotImplementedError
