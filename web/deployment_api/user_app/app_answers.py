"""Answers of a project's app, made safe to pass on: an answer must not pass for another one, and must affect nothing
but its own deployment.

All deployments at `/d/<name>` share one origin with the operators' console. Headers that act on the whole origin are
therefore dropped, cookies are limited to the app's own path, and pages run in a sandbox in which scripts reach no other
page and no storage. A deployment at its own address has none of these restrictions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from flask import request
from werkzeug.datastructures import Headers

from web.deployment_api.user_app.app_requests import HOP_BY_HOP, NEVER_NAMED
from web.gate.addresses import RequestAddress
from web.http import sse
from web.http.headers import ForeignResponse
from web.http.origin_headers import FOR_PROXIES, OF_ORIGIN

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
LENGTH = re.compile(r"[0-9]{1,18}")
MOST_HEADERS = 256
MOST_BYTES = 128 * 1024
# Maximum length of a cookie's Path in characters. Browsers replace a longer one by the folder of the request, which may
# be above the app's path.
MOST_PATH = 1024
OWN = frozenset({"x-request-id", "server", "date"})

NEVER = HOP_BY_HOP | OWN | FOR_PROXIES
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
        found = orjson.loads(data)
        status, sent = found["status"], [(name, value) for name, value in found["headers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer("its head cannot be read") from error
    if type(status) is not int or not 200 <= status <= 599:
        raise BadAnswer(f"its status {status!r} is not between 200 and 599")
    headers = tuple(passed_on(sent, address))
    return AnswerHead(status, _framed(headers) if status == RESET_CONTENT else headers, _length(sent))


def _framed(headers: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return the headers of a 205 answer, with a length of 0.

    Browsers end a 205 at its head, whatever its length, and HTTP servers do not. A browser would read the bytes of a
    body as the response to its next request on the connection, which may be one for the console.
    """
    return [
        *((name, value) for name, value in headers if name.lower() != "content-length"),
        ("Content-Length", "0"),
    ]


def passed_on(sent: Sequence[tuple[Any, Any]], address: RequestAddress) -> Iterable[tuple[str, str]]:
    """Yield the headers of an app's answer that the caller gets. Raises BadAnswer."""
    _check(sent)
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
        if lower in NEVER or lower in named or (is_shared and lower in OF_ORIGIN):
            continue
        if lower == "content-length" and has_coding:
            continue
        if lower == "set-cookie":
            cookie = own_cookie(value, host(), address.root_path if is_shared else "")
            if cookie is not None:
                yield name, cookie
            continue
        yield name, value
    if is_shared:
        yield "Content-Security-Policy", SANDBOX


def own_cookie(value: str, host: str, mount: str) -> str | None:
    """Return a cookie that browsers send only to its own deployment, or None for a cookie of another domain."""
    pair, *attributes = (part.strip() for part in value.split(";"))
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


def host() -> str:
    """Return the host name by which the caller addresses the deployment."""
    name = request.host.lower()
    return name if name.startswith("[") else name.partition(":")[0]


def _below(mount: str, path: str) -> str:
    if not path.startswith("/") or path == "/":
        return mount
    inner = path if path == mount or path.startswith(mount + "/") else mount + path
    return inner if len(inner) <= MOST_PATH else mount


def _check(sent: Sequence[tuple[Any, Any]]) -> None:
    if len(sent) > MOST_HEADERS:
        raise BadAnswer(f"it has more than {MOST_HEADERS} headers")
    size = 0
    for name, value in sent:
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadAnswer(f"the header name {name!r:.100} is invalid")
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            raise BadAnswer(f"the header {name:.100} has characters that are not allowed")
        size += len(name) + len(value)
    if size > MOST_BYTES:
        raise BadAnswer(f"its headers have more than {MOST_BYTES} bytes")


def _length(sent: Sequence[tuple[str, str]]) -> int | None:
    if any(name.lower() == "transfer-encoding" for name, _ in sent):
        return None
    said = [value.strip() for name, value in sent if name.lower() == "content-length"]
    if not said:
        return None
    if len(said) > 1 or not LENGTH.fullmatch(said[0]):
        raise BadAnswer("its Content-Length is not a number")
    return int(said[0])
