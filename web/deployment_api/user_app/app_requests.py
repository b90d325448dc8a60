"""Requests as a project's app gets them: without headers of the connection, and without the service's own keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from flask import g, request

from shared.access.api_keys import Caller
from web.gate.addresses import PATH_SAFE
from web.gate.authorization import user
from web.gate.context import settings
from web.gate.named import is_platform_key, without_keys
from web.gate.target import Target

# Headers of one connection, not of the request (RFC 9110 7.6.1). The headers that `Connection` names are dropped too,
# except those that frame or route the request.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect",
    }
)  # fmt: skip
NEVER_NAMED = frozenset({"host", "content-length", "content-type"})
NOT_PASSED_ON = frozenset(
    {"x-runyard-user-code", "x-request-id", "forwarded"}
)  # the service's own, or replaced below
MIDDLEWARE_FIRST = "middleware_first"
V6_HOST_PREFIX = 64  # bits: one host can use all addresses of such a network

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def head(target: Target) -> dict[str, Any]:
    """Return the head of the current request, from which the graph host makes an ASGI scope."""
    environ = request.environ
    caller = user()
    path = target.path
    return {
        "type": "websocket" if target.is_websocket else "http",
        "method": request.method,
        "path": path,
        "raw_path": quote(path.encode(), safe=PATH_SAFE),
        "query": without_keys(environ.get("QUERY_STRING", "")),
        "root_path": target.root_path,
        "scheme": _scheme(target),
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").partition("/")[2],
        "headers": [list(pair) for pair in headers(environ, target)],
        "client": [address(), _port()],
        "server": [environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)],
        "subprotocols": _subprotocols() if target.is_websocket else [],
        "user": dict(caller.document) if caller is not None else None,
        "middleware": target.deployment.http.get("middleware_order") or MIDDLEWARE_FIRST,
    }


def headers(environ: Mapping[str, Any], target: Target) -> Iterator[tuple[str, str]]:
    """Yield the headers for the app: names in lower case, values as Latin-1 text."""
    named = {name.strip().lower() for name in environ.get("HTTP_CONNECTION", "").split(",")} - NEVER_NAMED
    for name, value in sent(environ):
        if name in HOP_BY_HOP or name in named or name in NOT_PASSED_ON or name.startswith("x-forwarded-"):
            continue
        if target.is_websocket and name.startswith("sec-websocket-"):
            continue  # the service performs the handshake
        if not is_platform_key(value):
            yield name, value
    yield "x-request-id", g.request_id
    yield from forwarded(environ, target)


def sent(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every header of a request, names in lower case."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-").lower(), value
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-").lower(), environ[name]


def forwarded(environ: Mapping[str, Any], target: Target) -> Iterator[tuple[str, str]]:
    """Yield the `X-Forwarded-*` headers for the app. Values from the request count only if a trusted proxy sent it."""
    came = environ.get("REMOTE_ADDR", "")
    through = [environ["HTTP_X_FORWARDED_FOR"]] if _is_proxied(environ) else []
    yield "x-forwarded-for", ", ".join([*through, came])
    yield "x-forwarded-proto", request.scheme
    host = environ.get("HTTP_X_FORWARDED_HOST") if _is_proxy(came) else None
    if host or environ.get("HTTP_HOST"):
        yield "x-forwarded-host", host or environ["HTTP_HOST"]
    if target.root_path:
        yield "x-forwarded-prefix", quote(target.root_path, safe=PATH_SAFE)


def address() -> str:
    """Return the client address of the current request; behind a trusted proxy, the address that the proxy reports."""
    came = request.remote_addr or ""
    if not _is_proxied(request.environ):
        return came
    said = request.environ["HTTP_X_FORWARDED_FOR"].rpartition(",")[2].strip()
    return said if _parsed(said) is not None else came


def bounded_by_address(target: Target) -> Caller:
    """Return the rate-limit key of an anonymous caller: the client address, or the /64 network of an IPv6 address."""
    came = _parsed(address())
    source = address()
    if came is not None and came.version == 6:
        source = str(ipaddress.ip_network((came, V6_HOST_PREFIX), strict=False))
    return Caller(target.deployment.organization_id, "", f"address:{source}", "run")


def _scheme(target: Target) -> str:
    if not target.is_websocket:
        return request.scheme
    return "wss" if request.scheme in ("https", "wss") else "ws"


def _port() -> int:
    return 0 if _is_proxied(request.environ) else int(request.environ.get("REMOTE_PORT") or 0)


def _subprotocols() -> list[str]:
    asked = request.headers.get("Sec-WebSocket-Protocol", "")
    return [name.strip() for name in asked.split(",") if name.strip() and not is_platform_key(name)]


def _is_proxied(environ: Mapping[str, Any]) -> bool:
    return bool(environ.get("HTTP_X_FORWARDED_FOR")) and _is_proxy(environ.get("REMOTE_ADDR", ""))


def _is_proxy(came: str) -> bool:
    parsed = _parsed(came)
    return parsed is not None and any(parsed in network for network in _networks(settings().proxy_addresses))


@lru_cache(8)
def _networks(addresses: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, addresses))


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
