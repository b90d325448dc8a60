"""Routing of a request, before its caller is known: to a route of the project's app or to a built-in one.

This module applies the `http` section of a langgraph.json to the router: its `mount_prefix`, the interfaces that it
disables, and the app, whose routes take precedence over the built-in ones. The build has stored the app's routes, and
this module matches them by Starlette's rules. Built-in routes therefore work without user code and while no host is
running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from cachetools import LRUCache
from flask import Response, current_app, request
from flask.globals import request_ctx
from werkzeug.exceptions import Forbidden, HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter, RequestRedirect, Rule

from shared import errors
from shared.deployments.deployments import NO_USER_CODE, DeploymentRef
from shared.deployments.user_code import Route
from web.gate import deployments
from web.gate.addresses import (
    AT_ROOT,
    DEPLOYMENT_PREFIX,
    DISCOVERY,
    NOWHERE,
    RequestAddress,
    deployment_address,
)
from web.gate.context import settings
from web.gate.credentials import Credentials
from web.gate.deployments import NO_DEPLOYMENT, DeploymentLookup
from web.schemas import operations
from web.schemas.operations import Role, of_view

OK = "/ok"  # the health check, available at the root as well as under a prefix
HEALTH_ENDPOINTS = "deployment_health."  # routes that answer 404 under the name of a missing deployment
# Paths that the service answers even if the app has such a route. `disable_meta` leaves them to the app.
RESERVED_PATHS = frozenset({"/ok", "/docs", "/openapi.json"})

_routes_by_revision: LRUCache[UUID, AppRoutes] = LRUCache(256)


class ReadOnly(errors.Forbidden):
    """This deployment belongs to a replay: its threads can be read, and nothing can be created or changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """The route of a request, and how it is guarded."""

    address: RequestAddress
    role: Role  # the lowest role that may make the request
    is_app: bool = False  # a route of the project's app
    is_guarded: bool = False  # the project's authorization runs before the app's route
    is_missing_page: bool = False  # a public page that does not exist, or that the project has switched off
    existing_name: str | None = None  # a public route that answers 404 if no deployment has this name
    refusal: Exception | None = None  # raised once the caller is known


def look_up(address: RequestAddress, credentials: Credentials) -> tuple[RequestAddress, DeploymentLookup]:
    """Look up the deployment that a request addresses. Returns `(address, lookup)`.

    Under `runyard dev`, a path below SERVICE_PREFIXES without a route of the service becomes a path of the deployment if
    the deployment's app has a route for it.
    """
    if address.name is not None:
        return address, deployments.find(address.name, credentials)
    name = settings().dev_deployment
    if name is None or address.is_at_root or not isinstance(request.routing_exception, NotFound):
        return address, NO_DEPLOYMENT
    lookup = deployments.find(name, credentials)
    deployment = lookup.deployment
    path = None if deployment is None else below_prefix(mount_prefix(deployment), request.path)
    if deployment is None or path is None or not _matches_app(deployment, path, address.is_websocket):
        return address, NO_DEPLOYMENT
    request.path = request.environ["PATH_INFO"] = f"{DEPLOYMENT_PREFIX}{name}{request.path}"
    request.environ[AT_ROOT] = True
    return replace(address, name=name, is_at_root=True), lookup


def choose(address: RequestAddress, lookup: DeploymentLookup) -> RouteChoice:
    """Choose the route of a request. Raises nothing: a refusal is kept until the caller is known."""
    chosen = _choose(address, lookup)
    is_bench = lookup.deployment is not None and lookup.deployment.is_bench
    if is_bench and (chosen.is_app or chosen.role not in ("open", "read")):
        return _refuse(chosen.address, ReadOnly())
    return chosen


def _choose(address: RequestAddress, lookup: DeploymentLookup) -> RouteChoice:
    """Choose between the project's routes and the built-in ones. Routes the request again if that is necessary."""
    if lookup.refusal is not None:
        return _refuse(address, lookup.refusal)
    deployment = lookup.deployment
    if deployment is None or (not deployment.http and deployment.user_code is NO_USER_CODE):
        return _built_in(address)
    prefix = mount_prefix(deployment)
    path = below_prefix(prefix, address.path)
    if path is None:
        return _refuse(address, Forbidden() if address.is_websocket else NotFound())
    is_unknown_path = address.path == NOWHERE
    if path != address.path:
        _route_again(f"{DEPLOYMENT_PREFIX}{address.name}{path}")
        address = replace(address, path=path, root_path=address.root_path + prefix)
    rule = request.url_rule or _rule_for_another_method()
    is_disabled = rule is not None and has_disabled(deployment, rule)
    if not is_unknown_path and _is_for_app(deployment, address, is_disabled=is_disabled):
        request.url_rule = request.view_args = request.routing_exception = None
        return RouteChoice(address=address, role="read", is_app=True, is_guarded=_guards_app(deployment))
    if rule is not None and is_disabled:
        is_page = of_view(current_app.view_functions[rule.endpoint]).role == "open"
        return _refuse(address, NotFound(), is_missing_page=is_page)
    return _built_in(address)


