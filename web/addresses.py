"""The addresses a route can be reached at, folded into one before routing.

The control plane is at the root and under `/api-host`; its callers follow no redirects, so a trailing slash
there means the same route. A deployment is at `/d/<name>`, at `<name>.<RUNYARD_APP_DOMAIN>` where that is set,
and, the one that `runyard dev` serves, at the root beside the control plane. A path that could climb out of its
route past a proxy is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from shared.deployments.deployments import PATH_PREFIX
from shared.settings import Settings

CONTROL_PLANE_MOUNT = "/api-host"
DEPLOYMENT_PREFIX = PATH_PREFIX
NOWHERE = "/.nowhere"  # no route can have it
PATH_SAFE = "/:@!$&'()*+,;=~"  # what a path shows unescaped

# What stays the control plane's own at an address whose root is a deployment's.
CONTROL_PLANE_PREFIXES = ("/v1/", "/v2/", DEPLOYMENT_PREFIX, "/o/")

LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")  # what a name in a domain may be
AT_ROOT = "runyard.deployment_at_root"  # in the WSGI environment: the path outside had no prefix

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def deployment_path(path: str) -> str | None:
    """The path inside a deployment (`/threads` of `/d/chat/threads`); None for what is not in one."""
    if not path.startswith(DEPLOYMENT_PREFIX):
        return None
    _name, slash, rest = path.removeprefix(DEPLOYMENT_PREFIX).partition("/")
    return slash + rest if slash else "/"


def deployment_address(settings: Settings, base_url: str, name: str, mount_prefix: str | None = None) -> str:
    """Where clients find a deployment; `base_url` is where they find the service."""
    below = mount_prefix or ""
    if name == settings.dev_deployment:
        return base_url + below
    if settings.app_domain and LABEL.fullmatch(name):
        return f"{urlsplit(base_url).scheme}://{name}.{settings.app_domain}{below}"
    return f"{base_url}{DEPLOYMENT_PREFIX}{name}{below}"


class Addresses:
    """WSGI middleware that gives every request the one path its route is known by."""

    def __init__(self, app: Wsgi, settings: Settings) -> None:
        self.app = app
        self._at_root = settings.dev_deployment
        self._domain = f".{settings.app_domain.partition(':')[0].lower()}" if settings.app_domain else None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        name = self._named_by_host(environ)
        if name is None and (path == CONTROL_PLANE_MOUNT or path.startswith(CONTROL_PLANE_MOUNT + "/")):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + CONTROL_PLANE_MOUNT
            path = path.removeprefix(CONTROL_PLANE_MOUNT) or "/"
        elif name is None and self._at_root and not path.startswith(CONTROL_PLANE_PREFIXES):
            name = self._at_root
        if _climbs(path, environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""):
            path = f"{DEPLOYMENT_PREFIX}{name}{NOWHERE}" if name is not None else _nowhere(path)
        elif name is not None:
            environ[AT_ROOT] = True
            path = f"{DEPLOYMENT_PREFIX}{name}{path}"
        elif path.startswith(("/v1/", "/v2/")):
            path = path.rstrip("/")
        environ["PATH_INFO"] = path
        return self.app(environ, start_response)

    def _named_by_host(self, environ: dict[str, Any]) -> str | None:
        """The deployment that the Host header names, if its domain is for that."""
        if self._domain is None:
            return None
        host = environ.get("HTTP_HOST", "").partition(":")[0].lower().rstrip(".")
        label = host.removesuffix(self._domain)
        return label if label != host and LABEL.fullmatch(label) else None


def _nowhere(path: str) -> str:
    """No route, in the deployment that the path is in: who calls there is for that to say."""
    name = (
        path.removeprefix(DEPLOYMENT_PREFIX).partition("/")[0] if path.startswith(DEPLOYMENT_PREFIX) else ""
    )
    return f"{DEPLOYMENT_PREFIX}{name}{NOWHERE}" if name and "\x00" not in name else NOWHERE


def _climbs(path: str, raw: str) -> bool:
    """Whether a path holds a parent step, a NUL or an escaped slash."""
    raw_path = raw.partition("?")[0].lower()
    return "\x00" in path or "%2f" in raw_path or ".." in path.split("/")
