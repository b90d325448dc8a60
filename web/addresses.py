"""The addresses a route can be reached at, folded into one before routing.

The control plane is at the root and under `/api-host`; its callers follow no redirects, so a trailing slash
there means the same route. A path that could climb out of its route past a proxy is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

CONTROL_PLANE_MOUNT = "/api-host"
DEPLOYMENT_PREFIX = "/d/"
NOWHERE = "/.nowhere"  # no route can have it

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def deployment_path(path: str) -> str | None:
    """The path inside a deployment (`/threads` of `/d/chat/threads`); None for what is not in one."""
    if not path.startswith(DEPLOYMENT_PREFIX):
        return None
    _name, slash, rest = path.removeprefix(DEPLOYMENT_PREFIX).partition("/")
    return slash + rest if slash else "/"


class Addresses:
    """WSGI middleware that gives every request the one path its route is known by."""

    def __init__(self, app: Wsgi) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == CONTROL_PLANE_MOUNT or path.startswith(CONTROL_PLANE_MOUNT + "/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + CONTROL_PLANE_MOUNT
            path = path.removeprefix(CONTROL_PLANE_MOUNT) or "/"
        if path.startswith(("/v1/", "/v2/")):
            path = path.rstrip("/")
        if _climbs(path, environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""):
            path = NOWHERE
        environ["PATH_INFO"] = path
        return self.app(environ, start_response)


def _climbs(path: str, raw: str) -> bool:
    """Whether a path holds a parent step, a NUL or an escaped slash."""
    raw_path = raw.partition("?")[0].lower()
    return "\x00" in path or "%2f" in raw_path or ".." in path.split("/")
