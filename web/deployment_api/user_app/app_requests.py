"""Requests as a project's app gets them: without headers of the connection, and without the service's own keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from flask import request

from shared.deployments.deployments import DeploymentRef
from shared.hosts.pending_calls import HostCall
from web.gate.addresses import PATH_SAFE, RequestAddress, client_address, is_proxied, is_proxy
from web.gate.context import request_id, settings, user
from web.gate.credentials import is_platform_key, without_keys

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


def host_call(address: RequestAddress, deployment: DeploymentRef) -> HostCall:
    """Return the current request as a call to a graph host of the serving revision."""
    assert deployment.active_revision_id is not None  # the deployment has an app
    return HostCall(
        deployment_id=deployment.id,
        revision_id=deployment.active_revision_id,
        pool=deployment.pool,
        document=head(address, deployment),
    )


def head(address: RequestAddress, deployment: DeploymentRef) -> dict[str, Any]:
    """Return the head of the current request, from which the graph host makes an ASGI scope."""
    environ, known = request.environ, settings()
    account = user()
    return {
        "type": "websocket" if address.is_websocket else "http",
        "method": request.method,
        "path": address.path,
        "raw_path": quote(address.path.encode(), safe=PATH_SAFE),
        "query": without_keys(environ.get("QUERY_STRING", ""), known),
        "root_path": address.root_path,
        "scheme": _scheme(address),
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").partition("/")[2],
        "headers": [list(pair) for pair in headers(environ, address)],
        "client": [client_address(known), _port()],
        "server": [environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)],
        "subprotocols": _subprotocols() if address.is_websocket else [],
        "user": dict(account.document) if account is not None else None,
        "middleware": deployment.http.get("middleware_order") or MIDDLEWARE_FIRST,
    }


def headers(environ: Mapping[str, Any], address: RequestAddress) -> Iterator[tuple[str, str]]:
    """Yield the headers for the app: names in lower case, values as Latin-1 text."""
    named = {name.strip().lower() for name in environ.get("HTTP_CONNECTION", "").split(",")} - NEVER_NAMED
    for name, value in sent(environ):
        if name in HOP_BY_HOP or name in named or name in NOT_PASSED_ON or name.startswith("x-forwarded-"):
            continue
        if address.is_websocket and name.startswith("sec-websocket-"):
            continue  # the service performs the handshake
        if not is_platform_key(value, settings()):
            yield name, value
    yield "x-request-id", request_id()
    yield from forwarded(environ, address)


def sent(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every header of a request, names in lower case."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-").lower(), value
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-").lower(), environ[name]


def forwarded(environ: Mapping[str, Any], address: RequestAddress) -> Iterator[tuple[str, str]]:
    """Yield the `X-Forwarded-*` headers for the app. Values from the request count only if a trusted proxy sent it."""
    peer = environ.get("REMOTE_ADDR", "")
    through = [environ["HTTP_X_FORWARDED_FOR"]] if is_proxied(environ, settings()) else []
    yield "x-forwarded-for", ", ".join([*through, peer])
    yield "x-forwarded-proto", request.scheme
    host = environ.get("HTTP_X_FORWARDED_HOST") if is_proxy(peer, settings()) else None
    if host or environ.get("HTTP_HOST"):
        yield "x-forwarded-host", host or environ["HTTP_HOST"]
    if address.root_path:
        yield "x-forwarded-prefix", quote(address.root_path, safe=PATH_SAFE)


def _scheme(address: RequestAddress) -> str:
    if not address.is_websocket:
        return request.scheme
    return "wss" if request.scheme in ("https", "wss") else "ws"


def _port() -> int:
    return 0 if is_proxied(request.environ, settings()) else int(request.environ.get("REMOTE_PORT") or 0)


def _subprotocols() -> list[str]:
    asked = request.headers.get("Sec-WebSocket-Protocol", "")
    return [
        name.strip() for name in asked.split(",") if name.strip() and not is_platform_key(name, settings())
    ]
