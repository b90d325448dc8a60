"""Description of a project's app: its routes, documentation and middleware, read once when the revision is built.

Apps of Starlette and of FastAPI, which is based on it, can be described. Any other ASGI app is described as one mount
that serves all paths.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..serialization import dumps, loads

log = logging.getLogger("runyard")

Route = dict[str, Any]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
WHOLE: Route = {"path": "", "methods": [], "kind": "mount"}


def describe(app: Any) -> dict[str, Any]:
    """Return the app's routes in the order of matching, its OpenAPI document, its middleware and its CORS settings."""
    routes = getattr(app, "routes", None)
    used = list(getattr(app, "user_middleware", ()))
    cors = next((one for one in used if _is_cors(one)), None)
    return {
        "routes": [WHOLE] if routes is None else list(_described(routes)),
        "openapi": _openapi(app),
        "middleware": [one.cls.__name__ for one in used if one is not cors],
        "cors": None if cors is None else _settings(cors),
    }


def _described(routes: Iterable[Any]) -> Iterator[Route]:
    for route in routes:
        match _kind(route):
            case "included":  # an included router: FastAPI joins its paths lazily
                contexts = route.effective_route_contexts()
                yield from _described(each.starlette_route or each for each in contexts)
            case "host":
                yield from _described(route.routes)
            case "mount" if not route.path and route.routes:
                yield from _described(route.routes)
            case "unknown":
                log.warning("http.app: a %s is no route that can be served", type(route).__name__)
            case kind:
                methods = sorted(getattr(route, "methods", None) or ()) if kind == "http" else []
                yield {"path": route.path, "methods": methods, "kind": kind}


def _kind(route: Any) -> str:
    if hasattr(route, "effective_route_contexts"):
        return "included"
    routing = sys.modules.get("starlette.routing")
    for name, kind in (("Mount", "mount"), ("Host", "host"), ("WebSocketRoute", "websocket")):
        if isinstance(route, getattr(routing, name, ())):
            return kind
    return "http" if getattr(route, "path", None) else "unknown"


def _openapi(app: Any) -> dict[str, Any] | None:
    """Return the document that a FastAPI app publishes, or a document generated from a Starlette app's routes."""
    make = getattr(app, "openapi", None)
    if make is None:
        paths = dict(_paths(getattr(app, "routes", None) or ()))
        return {"openapi": "3.1.0", "paths": paths} if paths else None
    if not callable(make) or getattr(app, "openapi_url", None) is None:
        return None
    try:
        return loads(dumps(make()))
    except Exception:  # any error of the app's own models
        log.warning("http.app: its OpenAPI document cannot be made", exc_info=True)
        return None


def _paths(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, Route]]:
    """Yield each path with its operations. Leaves out mounted apps that have their own document."""
    for route in routes:
        kind = _kind(route)
        if kind == "host" or (kind == "mount" and not hasattr(route.app, "openapi")):
            yield from _paths(route.routes or (), prefix + (route.path if kind == "mount" else ""))
        elif kind == "http" and getattr(route, "include_in_schema", True):
            path = PARAMETER.sub(r"{\1}", prefix + route.path)
            yield path, {method.lower(): _operation(route, method, path) for method in _methods(route)}


def _methods(route: Any) -> list[str]:
    """Return the methods of a route. A class-based endpoint has one function for each method."""
    if route.methods is not None:
        return sorted(route.methods - {"HEAD", "OPTIONS"})
    return [method for method in METHODS if hasattr(route.endpoint, method.lower())]


def _operation(route: Any, method: str, path: str) -> Route:
    endpoint = route.endpoint
    described = endpoint if inspect.isroutine(endpoint) else getattr(endpoint, method.lower(), endpoint)
    text = inspect.getdoc(described) if described.__doc__ else None
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    return {
        "operationId": re.sub(r"\W+", "_", f"app_{method.lower()}{path}").strip("_"),
        "summary": f"{method} {path}",
        "tags": ["App"],
        "parameters": parameters,
        "responses": {"default": {"description": "The answer of the app"}},
        **({"description": text} if text else {}),
    }


def _is_cors(middleware: Any) -> bool:
    """Whether this is Starlette's CORSMiddleware, whose settings the web process can apply itself."""
    cls = middleware.cls
    return (cls.__module__, cls.__name__) == ("starlette.middleware.cors", "CORSMiddleware")


def _settings(cors: Any) -> Mapping[str, Any]:
    """Return the arguments of a CORSMiddleware by name, including defaults."""
    options = getattr(cors, "kwargs", None) or getattr(cors, "options", {})
    bound = inspect.signature(cors.cls).bind(None, *getattr(cors, "args", ()), **options)
    bound.apply_defaults()
    return loads(dumps({name: value for name, value in bound.arguments.items() if name != "app"}))
