"""Heads of requests and answers of a project's app.

The app gets requests without headers of the connection, and without the service's own keys. Its answers are made safe to
pass on: an answer must not pass for another one, and must affect nothing but its own deployment. All deployments at
`/d/<name>` share one origin with the operators' console. Headers that act on the whole origin are therefore dropped,
cookies are limited to the app's own path, and pages run in a sandbox in which scripts reach no other page and no
storage. A deployment at its own address has none of these restrictions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from flask import request
from werkzeug.datastructures import Headers

from shared.deployments.deployments import DeploymentRef
from shared.hosts.pending_calls import HostCall
from web.gate import session_cookie
from web.gate.addresses import PATH_SAFE, RequestAddress, client_address, is_proxied, is_proxy
from web.gate.context import request_id, settings, user
from web.gate.credentials import is_platform_key, without_keys
from web.http import sse
from web.http.headers import FOR_PROXIES, OF_ORIGIN, ForeignResponse

# Headers of one connection, not of the request (RFC 9110 7.6.1). The headers that `Connection` names are dropped too,
# except those that frame or route the request.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect",
    }
)  # fmt: skip
NEVER_NAMED = frozenset({"host", "content-length", "content-type"})
# Headers that the app gets only from the service, if at all.
REPLACED = frozenset({"x-runyard-user-code", "x-request-id", "forwarded"})
MIDDLEWARE_FIRST = "middleware_first"


def host_call(address: RequestAddress, deployment: DeploymentRef) -> HostCall:
    """Return the current request as a call to a graph host of the serving revision."""
    assert deployment.active_revision_id is not None  # the deployment has an app
    return HostCall(
        deployment_id=deployment.id,
        revision_id=deployment.active_revision_id,
        pool=deployment.pool,
        document=request_head(address, deployment),
    )


def request_head(address: RequestAddress, deployment: DeploymentRef) -> dict[str, Any]:
    """Return the head of the current request, from which the graph host makes an ASGI scope."""
    environ, account = request.environ, user()
    return {
        "type": "websocket" if address.is_websocket else "http",
        "method": request.method,
        "path": address.path,
        "raw_path": quote(address.path.encode(), safe=PATH_SAFE),
        "query": without_keys(environ.get("QUERY_STRING", ""), settings()),
        "root_path": address.root_path,
        "scheme": _scheme(address),
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").partition("/")[2],
        "headers": [list(pair) for pair in request_headers(environ, address)],
        "client": [client_address(settings()), _port()],
        "server": [environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)],
        "subprotocols": _subprotocols() if address.is_websocket else [],
        "user": dict(account.document) if account is not None else None,
        "middleware": deployment.http.get("middleware_order") or MIDDLEWARE_FIRST,
    }


def request_headers(environ: Mapping[str, Any], address: RequestAddress) -> Iterator[tuple[str, str]]:
    """Yield the headers for the app: names in lower case, values as Latin-1 text."""
    named = {name.strip().lower() for name in environ.get("HTTP_CONNECTION", "").split(",")} - NEVER_NAMED
    for name, value in _all_headers(environ):
        if name in HOP_BY_HOP or name in named or name in REPLACED or name.startswith("x-forwarded-"):
            continue
        if address.is_websocket and name.startswith("sec-websocket-"):
            continue  # the service performs the handshake
        if not is_platform_key(value, settings()):
            yield name, value
    yield "x-request-id", request_id()
    yield from _forwarded_headers(environ, address)


def _all_headers(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every header of a request, names in lower case."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-").lower(), value
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-").lower(), environ[name]


def _forwarded_headers(environ: Mapping[str, Any], address: RequestAddress) -> Iterator[tuple[str, str]]:
    """Yield the `X-Forwarded-*` headers for the app. Values from the request count only if a trusted proxy sent it."""
    peer = environ.get("REMOTE_ADDR", "")
    hops = [environ["HTTP_X_FORWARDED_FOR"]] if is_proxied(environ, settings()) else []
    yield "x-forwarded-for", ", ".join([*hops, peer])
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
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    return [
        name.strip() for name in offered.split(",") if name.strip() and not is_platform_key(name, settings())
    ]


TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
LENGTH = re.compile(r"[0-9]{1,18}")
MAX_HEADERS = 256
MAX_BYTES = 128 * 1024
# Maximum length of a cookie's Path in characters. Browsers replace a longer one by the folder of the request, which may
# be above the app's path.
MAX_PATH = 1024
SET_BY_SERVICE = frozenset({"x-request-id", "server", "date"})

NEVER_ANSWERED = HOP_BY_HOP | SET_BY_SERVICE | FOR_PROXIES
SANDBOX = "sandbox allow-scripts allow-forms allow-popups allow-popups-to-escape-sandbox allow-modals allow-downloads"
RESET_CONTENT = 205
WITHOUT_BODY = (204, RESET_CONTENT, 304)


class BadAnswer(Exception):
    """The app's answer cannot be passed on; the message says why."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    status: int
    headers: Sequence[tuple[str, str]]
    length: int | None  # of the body in bytes, if declared

    @property
    def has_body(self) -> bool:
        return self.status not in WITHOUT_BODY


