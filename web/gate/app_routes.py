"""Matching of requests against the routes of a project's app, which the build has stored, by Starlette's rules.

The web process does this, not the app, so that built-in routes work without user code and while no host is running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from shared.deployments.user_code import App, Route

KNOWN_APPS = 256
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

# Paths that the service answers even if the app has such a route. `disable_meta` leaves them to the app.
OWN_HEALTH = frozenset({"/ok"})
OWN_PAGES = frozenset({"/docs", "/openapi.json"})


@dataclass(frozen=True, slots=True)
class _Compiled:
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

    def is_kind_of(self, is_websocket: bool) -> bool:
        return self.kind == MOUNT or (self.kind == WEBSOCKET) == is_websocket


class Routes:
    """The routes of one app.

    A route that matches every path comes after the built-in routes, since it would hide all of them.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [_compiled(route) for route in routes]

    def match(self, method: str, path: str, *, is_websocket: bool) -> bool:
        """Return whether the app has a route for exactly this request, apart from routes that match every path."""
        return any(
            one.takes(method, is_websocket) and not one.is_for_all and one.pattern.fullmatch(path)
            for one in self._routes
        )

    def matches_other_method_or_slash(self, path: str, *, is_websocket: bool) -> bool:
        """Return whether the app answers a path that no built-in route matches.

        It does if one of its routes matches every path, or matches this path with another method or with a trailing
        slash more or less. The app then answers with a 405 or a redirect.
        """
        turned = path.rstrip("/") if path.endswith("/") else path + "/"
        return any(
            one.is_kind_of(is_websocket) and (one.pattern.fullmatch(path) or one.pattern.fullmatch(turned))
            for one in self._routes
        )


def of_revision(revision_id: UUID, app: App) -> Routes:
    """Return the routes of a revision's app. They never change and are cached."""
    known = _known.get(revision_id)
    if known is None:
        if len(_known) >= KNOWN_APPS:
            _known.clear()
        known = _known[revision_id] = Routes(app.routes)
    return known


_known: dict[UUID, Routes] = {}


def _compiled(route: Route) -> _Compiled:
    pattern = _pattern(route)
    is_for_all = all(pattern.fullmatch(path) for path in ANY_PATHS)
    return _Compiled(pattern, _methods(route), route.kind, is_for_all)


def _methods(route: Route) -> frozenset[str]:
    methods = frozenset(method.upper() for method in route.methods)
    return methods | {"HEAD"} if "GET" in methods else methods


def _pattern(route: Route) -> re.Pattern[str]:
    """Compile a path as Starlette reads it. A custom converter of the app matches one segment of the path."""
    path = route.path.rstrip("/") + "/{path:path}" if route.kind == MOUNT else route.path
    pattern, at = "", 0
    for parameter in PARAMETER.finditer(path):
        pattern += re.escape(path[at : parameter.start()])
        pattern += CONVERTERS.get(parameter[2] or "str", CONVERTERS["str"])
        at = parameter.end()
    return re.compile(pattern + re.escape(path[at:]), re.DOTALL)
