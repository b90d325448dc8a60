"""Resolution of what a request to a deployment is for, before authentication: the app's route or a built-in one.

This module applies the `http` section of a langgraph.json to the router: its `mount_prefix`, the interfaces that it
disables, and the app, whose routes take precedence over the built-in ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from flask import current_app, g, request
from flask.globals import request_ctx
from werkzeug.exceptions import Forbidden, HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import RequestRedirect, Rule

from shared.deployments.deployments import NO_USER_CODE, DeploymentRef
from shared.errors import Unavailable
from web.gate import app_routes, named
from web.gate.addresses import AT_ROOT, DEPLOYMENT_PREFIX, NOWHERE, deployment_path
from web.gate.context import settings
from web.schemas.operations import of_view

OK = "/ok"  # the health check, available at the root as well as under a prefix


@dataclass(frozen=True, slots=True)
class Target:
    """The deployment of a request, which has settings or an app of its own, and what the request is for there."""

    deployment: DeploymentRef
    path: str  # inside the deployment, without the prefix
    root_path: str  # the part of the client's path before `path`
    is_for_app: bool = False
    is_websocket: bool = False

    @property
    def asks_first(self) -> bool:
        """Whether the project's authorization runs before the app's routes."""
        has_auth = self.deployment.user_code.auth is not None
        return has_auth and bool(self.deployment.http.get("enable_custom_route_auth"))


def target() -> Target | None:
    """Return the target of the current request. None outside of deployments, and without settings or an app."""
    return g.get("target")


def is_on(switch: str) -> bool:
    """Return whether the langgraph.json of the deployment that is called has this switch on."""
    found = target()
    return found is not None and bool(found.deployment.http.get(switch))


def find() -> None:
    """Find the target of the current request, and route the request again if the deployment requires it.

    Raises nothing: a refusal is answered once the caller is known.
    """
    _take_from_control_plane()
    inner = deployment_path(request.path)
    if inner is None:
        return
    name = request.path.removeprefix(DEPLOYMENT_PREFIX).partition("/")[0]
    try:
        deployment = named.deployment(name)
    except Unavailable as error:
        refuse(error)
        return
    if deployment is None or (not deployment.http and deployment.user_code is NO_USER_CODE):
        return
    prefix = str(deployment.http.get("mount_prefix") or "")
    path = _below(prefix, inner)
    is_websocket = _asks_for_socket()
    mount = request.script_root + ("" if AT_ROOT in request.environ else f"{DEPLOYMENT_PREFIX}{name}")
    if path is None:
        g.target = Target(deployment, inner, mount, is_websocket=is_websocket)
        refuse(Forbidden() if is_websocket else NotFound())
        return
    if path != inner:
        _route_to(f"{DEPLOYMENT_PREFIX}{name}{path}")
        mount += prefix
    _switch_off(deployment)
    is_for_app = inner != NOWHERE and _is_for_app(deployment, path, is_websocket)
    if is_for_app:
        request.url_rule = request.view_args = request.routing_exception = None
    g.target = Target(deployment, path, mount, is_for_app, is_websocket)


def _take_from_control_plane() -> None:
    """Route a request to the deployment at the root if its app has the route and the control plane does not."""
    name = settings().dev_deployment
    if name is None or not isinstance(request.routing_exception, NotFound) or AT_ROOT in request.environ:
        return
    if deployment_path(request.path) is not None:
        return
    try:
        deployment = named.deployment(name)
    except Unavailable:
        return
    app = None if deployment is None else deployment.user_code.app
    if deployment is None or app is None or deployment.active_revision_id is None:
        return
    path = _below(str(deployment.http.get("mount_prefix") or ""), request.path)
    routes = app_routes.of_revision(deployment.active_revision_id, app)
    if path is not None and routes.match(request.method, path, is_websocket=_asks_for_socket()):
        request.path = request.environ["PATH_INFO"] = f"{DEPLOYMENT_PREFIX}{name}{request.path}"
        request.environ[AT_ROOT] = True


def _asks_for_socket() -> bool:
    return request.environ.get("HTTP_UPGRADE", "").lower() == "websocket"


def refuse(error: Exception) -> None:
    """Answer the request with this error once the caller is known, as with errors of the router."""
    g.is_refused = True
    request.url_rule = request.view_args = None
    request.routing_exception = error  # type: ignore[assignment]


def answer_refusal() -> None:
    """Answer 404 for a disabled route that needs no key. Must be registered before authentication."""
    found = target()
    if g.get("is_open_refusal") and not (found is not None and found.is_for_app):
        raise NotFound


def is_off(deployment: DeploymentRef, rule: Rule) -> bool:
    """Return whether the deployment's langgraph.json disables this built-in route."""
    if rule.rule.endswith(OK):
        return False
    switches = of_view(current_app.view_functions[rule.endpoint]).group.switches
    return any(deployment.http.get(switch) for switch in switches)


def _below(prefix: str, inner: str) -> str | None:
    """Return a path without its required prefix, or None if it does not have the prefix."""
    if not prefix or inner == OK:
        return inner
    if inner != prefix and not inner.startswith(prefix + "/"):
        return None
    return inner.removeprefix(prefix) or "/"


def _route_to(path: str) -> None:
    """Let the router match the request again, by another path."""
    request.path = request.environ["PATH_INFO"] = path
    adapter = request_ctx.url_adapter
    assert adapter is not None
    request.url_rule = request.view_args = request.routing_exception = None
    try:
        request.url_rule, found = adapter.match(path, return_rule=True)
        request.view_args = dict(found)
    except HTTPException as error:
        request.routing_exception = error


def _switch_off(deployment: DeploymentRef) -> None:
    rule = request.url_rule or _rule_for_another_method()
    if rule is not None and is_off(deployment, rule):
        g.is_open_refusal = of_view(current_app.view_functions[rule.endpoint]).role == "open"
        refuse(NotFound())


def _rule_for_another_method() -> Rule | None:
    error = request.routing_exception
    if not isinstance(error, MethodNotAllowed) or not error.valid_methods:
        return None
    adapter = request_ctx.url_adapter
    assert adapter is not None
    try:
        rule, _ = adapter.match(request.path, method=next(iter(error.valid_methods)), return_rule=True)
    except (HTTPException, RequestRedirect):
        return None
    return rule


def _is_for_app(deployment: DeploymentRef, path: str, is_websocket: bool) -> bool:
    app = deployment.user_code.app
    if app is None or deployment.active_revision_id is None:
        return False
    if not deployment.http.get("disable_meta") and path in app_routes.OWN_HEALTH | app_routes.OWN_PAGES:
        return False
    routes = app_routes.of_revision(deployment.active_revision_id, app)
    if routes.match(request.method, path, is_websocket=is_websocket):
        return True
    is_unknown = isinstance(request.routing_exception, NotFound)
    return is_unknown and routes.nearly(path, is_websocket=is_websocket)
