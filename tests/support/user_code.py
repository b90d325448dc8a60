"""A project's own authorization, played within the test's process by the messages that graph hosts answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from flask import Flask
from flask.testing import FlaskClient
from langgraph_sdk import Auth

from shared.deployments.user_code import ANY
from shared.infra.postgres import dumps, loads

IDS = ("thread_id", "run_id", "assistant_id", "cron_id")  # what handlers get as UUIDs
EVERYTHING = ((ANY, ANY),)

Key = tuple[str, str]


@dataclass(frozen=True)
class Context:
    """What a handler learns beside the value."""

    user: Mapping[str, Any]
    resource: str
    action: str

    @property
    def identity(self) -> str:
        return str(self.user["identity"])


class Asked(NamedTuple):
    """A question to the handlers as they got it."""

    identity: str
    resource: str
    action: str
    value: dict[str, Any]


Handler = Callable[[Context, dict[str, Any]], Any]
Authenticate = Callable[[Mapping[str, Any]], Any]  # gets the request's facts


def bearer(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Whoever sends `Authorization: Bearer <name>` is that user."""
    headers = dict(facts["headers"])
    scheme, _, name = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not name:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
    return {"identity": name, "permissions": [f"of:{name}"], "team": f"team of {name}"}


def owner_only(ctx: Context, value: dict[str, Any]) -> dict[str, Any]:
    """Everybody sees what is their own, and stamps it so."""
    value.setdefault("metadata", {})["owner"] = ctx.identity
    return {"owner": ctx.identity}


def refuse(ctx: Context, value: dict[str, Any]) -> bool:
    return False


def crash(ctx: Context, value: dict[str, Any]) -> None:
    raise RuntimeError("a secret of the project's")


@dataclass
class PlayedAuth:
    """Answers `shared.user_code.calls.call` as a host with this `Auth` object would.

    `authenticate` and the handlers are plain functions; the most specific handler is asked, none allows.
    """

    authenticate: Authenticate = bearer
    handlers: dict[Key, Handler] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)  # every question to the handlers
    authenticated: list[Mapping[str, Any]] = field(default_factory=list)  # the facts of every request
    calls: list[Mapping[str, Any]] = field(default_factory=list)  # the documents as they came
    failure: Exception | None = None  # raised instead of an answer to `authorize`

    def on(self, handler: Handler, resource: str = ANY, action: str = ANY) -> None:
        self.handlers[resource, action] = handler

    def pairs(self) -> list[Key]:
        """What was asked, in order."""
        return [(asked.resource, asked.action) for asked in self.asked]

    def value(self, resource: str, action: str) -> dict[str, Any]:
        """Of the last question of its kind."""
        return next(a.value for a in reversed(self.asked) if (a.resource, a.action) == (resource, action))

    def forget(self) -> None:
        for record in (self.asked, self.authenticated, self.calls):
            record.clear()

    def call(
        self, revision_id: UUID, pool: str, document: Mapping[str, Any], *, timeout_seconds: float
    ) -> bytes:
        sent: Any = loads(dumps(document))
        self.calls.append(sent)
        if sent["op"] == "authenticate":
            return dumps(self._authenticated(sent["request"])).encode()
        assert sent["op"] == "authorize", sent["op"]
        if self.failure is not None:
            raise self.failure
        return dumps(self._authorized(sent["user"], sent["asks"])).encode()

    def _authenticated(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        self.authenticated.append(facts)
        answer = _tried(lambda: {"user": self.authenticate(facts)})
        if "user" in answer:
            identity = answer["user"]["identity"]
            defaults = {"is_authenticated": True, "display_name": identity, "permissions": []}
            answer["user"] = {**defaults, **answer["user"]}
        return answer

    def _authorized(self, user: Mapping[str, Any], asks: list[dict[str, Any]]) -> dict[str, Any]:
        granted = []
        for ask in asks:
            answer = _tried(lambda ask=ask: self._asked(user, **ask))
            if "granted" not in answer:
                return answer
            granted.append(answer["granted"])
        return {"granted": granted}

    def _asked(
        self, user: Mapping[str, Any], resource: str, action: str, value: dict[str, Any]
    ) -> dict[str, Any]:
        for name in IDS:
            if value.get(name) is not None:
                value[name] = UUID(value[name])
        self.asked.append(Asked(user["identity"], resource, action, deepcopy(value)))
        found = next(filter(None, map(self.handlers.get, _keys(resource, action))), None)
        said = None if found is None else found(Context(user, resource, action), value)
        if said is False:
            return {"denied": {"status": 403, "detail": "Forbidden", "headers": {}}}
        if said is None or said is True:
            return {"granted": {"value": value, "filter": None}}
        if not isinstance(said, dict):
            return {"failed": f"Auth handler returned invalid result. {said!r}"}
        return {"granted": {"value": value, "filter": said}}


def _keys(resource: str, action: str) -> tuple[Key, ...]:
    """From the most specific one."""
    return (resource, action), (resource, ANY), (ANY, action), (ANY, ANY)


def _tried(answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return answer()
    except Auth.exceptions.HTTPException as error:
        said = {"status": error.status_code, "detail": error.detail, "headers": dict(error.headers or {})}
        return {"denied": said}
    except AssertionError as error:
        return {"denied": {"status": 403, "detail": str(error), "headers": {}}}
    except Exception as error:
        return {"failed": repr(error)}


def described(*handlers: Key, **auth: Any) -> dict[str, Any]:
    """What the build of a project with these handlers stores (`revision.user_code`); unless told, one for everything."""
    return {
        "auth": {
            "parameters": ["authorization"],
            "handlers": [list(key) for key in handlers or EVERYTHING],
            **auth,
        },
        "app": None,
    }


def user(app: Flask, name: str) -> FlaskClient:
    """A client of this user, who needs no key."""
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {name}"
    return client
