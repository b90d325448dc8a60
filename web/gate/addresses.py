"""Addresses of requests: the rewriting of paths before routing, and which deployment and client an address names.

All addresses of a route become one path. The control plane is at the root and under `/api-host`. Its clients follow no
redirects, so a trailing slash is ignored there. A deployment is at `/d/<name>`, and also at
`<name>.<RUNYARD_APP_DOMAIN>` if that is set. The deployment of `runyard dev` is also at the root, beside the control
plane. A path with a parent step, a NUL or an escaped slash matches no route, since it could get around the path rules
of a proxy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from flask import request

from shared.deployments.deployments import PATH_PREFIX
from shared.settings import Settings
from web.http.connections import V6_HOST_PREFIX, Network
from web.schemas.operations import CONTROL_PLANE

CONTROL_PLANE_MOUNT = "/api-host"
DEPLOYMENT_PREFIX = PATH_PREFIX
NOWHERE = "/.nowhere"  # a path that matches no route
PATH_SAFE = "/:@!$&'()*+,;=~"  # characters that stay unescaped in a path

# Where clients of OAuth ask for the description of a resource: its path follows that of the document.
DISCOVERY = re.compile(
    r"(/\.well-known/(?:oauth-protected-resource|oauth-authorization-server|openid-configuration))(/.*)?"
)

# Paths that `runyard dev` does not rewrite. All other paths at its root are those of its deployment.
SERVICE_PREFIXES = (*CONTROL_PLANE, DEPLOYMENT_PREFIX, "/o/")

LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label
AT_ROOT = "runyard.deployment_at_root"  # key in the WSGI environment: the client's path had no `/d/<name>`

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAddress:
    """The deployment that a request addresses, and the path there."""

    name: str | None  # of the deployment; None for the control plane and the service's own pages
    path: str  # inside the deployment, without its mount prefix
    root_path: str  # the part of the client's path before `path`
    is_websocket: bool
    is_at_root: bool  # the client's path had no `/d/<name>`


def locate() -> RequestAddress:
    """Return the address of the current request, as the WSGI middleware has rewritten it."""
    path, root_path, name = request.path, request.script_root, None
    is_at_root = AT_ROOT in request.environ
    if path.startswith(DEPLOYMENT_PREFIX):
        name, slash, rest = path.removeprefix(DEPLOYMENT_PREFIX).partition("/")
        path = slash + rest if slash else "/"
        root_path += "" if is_at_root else f"{DEPLOYMENT_PREFIX}{name}"
    is_websocket = request.environ.get("HTTP_UPGRADE", "").lower() == "websocket"
    return RequestAddress(
        name=name, path=path, root_path=root_path, is_websocket=is_websocket, is_at_root=is_at_root
    )


def client_address(settings: Settings) -> str:
    """Return the client address of the current request; behind a trusted proxy, the address that the proxy reports."""
    peer = request.remote_addr or ""
    if not is_proxied(request.environ, settings):
        return peer
    reported = request.environ["HTTP_X_FORWARDED_FOR"].rpartition(",")[2].strip()
    return reported if _parsed(reported) is not None else peer


def client_network(settings: Settings) -> str:
    """Return the client address of the current request, or the /64 network of an IPv6 address."""
    address = client_address(settings)
    parsed = _parsed(address)
    if parsed is not None and parsed.version == 6:
        return str(ipaddress.ip_network((parsed, V6_HOST_PREFIX), strict=False))
    return address


def is_proxied(environ: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether a trusted proxy has sent the request and reports its client's address."""
    return bool(environ.get("HTTP_X_FORWARDED_FOR")) and is_proxy(environ.get("REMOTE_ADDR", ""), settings)


def is_proxy(address: str, settings: Settings) -> bool:
    """Return whether an address is that of a trusted proxy."""
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in _networks(settings.proxy_addresses))


@lru_cache(8)
def _networks(addresses: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, addresses))


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def deployment_address(settings: Settings, base_url: str, name: str, mount_prefix: str | None = None) -> str:
    """Return the URL of a deployment for clients. `base_url` is the URL of the service."""
    prefix = mount_prefix or ""
    if name == settings.dev_deployment:
        return base_url + prefix
    if settings.app_domain and LABEL.fullmatch(name):
        return f"{urlsplit(base_url).scheme}://{name}.{settings.app_domain}{prefix}"
    return f"{base_url}{DEPLOYMENT_PREFIX}{name}{prefix}"


class Addresses:
    """WSGI middleware that rewrites every request's path to the one that its route is registered with."""

    def __init__(self, app: Wsgi, settings: Settings) -> None:
        self.app = app
        self._at_root = settings.dev_deployment
        self._domain = f".{settings.app_domain.partition(':')[0].lower()}" if settings.app_domain else None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        name = self._named_by_host(environ)
        if name is None:
            path = _within_deployment(path)
        if name is None and (path == CONTROL_PLANE_MOUNT or path.startswith(CONTROL_PLANE_MOUNT + "/")):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + CONTROL_PLANE_MOUNT
            path = path.removeprefix(CONTROL_PLANE_MOUNT) or "/"
        elif name is None and self._at_root and not path.startswith(SERVICE_PREFIXES):
            name = self._at_root
        if _is_unsafe(path, environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""):
            path = f"{DEPLOYMENT_PREFIX}{name}{NOWHERE}" if name is not None else _without_route(path)
        elif name is not None:
            environ[AT_ROOT] = True
            path = f"{DEPLOYMENT_PREFIX}{name}{path}"
        elif path.startswith(CONTROL_PLANE):
            path = path.rstrip("/")
        environ["PATH_INFO"] = path
        return self.app(environ, start_response)

    def _named_by_host(self, environ: dict[str, Any]) -> str | None:
        """Return the deployment that the Host header names, or None if the host is not in the app domain."""
        if self._domain is None:
            return None
        host = environ.get("HTTP_HOST", "").partition(":")[0].lower().rstrip(".")
        label = host.removesuffix(self._domain)
        return label if label != host and LABEL.fullmatch(label) else None


def _within_deployment(path: str) -> str:
    """Return `/d/<name>/.well-known/…/mcp` for the OAuth document at `/.well-known/…/d/<name>/mcp`, other paths unchanged."""
    document = DISCOVERY.fullmatch(path)
    resource = (document[2] or "") if document is not None else ""
    if document is None or not resource.startswith(DEPLOYMENT_PREFIX):
        return path
    name, slash, rest = resource.removeprefix(DEPLOYMENT_PREFIX).partition("/")
    return f"{DEPLOYMENT_PREFIX}{name}{document[1]}{slash}{rest}"


def _without_route(path: str) -> str:
    """Return a path without a route, inside the deployment that `path` names, so that its authentication applies."""
    if not path.startswith(DEPLOYMENT_PREFIX):
        return NOWHERE
    name = path.removeprefix(DEPLOYMENT_PREFIX).partition("/")[0]
    return f"{DEPLOYMENT_PREFIX}{name}{NOWHERE}" if name and "\x00" not in name else NOWHERE


def _is_unsafe(path: str, raw: str) -> bool:
    """Return whether a path contains a parent step, a NUL or an escaped slash. `raw` is the path before unescaping."""
    raw_path = raw.partition("?")[0].lower()
    return "\x00" in path or "%2f" in raw_path or ".." in path.split("/")
