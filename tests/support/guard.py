"""A deployment's own authorization, played: answers what a graph host would, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any
from uuid import UUID

import orjson
import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied
from shared.infra.postgres import connection
from shared.models import REVISION
from shared.user_code import calls, known_users
from web import named

EVERYTHING = [["*", "*"]]
Handler = Callable[[Mapping[str, Any], str, str, dict[str, Any]], Any]


def protect(deployment: DeploymentRef, **auth: Any) -> None:
    """Let the serving revision have an `auth`: with a handler for everything unless told otherwise."""
    stored = {"auth": {"parameters": ["headers"], "handlers": EVERYTHING, **auth}}
    with connection() as conn:
        conn.execute(
            update(REVISION).where(REVISION.c.id == deployment.active_revision_id).values(user_code=stored)
        )
    named.forget()
    known_users.forget()


def user(name: str, **custom: Any) -> dict[str, Any]:
    """A user as a host gives one."""
    return {
        "identity": name, "display_name": name, "is_authenticated": True, "permissions": [], **custom,
    }  # fmt: skip


def allow_everything(user: Mapping[str, Any], resource: str, action: str, value: dict[str, Any]) -> Any:
    return None


def owners_only(user: Mapping[str, Any], resource: str, action: str, value: dict[str, Any]) -> Any:
    """Each user has what they made: metadata is stamped and filtered, namespaces begin with the identity."""
    if resource == "store":
        value["namespace"] = [user["identity"], *(value["namespace"] or ())]
        return None
    if action in ("create", "create_run", "update"):
        value["metadata"] = {**(value.get("metadata") or {}), "owner": user["identity"]}
    return {"owner": user["identity"]}


class Guard:
    """Stands in for the host: `users` by bearer token, and what its handler says.

    A handler returns a filter or None, changes the value it gets, and raises Denied.
    """

    def __init__(self, deployment: DeploymentRef, client: FlaskClient) -> None:
        self.deployment, self._client = deployment, client
        self.users = {name: user(name) for name in ("ann", "bob")}
        self.handler: Handler = allow_everything
        self.facts: list[dict[str, Any]] = []  # of each authenticate
        self.asks: list[tuple[str, str, dict[str, Any]]] = []  # of each handler, ids as they were
        self.calls = 0
        self.answer: Callable[[Mapping[str, Any]], bytes] | None = None  # instead of the usual ones

    def call(
        self, revision_id: UUID, pool: str, document: Mapping[str, Any], *, timeout_seconds: float
    ) -> bytes:
        """What `shared.user_code.calls.call` does."""
        assert revision_id == self.deployment.active_revision_id
        self.calls += 1
        if self.answer is not None:
            return self.answer(document)
        try:
            return orjson.dumps(
                self._authenticate(document)
                if document["op"] == "authenticate"
                else self._authorize(document)
            )
        except Denied as refusal:
            said = {"status": refusal.status, "detail": refusal.detail, "headers": dict(refusal.headers)}
            return orjson.dumps({"denied": said})

    def _authenticate(self, document: Mapping[str, Any]) -> dict[str, Any]:
        facts = orjson.loads(orjson.dumps(document["request"]))
        self.facts.append(facts)
        token = dict(facts["headers"]).get("authorization", "").removeprefix("Bearer ")
        if token not in self.users:
            raise Denied(401, "who are you?", {"WWW-Authenticate": "Basic"})
        return {"user": self.users[token]}

    def _authorize(self, document: Mapping[str, Any]) -> dict[str, Any]:
        granted = []
        for ask in document["asks"]:
            self.asks.append((ask["resource"], ask["action"], deepcopy(ask["value"])))
            value = orjson.loads(orjson.dumps(ask["value"]))
            found = self.handler(document["user"], ask["resource"], ask["action"], value)
            granted.append({"value": value, "filter": found})
        return {"granted": granted}

    def pairs(self) -> list[str]:
        """What was asked since the last time: resource and action."""
        asked, self.asks = [f"{resource}.{action}" for resource, action, _ in self.asks], []
        return asked

    def taken(self) -> list[dict[str, Any]]:
        """The values that handlers were given since the last time."""
        asked, self.asks = [value for _, _, value in self.asks], []
        return asked

    def client(self, token: str | None) -> FlaskClient:
        """A caller with this bearer token."""
        client = self._client.application.test_client()
        if token is not None:
            client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        return client


def guarding(
    deployment: DeploymentRef, client: FlaskClient, monkeypatch: pytest.MonkeyPatch, **auth: Any
) -> Guard:
    """The deployment has an authorization from now on, which this plays."""
    guard = Guard(deployment, client)
    protect(deployment, **auth)
    monkeypatch.setattr(calls, "call", guard.call)
    return guard
