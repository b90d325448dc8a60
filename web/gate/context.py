"""The context of the current request, which the gate creates and views read, and calls to its authorization.

`deployment` raises before the first such call, if the deployment has `auth`. A route that forgets to authorize
therefore fails instead of serving the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from flask import Flask, current_app, g, request

from shared.access.api_keys import Caller
from shared.deployments.deployments import DeploymentRef
from shared.errors import Forbidden, NotFound
from shared.infra import logs
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps
from shared.infra.trace_context import Context
from shared.settings import Settings
from shared.user_code import authorization
from shared.user_code.authorization import Ask, Granted
from shared.user_code.users import User
from web.gate import deployments
from web.gate.addresses import RequestAddress
from web.gate.credentials import Credentials


@dataclass(slots=True)
class Authorization:
    """The deployment of a request, and whether the request has called the deployment's authorization."""

    unchecked_deployment: DeploymentRef
    is_authorized: bool = False

    @property
    def deployment(self) -> DeploymentRef:
        """The deployment. Raises RuntimeError if it has its own authorization and the route did not call it first."""
        if self.unchecked_deployment.user_code.auth is not None and not self.is_authorized:
            raise RuntimeError("the route has not called the deployment's authorization")
        return self.unchecked_deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Everything that the gate established about a request. Only the gate creates it."""

    request_id: str
    trace: Context | None = None  # place in a distributed trace; None for a command over a socket
    address: RequestAddress | None = None  # None for a command over a socket
    credentials: Credentials | None = None  # None for a command over a socket
    caller: Caller | None = None  # None on public routes
    user: User | None = None  # identified by the deployment's `auth`; None without one
    authorization: Authorization | None = None  # None without a deployment
    run_headers: dict[str, str]  # for runs that the request creates, by `http.configurable_headers`


def context() -> RequestContext:
    """Return the context of the current request. Not available to requests that the gate refused."""
    current: RequestContext = g.context
    return current


def publish(context: RequestContext) -> None:
    """Make this the context of the current request. Only for the gate."""
    g.context = context


def settings() -> Settings:
    configured: Settings = current_app.config["SETTINGS"]
    return configured


def caller() -> Caller:
    """Return the authenticated caller of the request. Not available on public routes."""
    authenticated = context().caller
    if authenticated is None:
        raise RuntimeError("a public route has no caller")
    return authenticated


def address() -> RequestAddress:
    """Return the address of the current request. Not available to commands over a socket."""
    current = context().address
    if current is None:
        raise RuntimeError("a command over a socket has no address")
    return current


def credentials() -> Credentials:
    """Return the credentials of the current request. Not available to commands over a socket."""
    current = context().credentials
    if current is None:
        raise RuntimeError("a command over a socket has no credentials")
    return current


def user() -> User | None:
    """Return the user that the deployment's authorization identified, or None if the deployment has no authorization."""
    return context().user


def user_document() -> Mapping[str, Any] | None:
    """Return the user as graphs see them, or None if the deployment has no authorization."""
    identified = user()
    return None if identified is None else identified.document


def authorization_state() -> Authorization:
    """Return the state of the request's authorization. Only for routes of the deployment API."""
    current = context().authorization
    if current is None:
        raise RuntimeError("the request is for no deployment")
    return current


def deployment() -> DeploymentRef:
    """Return the deployment of the current request. Only for routes of the deployment API.

    Raises RuntimeError if the deployment has its own authorization and the route did not call it first.
    """
    return authorization_state().deployment


def unchecked_deployment() -> DeploymentRef:
    """Return the deployment before authorization.

    Only for lookups that determine what to authorize: the caller must not learn their result before that.
    """
    return authorization_state().unchecked_deployment


def request_id() -> str:
    return context().request_id


def trace() -> Context | None:
    return context().trace


def run_headers() -> dict[str, str]:
    """Return the headers for runs that the current request creates. Over a WebSocket: those of the opening request."""
    return context().run_headers


