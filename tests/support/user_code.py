"""A project's own authorization, played inside the test process with the messages of a graph host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from langgraph_sdk import Auth
from sqlalchemy import update

from shared.deployments.deployments import DeploymentRef
from shared.deployments.user_code import ANY
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection, dumps, loads
from shared.models import REVISION
from shared.user_code import users as cached_users
from web.gate.deployments import forget as forget_deployments

IDS = ("thread_id", "run_id", "assistant_id", "cron_id")  # handlers receive these as UUIDs
EVERYTHING = [[ANY, ANY]]

Key = tuple[str, str]


@dataclass(frozen=True)
class Context:
    """The handler's context: the user, the resource and the action."""

    user: Mapping[str, Any]
    resource: str
    action: str

    @property
    def identity(self) -> str:
        return str(self.user["identity"])


class Asked(NamedTuple):
    """A recorded ask of a handler."""

    identity: str
    resource: str
    action: str
    value: dict[str, Any]


Handler = Callable[[Context, dict[str, Any]], Any]


def user(name: str, **custom: Any) -> dict[str, Any]:
    """Return a user as a graph host returns it."""
    return {
        "identity": name, "display_name": name, "is_authenticated": True, "permissions": [f"of:{name}"],
        "team": f"team of {name}", **custom,
    }  # fmt: skip


def allow(ctx: Context, value: dict[str, Any]) -> None:
    """Allow everything to every user."""


def owner_only(ctx: Context, value: dict[str, Any]) -> dict[str, Any] | None:
    """Filter by owner, set the owner on new records, and give each user a separate namespace of the store."""
    if ctx.resource == "store":
        value["namespace"] = [ctx.identity, *(value["namespace"] or ())]
        return None
    value["metadata"] = {**(value.get("metadata") or {}), "owner": ctx.identity}
    return {"owner": ctx.identity}


def refuse(ctx: Context, value: dict[str, Any]) -> bool:
    return False


def crash(ctx: Context, value: dict[str, Any]) -> None:
    raise RuntimeError("a secret of the project's")


@dataclass
class PlayedAuth:
    """Answers `shared.hosts.calls.call` as a graph host with this `Auth` object would.

    `users` maps bearer tokens to known users. Handlers are plain functions. The most specific one is called, and an ask
    without a handler is allowed.
    """

    users: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: user(name) for name in ("ann", "bob")}
    )
    handlers: dict[Key, Handler] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)  # every ask that reached a handler
    authenticated: list[Mapping[str, Any]] = field(default_factory=list)  # facts of every request
    calls: list[Mapping[str, Any]] = field(default_factory=list)  # documents of all calls as received
    revisions: list[UUID] = field(default_factory=list)  # revision of each call
    failure: Exception | None = None  # raised instead of an answer to `authorize`
    answer: Callable[[Mapping[str, Any]], bytes] | None = None  # replaces the answer to every call

    def on(self, handler: Handler, resource: str = ANY, action: str = ANY) -> None:
        self.handlers[resource, action] = handler

    def pairs(self) -> list[Key]:
        """Return `(resource, action)` of each ask, in order."""
        return [(asked.resource, asked.action) for asked in self.asked]

    def value(self, resource: str, action: str) -> dict[str, Any]:
        """Return the value of the last ask for this resource and action."""
        return next(a.value for a in reversed(self.asked) if (a.resource, a.action) == (resource, action))

    def forget(self) -> None:
        for record in (self.asked, self.authenticated, self.calls, self.revisions):
            record.clear()

    def call(self, request: HostCall) -> bytes:
        sent: Any = loads(dumps(request.document))
        self.calls.append(sent)
        self.revisions.append(request.revision_id)
        if self.answer is not None:
            return self.answer(sent)
        if sent["op"] == "authenticate":
            return dumps(self._authenticated(sent["request"])).encode()
        assert sent["op"] == "authorize", sent["op"]
        if self.failure is not None:
            raise self.failure
        return dumps(self._authorized(sent["user"], sent["asks"])).encode()

    def _authenticated(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        self.authenticated.append(facts)
        token = dict(facts["headers"]).get("authorization", "").removeprefix("Bearer ")
        if token in self.users:
            return {"user": self.users[token]}
        return {"denied": {"status": 401, "detail": "who are you?", "headers": {"WWW-Authenticate": "Basic"}}}

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
    """Return the handler keys to try, most specific first."""
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


def protect(deployment: DeploymentRef, **auth: Any) -> None:
    """Give the serving revision an `auth` object, by default with a handler for everything."""
    stored = {"auth": {"parameters": ["headers"], "handlers": EVERYTHING, **auth}}
    with connection() as conn:
        conn.execute(
            update(REVISION).where(REVISION.c.id == deployment.active_revision_id).values(user_code=stored)
        )
    forget_deployments()
    cached_users.forget()