def _built_in(address: RequestAddress) -> RouteChoice:
    """Return the built-in route that the router has found."""
    if request.view_args is not None:
        request.view_args.pop("deployment", None)  # views read the name from the context
    operation = operations.current()
    if operation is None and DISCOVERY.fullmatch(address.path):
        # A client of OAuth asks for these without a key, and would take a 401 for a failure of the service.
        return _refuse(address, NotFound(), is_missing_page=True)
    if operation is None:
        role: Role = "read"  # only holders of a key may learn which paths exist
    elif request.method == "OPTIONS" and operation.role != "open":
        role = "read"  # the response only names the methods of a path
    else:
        role = operation.role
    return RouteChoice(address=address, role=role, existing_name=_existing_name(address))


def _existing_name(address: RequestAddress) -> str | None:
    """Return the name that a health route requires a deployment to have, or None for other routes.

    `runyard dev` answers at its root before it has built its deployment.
    """
    if request.url_rule is None or not request.url_rule.endpoint.startswith(HEALTH_ENDPOINTS):
        return None
    is_root_of_dev = address.is_at_root and address.name == settings().dev_deployment
    return None if is_root_of_dev else address.name


def _refuse(address: RequestAddress, refusal: Exception, *, is_missing_page: bool = False) -> RouteChoice:
    request.url_rule = request.view_args = None
    return RouteChoice(address=address, role="read", refusal=refusal, is_missing_page=is_missing_page)


def mount_prefix(deployment: DeploymentRef) -> str:
    return str(deployment.http.get("mount_prefix") or "")


def deployment_url(deployment: DeploymentRef, base_url: str) -> str:
    """Return the URL of a deployment for clients. `base_url` is the URL of the service."""
    return deployment_address(settings(), base_url, deployment.address_name, mount_prefix(deployment))


def below_prefix(prefix: str, path: str) -> str | None:
    """Return a path without its required prefix, or None if it does not have the prefix."""
    if not prefix or path == OK or DISCOVERY.fullmatch(path):
        return path
    if path != prefix and not path.startswith(prefix + "/"):
        return None
    return path.removeprefix(prefix) or "/"


def has_disabled(deployment: DeploymentRef, rule: Rule) -> bool:
    """Return whether the deployment's langgraph.json disables this built-in route."""
    if rule.rule.endswith(OK):
        return False
    switches = of_view(current_app.view_functions[rule.endpoint]).group.switches
    return any(deployment.http.get(switch) for switch in switches)


def refuse_or_redirect(route: RouteChoice) -> Response | None:
    """Raise the refusal that was kept until the caller is known, or redirect `…/threads/` to `…/threads`.

    Returns None for a request that goes on to its view. The redirect applies inside a deployment. It is relative,
    since only the client knows the prefix that a proxy may have put before the path.
    """
    if route.refusal is not None:
        raise route.refusal
    is_unknown = isinstance(request.routing_exception, NotFound)
    if route.address.name is None or not is_unknown or not route.address.path.endswith("/"):
        return None
    stripped = request.path.rstrip("/")
    try:
        _adapter().match(stripped)
    except (NotFound, RequestRedirect):
        return None
    except MethodNotAllowed:
        pass
    query = request.query_string.decode()
    target = "../" * (len(request.path) - len(stripped)) + stripped.rpartition("/")[2]
    return Response(status=307, headers={"Location": f"{target}?{query}" if query else target})


def _adapter() -> MapAdapter:
    adapter = request_ctx.url_adapter
    assert adapter is not None
    return adapter


def _route_again(path: str) -> None:
    """Let the router match the request again, by another path."""
    request.path = request.environ["PATH_INFO"] = path
    request.url_rule = request.view_args = request.routing_exception = None
    try:
        request.url_rule, view_args = _adapter().match(path, return_rule=True)
        request.view_args = dict(view_args)
    except HTTPException as error:
        request.routing_exception = error


def _rule_for_another_method() -> Rule | None:
    error = request.routing_exception
    if not isinstance(error, MethodNotAllowed) or not error.valid_methods:
        return None
    try:
        rule, _ = _adapter().match(request.path, method=next(iter(error.valid_methods)), return_rule=True)
    except (HTTPException, RequestRedirect):
        return None
    return rule


