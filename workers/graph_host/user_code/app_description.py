"""What a project's app answers, read off it once when the revision is built: routes, documentation, middleware.

Known are the apps of Starlette, and of FastAPI, which is made of it. Of any other ASGI app nothing can be said but
that all it is asked for is its own.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..serialization import dumps, loads

log = logging.getLogger("runyard")

Route = dict[str, Any]
WHOLE: Route = {"path": "", "methods": [], "kind": "mount"}


def describe(app: Any) -> dict[str, Any]:
    """The app's routes in the order in which it tries them, its OpenAPI document, its middleware and its CORS."""
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
            case "included":  # a router, as FastAPI holds one since it joins paths as late as it can
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
    """The document of a FastAPI app that shows one."""
    make = getattr(app, "openapi", None)
    if not callable(make) or getattr(app, "openapi_url", None) is None:
        return None
    try:
        return loads(dumps(make()))
    except Exception:  # the app's own models, of any kind
        log.warning("http.app: its OpenAPI document cannot be made", exc_info=True)
        return None


def _is_cors(middleware: Any) -> bool:
    """Whether it is Starlette's own, whose settings can be read off and carried out elsewhere."""
    cls = middleware.cls
    return (cls.__module__, cls.__name__) == ("starlette.middleware.cors", "CORSMiddleware")


def _settings(cors: Any) -> Mapping[str, Any]:
    """What a CORSMiddleware was given, by name, with its defaults."""
    options = getattr(cors, "kwargs", None) or getattr(cors, "options", {})
    bound = inspect.signature(cors.cls).bind(None, *getattr(cors, "args", ()), **options)
    bound.apply_defaults()
    return loads(dumps({name: value for name, value in bound.arguments.items() if name != "app"}))