def configured_url() -> str:
    """Return the URL of the service for documents that other callers read: they must not contain a caller's Host header.

    Only a service that listens on every address and has no `RUNYARD_URL` returns `base_url`, since it has no other name.
    """
    configured = settings()
    is_unnamed = configured.listens_everywhere and configured.url == configured.local_url
    return base_url() if is_unnamed else configured.url.rstrip("/")


def base_url() -> str:
    """Return the URL of the service for the current caller: `RUNYARD_URL`, else the address that the caller used."""
    configured = settings()
    if configured.url != configured.local_url or not request.host:
        return configured.url.rstrip("/")
    return f"{request.scheme}://{request.host}"


MAX_METADATA_LENGTH = 256 * 1024  # characters of the JSON


def allow(resource: str, action: str, /, **value: Any) -> Granted:
    """Authorize one action. Raises Denied."""
    return allow_all([Ask(resource, action, value)])[0]


def allow_all(asks: Sequence[Ask]) -> list[Granted]:
    """Authorize several actions in one call. Returns a grant for each, in order. Raises Denied if one is denied."""
    state, identified = authorization_state(), user()
    deployment = state.unchecked_deployment
    if deployment.user_code.auth is None:
        granted = [Granted(ask.value) for ask in asks]
    elif identified is None:
        raise RuntimeError("the request has no user to authorize")
    else:
        granted = authorization.authorize(deployment, identified, asks)
    state.is_authorized = True
    return granted


def metadata_of(granted: Granted) -> dict[str, Any]:
    """Return the metadata of an allowed action, which a handler may have changed. Returns `{}` if there is none.

    Raises Denied (500) if a handler returned metadata that can be neither stored nor searched for.
    """
    metadata = granted.value.get("metadata")
    if metadata is None:
        return {}
    if user() is None:
        return metadata  # without authorization there are no handlers
    text = dumps(metadata)
    if not isinstance(metadata, dict) or len(text) > MAX_METADATA_LENGTH or document_holds_nul(text):
        reason = "a handler returned metadata that is not an object, is too large, or contains NUL"
        authorization.fail(unchecked_deployment(), reason)
    return metadata


@dataclass(frozen=True, slots=True)
class SocketContext:
    """The context of the request that opened a socket, kept for the commands that arrive over the socket.

    It does not keep the DeploymentRef: thousands of idle sockets would each keep a parsed `http` section.
    """

    app: Flask
    caller: Caller
    user: User | None
    request_id: str
    deployment_id: UUID
    deployment_name: str
    run_headers: dict[str, str]

    @classmethod
    def of_request(cls) -> SocketContext:
        opening, serving = context(), deployment()
        return cls(
            app=current_app._get_current_object(),  # type: ignore[attr-defined]
            caller=caller(),
            user=opening.user,
            request_id=opening.request_id,
            deployment_id=serving.id,
            deployment_name=serving.address_name,
            run_headers=opening.run_headers,
        )

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the context of the current greenlet. It has no deployment before `resolve_deployment` is called."""
        with self.app.app_context(), logs.bound(request_id=self.request_id):
            publish(
                RequestContext(
                    request_id=self.request_id,
                    caller=self.caller,
                    user=self.user,
                    run_headers=self.run_headers,
                )
            )
            yield

    def resolve_deployment(self) -> None:
        """Look the deployment up again, for one command within `activate`.

        Raises NotFound if it is gone, and Forbidden if the name now means another deployment, or if authorization was
        switched on or off.
        """
        serving = deployments.of_organization(self.caller.organization_id, self.deployment_name)
        if serving is None:
            raise NotFound("Not Found")
        has_auth = serving.user_code.auth is not None
        if serving.id != self.deployment_id or has_auth != (self.user is not None):
            raise Forbidden("The deployment or its authorization has changed: connect again")
        publish(replace(context(), authorization=Authorization(serving)))