def _guards_app(deployment: DeploymentRef) -> bool:
    """Return whether the project's authorization runs before the app's routes."""
    has_auth = deployment.user_code.auth is not None
    return has_auth and bool(deployment.http.get("enable_custom_route_auth"))


def _app_routes(deployment: DeploymentRef) -> AppRoutes | None:
    """Return the routes of the deployment's app, or None without an app. Those of a revision never change."""
    app, revision_id = deployment.user_code.app, deployment.active_revision_id
    if app is None or revision_id is None:
        return None
    routes = _routes_by_revision.get(revision_id)
    if routes is None:
        routes = _routes_by_revision[revision_id] = AppRoutes(app.routes)
    return routes


def _matches_app(deployment: DeploymentRef, path: str, is_websocket: bool) -> bool:
    """Return whether the deployment's app has a route for exactly this request."""
    routes = _app_routes(deployment)
    return routes is not None and routes.match(request.method, path, is_websocket=is_websocket)


def _is_for_app(deployment: DeploymentRef, address: RequestAddress, *, is_disabled: bool) -> bool:
    """Return whether the app answers the request: by a route of its own, or because no built-in route does."""
    routes, path, is_websocket = _app_routes(deployment), address.path, address.is_websocket
    if routes is None or (path in RESERVED_PATHS and not deployment.http.get("disable_meta")):
        return False
    if routes.match(request.method, path, is_websocket=is_websocket):
        return True
    is_unknown = is_disabled or isinstance(request.routing_exception, NotFound)
    return is_unknown and routes.matches_other_method_or_slash(path, is_websocket=is_websocket)


HTTP, WEBSOCKET, MOUNT = "http", "websocket", "mount"
CONVERTERS = {
    "str": "[^/]+",
    "path": ".*",
    "int": "[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
}
PARAMETER = re.compile(r"\{([a-zA-Z_]\w*)(?::([a-zA-Z_]\w*))?\}")

ANY_PATHS = ("/x", "/x/y", "/x/y/z")


@dataclass(frozen=True, slots=True)
class _CompiledRoute:
    pattern: re.Pattern[str]
    methods: frozenset[str]  # empty: every method
    kind: str
    is_for_all: bool = False  # matches every path, and therefore comes after the built-in routes

    def takes(self, method: str, is_websocket: bool) -> bool:
        if self.kind == MOUNT:
            return True
        if is_websocket:
            return self.kind == WEBSOCKET
        return self.kind == HTTP and (not self.methods or method in self.methods)

    def takes_some_method(self, is_websocket: bool) -> bool:
        return self.kind == MOUNT or (self.kind == WEBSOCKET) == is_websocket


class AppRoutes:
    """The routes of one app.

    A route that matches every path comes after the built-in routes, since it would hide all of them.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [_compile(route) for route in routes]

    def match(self, method: str, path: str, *, is_websocket: bool) -> bool:
        """Return whether the app has a route for exactly this request, apart from routes that match every path."""
        return any(
            route.takes(method, is_websocket) and not route.is_for_all and route.pattern.fullmatch(path)
            for route in self._routes
        )

    def matches_other_method_or_slash(self, path: str, *, is_websocket: bool) -> bool:
        """Return whether the app answers a path that no built-in route matches.

        It does if one of its routes matches every path, or matches this path with another method or with a trailing
        slash more or less. The app then answers with a 405 or a redirect.
        """
        other = path.rstrip("/") if path.endswith("/") else path + "/"
        return any(
            route.takes_some_method(is_websocket)
            and (route.pattern.fullmatch(path) or route.pattern.fullmatch(other))
            for route in self._routes
        )


def _compile(route: Route) -> _CompiledRoute:
    pattern = _path_pattern(route)
    is_for_all = all(pattern.fullmatch(path) for path in ANY_PATHS)
    return _CompiledRoute(pattern, _allowed_methods(route), route.kind, is_for_all)


def _allowed_methods(route: Route) -> frozenset[str]:
    methods = frozenset(method.upper() for method in route.methods)
    return methods | {"HEAD"} if "GET" in methods else methods


def _path_pattern(route: Route) -> re.Pattern[str]:
    """Compile a path as Starlette reads it. A custom converter of the app matches one segment of the path."""
    path = route.path.rstrip("/") + "/{path:path}" if route.kind == MOUNT else route.path
    pattern, at = "", 0
    for parameter in PARAMETER.finditer(path):
        pattern += re.escape(path[at : parameter.start()])
        pattern += CONVERTERS.get(parameter[2] or "str", CONVERTERS["str"])
        at = parameter.end()
    return re.compile(pattern + re.escape(path[at:]), re.DOTALL)
