"""Request headers that a langgraph.json selects: for the `configurable` of runs, and for log lines.

In a pattern, `*` matches any text. Headers with credentials (keys, cookies) must be named in full. A header with a
platform key is never selected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flask import g, request

from shared.deployments.deployments import DeploymentRef
from web.gate.named import is_platform_key
from web.gate.target import target

SECRET = frozenset({"x-api-key", "authorization", "cookie", "proxy-authorization"})
NEVER = frozenset({"x-runyard-user-code"})
MOST_LOGGED = 200  # characters of a value


def headers_for_runs(deployment: DeploymentRef, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that `http.configurable_headers` selects, by lower-case name.

    They override the caller's own config.
    """
    return _matching(deployment.http.get("configurable_headers"), headers)


def headers_of_run() -> dict[str, str]:
    """Return the headers for runs that the current request creates. Over a WebSocket: those of the opening request."""
    if "headers_of_run" not in g:
        found = target()
        g.headers_of_run = (
            {} if found is None else headers_for_runs(found.deployment, request.headers.items())
        )
    return g.headers_of_run


def headers_for_log(deployment: DeploymentRef) -> dict[str, str]:
    """Return the headers that `http.logging_headers` selects, as fields of the current request's log lines."""
    found = _matching(deployment.http.get("logging_headers"), request.headers.items())
    return {f"header.{name}": value[:MOST_LOGGED] for name, value in found.items()}


def _matching(settings: Mapping[str, Any] | None, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    if not settings:
        return {}
    includes, excludes = (_patterns(tuple(settings.get(name) or ())) for name in ("includes", "excludes"))
    named = {name.lower() for name in settings.get("includes") or ()}
    return {
        name.lower(): value
        for name, value in headers
        if _is_any(includes, name.lower())
        and not _is_any(excludes, name.lower())
        and (name.lower() not in SECRET or name.lower() in named)
        and name.lower() not in NEVER
        and not is_platform_key(value)
    }


def _is_any(patterns: Sequence[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


@lru_cache(256)
def _patterns(texts: tuple[str, ...]) -> Sequence[re.Pattern[str]]:
    return [re.compile(".*".join(map(re.escape, text.lower().split("*")))) for text in texts]
