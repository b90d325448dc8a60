"""The description of a request for a project's own code, without platform keys and internal headers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flask import g, request

from shared.user_code import loopback
from web.gate.addresses import AT_ROOT, PATH_SAFE, deployment_path
from web.gate.named import is_platform_key, without_keys
from web.http.headers import REQUEST_ID

USER_CODE_TOKEN = loopback.HEADER


def of_request() -> dict[str, Any]:
    """Return the request as `authenticate` gets it. The body is not read before the caller is authenticated."""
    return {
        "method": request.method,
        "path": deployment_path(request.path) or request.path,
        "query": _query(),
        "headers": headers(),
        "client": [request.remote_addr, int(request.environ.get("REMOTE_PORT") or 0)]
        if request.remote_addr
        else None,
        "url": _url(),
    }


def _query() -> str:
    return without_keys(request.query_string.decode("latin-1"))


def _url() -> str:
    """Return the URL as the client wrote it, without platform keys in the query."""
    path, query = request.path, _query()
    if request.environ.get(AT_ROOT):
        path = deployment_path(path) or path
    return f"{request.root_url.rstrip('/')}{quote(path, safe=PATH_SAFE)}{'?' if query else ''}{query}"


def headers() -> list[list[str]]:
    """Return the request's headers with lower-case names, without platform keys and the service's own token."""
    sent = [
        [name.lower(), value]
        for name, value in request.headers.items()
        if name.lower() != USER_CODE_TOKEN.lower() and not is_platform_key(value)
    ]
    has_id = any(name == REQUEST_ID for name, _ in sent)
    return sent if has_id else [*sent, [REQUEST_ID, g.request_id]]