class AppResponse(ForeignResponse):
    """An app's answer. The only headers that the app did not set are those that `web/http/headers.py` adds."""

    default_mimetype = None
    automatically_set_content_length = False

    def __init__(self, head: AnswerHead, stream: sse.Stream) -> None:
        super().__init__(stream, status=head.status, headers=Headers(head.headers), direct_passthrough=True)
        self._has_body = head.has_body

    def get_app_iter(self, environ: Any) -> Iterable[bytes]:
        return super().get_app_iter(environ) if self._has_body else ()

    def get_wsgi_headers(self, environ: Any) -> Headers:
        return self.headers


def read_head(data: bytes, address: RequestAddress) -> AnswerHead:
    """Parse the head of an app's answer. Raises BadAnswer."""
    try:
        head = orjson.loads(data)
        status, sent = head["status"], [(name, value) for name, value in head["headers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer("its head cannot be read") from error
    if type(status) is not int or not 200 <= status <= 599:
        raise BadAnswer(f"its status {status!r} is not between 200 and 599")
    headers = tuple(answer_headers(sent, address))
    return AnswerHead(
        status, _without_body(headers) if status == RESET_CONTENT else headers, _declared_length(sent)
    )


def _without_body(headers: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return the headers of a 205 answer, with a length of 0.

    Browsers end a 205 at its head, whatever its length, and HTTP servers do not. A browser would read the bytes of a
    body as the response to its next request on the connection, which may be one for the console.
    """
    return [
        *((name, value) for name, value in headers if name.lower() != "content-length"),
        ("Content-Length", "0"),
    ]


def answer_headers(sent: Sequence[tuple[Any, Any]], address: RequestAddress) -> Iterable[tuple[str, str]]:
    """Yield the headers of an app's answer that the caller gets. Raises BadAnswer."""
    _check_headers(sent)
    is_shared = not address.is_at_root
    named = {
        part.strip().lower()
        for name, value in sent
        if name.lower() == "connection"
        for part in value.split(",")
    } - NEVER_NAMED
    has_coding = any(name.lower() == "transfer-encoding" for name, _ in sent)
    for name, value in sent:
        lower = name.lower()
        if lower in NEVER_ANSWERED or lower in named or (is_shared and lower in OF_ORIGIN):
            continue
        if lower == "content-length" and has_coding:
            continue
        if lower == "set-cookie":
            cookie = deployment_cookie(value, requested_host(), address.root_path if is_shared else "")
            if cookie is not None:
                yield name, cookie
            continue
        yield name, value
    if is_shared:
        yield "Content-Security-Policy", SANDBOX


def deployment_cookie(value: str, host: str, mount: str) -> str | None:
    """Return a cookie that browsers send only to its own deployment. None for one of another domain, or of the service."""
    pair, *attributes = (part.strip() for part in value.split(";"))
    if pair.partition("=")[0].strip() in session_cookie.NAMES:
        return None
    kept, path = [pair], ""
    for attribute in attributes:
        name, _, text = attribute.partition("=")
        kind = name.strip().lower()
        if kind == "domain" and text.strip().lstrip(".").lower() not in ("", host):
            return None
        if kind == "path" and mount:
            path = text.strip()
        else:
            kept.append(attribute)
    if mount:
        kept.append(f"Path={_below(mount, path)}")
    return "; ".join(kept)


def requested_host() -> str:
    """Return the host name by which the caller addresses the deployment."""
    name = request.host.lower()
    return name if name.startswith("[") else name.partition(":")[0]


def _below(mount: str, path: str) -> str:
    if not path.startswith("/") or path == "/":
        return mount
    inner = path if path == mount or path.startswith(mount + "/") else mount + path
    return inner if len(inner) <= MAX_PATH else mount


def _check_headers(sent: Sequence[tuple[Any, Any]]) -> None:
    if len(sent) > MAX_HEADERS:
        raise BadAnswer(f"it has more than {MAX_HEADERS} headers")
    size = 0
    for name, value in sent:
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadAnswer(f"the header name {name!r:.100} is invalid")
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            raise BadAnswer(f"the header {name:.100} has characters that are not allowed")
        size += len(name) + len(value)
    if size > MAX_BYTES:
        raise BadAnswer(f"its headers have more than {MAX_BYTES} bytes")


def _declared_length(sent: Sequence[tuple[str, str]]) -> int | None:
    if any(name.lower() == "transfer-encoding" for name, _ in sent):
        return None
    lengths = [value.strip() for name, value in sent if name.lower() == "content-length"]
    if not lengths:
        return None
    if len(lengths) > 1 or not LENGTH.fullmatch(lengths[0]):
        raise BadAnswer("its Content-Length is not a number")
    return int(lengths[0])
