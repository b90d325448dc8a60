"""Parts of a request that leave the service: for a project's `authenticate`, for runs and for log lines.

A platform key never leaves it. Headers for runs and log lines are selected by the langgraph.json. In a pattern, `*`
matches any text. Headers with credentials (keys, cookies) must be named in full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from flask import request

from shared.settings import Settings
from shared.user_code import loopback
from web.gate.addresses import PATH_SAFE, RequestAddress
from web.gate.credentials import is_platform_key, without_keys
from web.http.headers import REQUEST_ID

CREDENTIALS = frozenset({"x-api-key", "authorization", "cookie", "proxy-authorization"})
NEVER_SELECTED = frozenset({loopback.HEADER.lower()})
MAX_LOGGED = 200  # characters of a value


def request_for_user_code(address: RequestAddress, settings: Settings, request_id: str) -> dict[str, Any]:
    """Return the request as `authenticate` gets it. The body is not read before the caller is authenticated."""
    query = without_keys(request.query_string.decode("latin-1"), settings)
    path = address.path if address.is_at_root else request.path
    return {
        "method": request.method,
        "path": address.path,
        "query": query,
        "headers": _headers_for_user_code(settings, request_id),
        "client": [request.remote_addr, int(request.environ.get("REMOTE_PORT") or 0)]
        if request.remote_addr
        else None,
        "url": f"{request.root_url.rstrip('/')}{quote(path, safe=PATH_SAFE)}{'?' if query else ''}{query}",
    }


def _headers_for_user_code(settings: Settings, request_id: str) -> list[list[str]]:
    """Return the request's headers with lower-case names, without platform keys and the service's own token."""
    sent = [
        [name.lower(), value]
        for name, value in request.headers.items()
        if name.lower() not in NEVER_SELECTED and not is_platform_key(value, settings)
    ]
    has_id = any(name == REQUEST_ID for name, _ in sent)
    return sent if has_id else [*sent, [REQUEST_ID, request_id]]


def headers_for_runs(http: Mapping[str, Any], settings: Settings) -> dict[str, str]:
    """Return the headers of the current request that `http.configurable_headers` selects, by lower-case name.

    They override the caller's own config.
    """
    return _selected(http.get("configurable_headers"), settings)


def headers_for_log(http: Mapping[str, Any], settings: Settings) -> dict[str, str]:
    """Return the headers that `http.logging_headers` selects, as fields of the current request's log lines."""
    selected = _selected(http.get("logging_headers"), settings)
    return {f"header.{name}": value[:MAX_LOGGED] for name, value in selected.items()}


def _selected(rules: Mapping[str, Any] | None, settings: Settings) -> dict[str, str]:
    if not rules:
        return {}
    includes, excludes = (_patterns(tuple(rules.get(name) or ())) for name in ("includes", "excludes"))
    named = {name.lower() for name in rules.get("includes") or ()}
    return {
        name.lower(): value
        for name, value in request.headers.items()
        if _matches_any(includes, name.lower())
        and not _matches_any(excludes, name.lower())
        and (name.lower() not in CREDENTIALS or name.lower() in named)
        and name.lower() not in NEVER_SELECTED
        and not is_platform_key(value, settings)
    }


def _matches_any(patterns: Sequence[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


@lru_cache(256)
def _patterns(texts: tuple[str, ...]) -> Sequence[re.Pattern[str]]:
    return [re.compile(".*".join(map(re.escape, text.lower().split("*")))) for text in texts]
