"""The built-in routes of a deployment that authenticate callers, and the app routes that would replace them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WEBSOCKET = "WEBSOCKET"
ONE, REST = "{}", "{*}"  # a parameter of one segment, and a parameter of all remaining segments

# Public routes: an app's route in their place exposes nothing.
PUBLIC = frozenset(
    {
        "/",
        "/ok",
        "/info",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/ui/{}/{}",
        "/feedback/{}",
        "/.well-known/oauth-protected-resource/{*}",
    }
)
# The other routes of the web process. A test compares both.
ROUTES = """
GET /.well-known/agent-card.json
GET POST /a2a/{}
GET /a2a/{}/.well-known/agent-card.json
GET POST /ag-ui/{}
GET /ag-ui/{}/capabilities
POST /assistants
GET PATCH DELETE /assistants/{}
GET /assistants/{}/graph
POST /assistants/{}/latest
GET /assistants/{}/schemas
GET /assistants/{}/subgraphs
GET /assistants/{}/subgraphs/{*}
POST /assistants/{}/versions
POST /assistants/count
POST /assistants/search
POST /mcp
POST /inbox/{}/answer
POST /inbox/search
GET /queue
POST /runs
GET POST /runs/{}/feedback
GET /runs/{}/join
GET /runs/{}/stream
POST /runs/batch
GET POST /runs/bulk
GET /runs/bulk/{}
POST /runs/bulk/{}/cancel
GET /runs/bulk/{}/runs
POST /runs/cancel
POST /runs/crons
GET PATCH DELETE /runs/crons/{}
GET /runs/crons/{}/firings
POST /runs/crons/count
POST /runs/crons/search
POST /runs/search
POST /runs/stream
POST /runs/wait
GET PUT DELETE /store/items
POST /store/items/search
POST /store/namespaces
POST /threads
GET PATCH DELETE /threads/{}
POST /threads/{}/commands
POST /threads/{}/copy
GET POST /threads/{}/history
GET POST /threads/{}/runs
GET DELETE /threads/{}/runs/{}
POST /threads/{}/runs/{}/cancel
GET POST /threads/{}/runs/{}/feedback
GET /threads/{}/runs/{}/join
POST /threads/{}/runs/{}/retry
GET /threads/{}/runs/{}/stream
GET /threads/{}/runs/{}/timeline
POST /threads/{}/runs/crons
POST /threads/{}/runs/stream
POST /threads/{}/runs/wait
GET POST PATCH /threads/{}/state
GET /threads/{}/state/{}
POST /threads/{}/state/checkpoint
GET /threads/{}/storage
GET /threads/{}/stream
GET POST WEBSOCKET /threads/{}/stream/events
GET /threads/{}/timeline
POST /threads/count
POST /threads/prune
POST /threads/search
POST /ui/{}
POST /webhooks/{}/retry
POST /webhooks/search
"""


def table() -> list[tuple[frozenset[str], str]]:
    """Return `(methods, path)` of each built-in route."""
    rows = (line.rpartition(" ") for line in ROUTES.strip().splitlines())
    return [(frozenset(methods.split()), path) for methods, _, path in rows]


def may_match_below(prefix: str) -> bool:
    """Whether a path of a built-in route may begin with this path. A path with a parameter first may."""
    first = prefix.split("/")[1]
    paths = PUBLIC.union(path for _, path in table())
    return "{" in first or first in {path.split("/")[1] for path in paths}


def covering(routes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the app's routes that replace a built-in route, as readable text. One for all paths replaces none."""
    built_in = [(methods, path.split("/")[1:]) for methods, path in table()]
    covering_routes: list[str] = []
    for route in routes:
        segments, methods = _segments(route), _methods(route)
        if segments != [REST] and any(
            _share(methods, others) and _meet(segments, path) for others, path in built_in
        ):
            shown = " ".join(sorted(methods - {"HEAD"})) if methods else "all of"
            covering_routes.append(f"{shown} {route['path'] or '/'}")
    return covering_routes


def _methods(route: Mapping[str, Any]) -> frozenset[str]:
    """Return a route's methods. An empty set means all methods and WebSocket handshakes."""
    if route["kind"] == "websocket":
        return frozenset({WEBSOCKET})
    if route["kind"] == "mount":
        return frozenset()
    return frozenset(route["methods"]) or frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())


def _share(some: frozenset[str], others: frozenset[str]) -> bool:
    return not some or not some.isdisjoint(others)


def _segments(route: Mapping[str, Any]) -> list[str]:
    path = route["path"].rstrip("/") + "/" + REST if route["kind"] == "mount" else route["path"]
    return [_segment(part) for part in path.split("/")[1:]]


def _segment(part: str) -> str:
    if ":path}" in part or part == REST:
        return REST
    return ONE if "{" in part else part


def _meet(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether there is a path that both patterns match."""
    if not some or not others:
        return not some and not others
    if some[0] == REST:
        return any(_meet(some[1:], others[n:]) for n in range(1, len(others) + 1))
    if others[0] == REST:
        return _meet(others, some)
    return (ONE in (some[0], others[0]) or some[0] == others[0]) and _meet(some[1:], others[1:])
