"""Inspection of a project's authorization and app: they are described without being started."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, BaseUser
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles

from tests.support.hosted import HOSTED, SMALLEST
from tests.support.hosts import graph_host
from workers.graph_host.inspection import describe_app
from workers.graph_host.project.app import scope_of

PROJECT = """
from contextlib import asynccontextmanager
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

auth = Auth()

@auth.authenticate
async def who(authorization, method):
    return "ann"

@auth.on.threads
async def threads(ctx, value): ...

@auth.on.store(actions=["put", "get"])
async def store(ctx, value): ...

@auth.on
async def everything(ctx, value): ...

@asynccontextmanager
async def lifespan(app):
    raise RuntimeError("entered")
    yield

async def files(request): ...
async def talk(socket): ...

app = Starlette(routes=[Route("/files/{name:path}", files), WebSocketRoute("/talk", talk)], lifespan=lifespan)
"""


def endpoint(*args: Any) -> Any: ...


def routes(app: Any) -> list[tuple[str, list[str], str]]:
    return [(route["path"], route["methods"], route["kind"]) for route in describe_app(app)["routes"]]


def test_a_host_that_inspects_describes_both_and_enters_no_lifespan(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(SMALLEST)
    (tmp_path / "guarded.py").write_text(PROJECT)

    config: dict[str, Any] = {"auth": {"path": "./guarded.py:auth"}, "http": {"app": "./guarded.py:app"}}
    with graph_host(tmp_path, {"g": "./graph.py:graph"}, inspect=True, **config) as host:
        ready = host.ready
        code = host.process.wait()

    assert code == 0
    assert list(ready["user_code"]["app"].pop("openapi")["paths"]) == ["/files/{name}"]
    assert ready["user_code"] == {
        "auth": {
            "parameters": ["authorization", "method"],
            "handlers": [["*", "*"], ["store", "get"], ["store", "put"], ["threads", "*"]],
        },
        "app": {
            "routes": [
                {"path": "/files/{name:path}", "methods": ["GET", "HEAD"], "kind": "http"},
                {"path": "/talk", "methods": [], "kind": "websocket"},
            ],
            "middleware": [],
            "cors": None,
        },
    }


def test_a_project_with_graphs_only_has_neither() -> None:
    with graph_host(HOSTED, {"steps": "./graphs.py:steps"}, inspect=True) as host:
        assert host.ready["user_code"] == {"auth": None, "app": None}


@pytest.mark.parametrize("text", ["app = 7\n", "def app(): ...\n"])
def test_an_app_that_cannot_be_loaded_is_said_for_the_deployer(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.py").write_text(SMALLEST)
    (tmp_path / "site.py").write_text(text)

    with graph_host(tmp_path, {"g": "./graph.py:graph"}, http={"app": "./site.py:app"}) as host:
        error = host.ready["error"]

    assert (error["step"], error["message"][:10]) == ("load", "http.app: ")
    assert "is no ASGI app" in error["message"]


def test_routes_are_listed_in_their_order_with_their_methods() -> None:
    app = Starlette(
        routes=[
            Route("/threads/{x}", endpoint, methods=["DELETE", "GET"]),
            Route("/class", type("Endpoint", (), {})),
            WebSocketRoute("/ws/{room:int}", endpoint),
        ]
    )

    assert routes(app) == [
        ("/threads/{x}", ["DELETE", "GET", "HEAD"], "http"),
        ("/class", [], "http"),
        ("/ws/{room:int}", [], "websocket"),
    ]


def test_a_mount_is_everything_below_its_path() -> None:
    inner = Starlette(routes=[Route("/a", endpoint)])
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory="."), name="static"),
            Mount("/inner", inner),
            Mount("/", routes=[Route("/b", endpoint)]),
            Host("other.test", Router([Route("/c", endpoint)])),
            Mount("/", endpoint),
        ]
    )

    assert [(path, kind) for path, _, kind in routes(app)] == [
        ("/static", "mount"),
        ("/inner", "mount"),
        ("/b", "http"),
        ("/c", "http"),
        ("", "mount"),
    ]


def test_a_router_that_is_kept_whole_lists_its_joined_paths() -> None:
    """FastAPI may keep an included router as one route that knows the joined paths."""
    joined = [
        SimpleNamespace(starlette_route=None, path="/api/a", methods={"POST"}),
        SimpleNamespace(starlette_route=WebSocketRoute("/api/ws", endpoint)),
        SimpleNamespace(starlette_route=Mount("/api/files", endpoint)),
    ]
    app = SimpleNamespace(routes=[SimpleNamespace(effective_route_contexts=lambda: iter(joined))])

    assert routes(app) == [
        ("/api/a", ["POST"], "http"),
        ("/api/ws", [], "websocket"),
        ("/api/files", [], "mount"),
    ]


def test_an_app_that_nobody_knows_serves_everything() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert describe_app(app) == {
        "routes": [{"path": "", "methods": [], "kind": "mount"}],
        "openapi": None,
        "middleware": [],
        "cors": None,
    }


def test_middleware_is_named_and_the_settings_of_cors_are_read_off() -> None:
    app = Starlette(
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=endpoint),
            Middleware(CORSMiddleware, allow_origins=["https://a.test"], allow_credentials=True),
        ]
    )

    found = describe_app(app)

    assert found["middleware"] == [["BaseHTTPMiddleware", "/"]]
    chosen = {"allow_origins": ["https://a.test"], "allow_credentials": True}
    assert found["cors"] == {**found["cors"], **chosen, "allow_methods": ["GET"], "max_age": 600}
    assert "app" not in found["cors"]

    class Guard(CORSMiddleware): ...

    derived = describe_app(Starlette(middleware=[Middleware(Guard)]))

    assert (derived["middleware"], derived["cors"]) == ([["Guard", "/"]], None)


def test_an_app_without_a_document_gets_one_of_its_routes() -> None:
    def notes(request: Any) -> None:
        """Return the notes."""

    class Note(HTTPEndpoint):
        async def delete(self, request: Any) -> None:
            """Delete a note."""

    app = Starlette(
        routes=[
            Route("/hidden", endpoint, include_in_schema=False),
            Mount("/api", routes=[Route("/notes", notes), Route("/notes/{id:int}", Note)]),
            Mount("/documented", SimpleNamespace(openapi=dict, routes=[Route("/a", endpoint)])),
            Mount("/static", StaticFiles(directory=".")),
            Host("other.test", Router([Route("/c", endpoint, methods=["POST"])])),
            WebSocketRoute("/ws", endpoint),
        ]
    )

    paths = describe_app(app)["openapi"]["paths"]

    assert {path: list(item) for path, item in paths.items()} == {
        "/api/notes": ["get"], "/api/notes/{id}": ["delete"], "/c": ["post"],
    }  # fmt: skip
    assert paths["/api/notes"]["get"]["description"] == "Return the notes."
    assert paths["/api/notes/{id}"]["delete"]["description"] == "Delete a note."
    [parameter] = paths["/api/notes/{id}"]["delete"]["parameters"]
    assert (parameter["in"], parameter["name"], parameter["required"]) == ("path", "id", True)


def test_the_document_of_an_app_that_makes_one_is_reported() -> None:
    def document() -> dict[str, Any]:
        return {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}

    def broken() -> dict[str, Any]:
        raise TypeError("no schema")

    def app(make: Any, url: str | None = "/openapi.json") -> Any:
        return SimpleNamespace(routes=[], openapi=make, openapi_url=url)

    assert describe_app(app(document))["openapi"] == document()
    assert describe_app(app(document, None))["openapi"] is None
    assert describe_app(app(broken))["openapi"] is None


# The ASGI scope of a request


ANN = {"identity": "ann", "permissions": ["read"], "org": "o1"}


def scope(**head: Any) -> dict[str, Any]:
    return scope_of({"type": "http", "method": "GET", "path": "/a b", "headers": [], **head})


def test_paths_have_their_mount_and_text_becomes_bytes() -> None:
    found = scope(
        raw_path="/a%20b",
        root_path="/d/app",
        query="x=1",
        headers=[["X-Word", "é"]],
        client=["10.0.0.1", 5000],
        server=["service.test", 443],
        scheme="https",
    )

    assert {name: value for name, value in found.items() if name != "asgi"} == {
        "type": "http",
        "http_version": "1.1",
        "scheme": "https",
        "path": "/d/app/a b",
        "raw_path": b"/d/app/a%20b",
        "root_path": "/d/app",
        "query_string": b"x=1",
        "headers": [(b"x-word", b"\xe9")],
        "client": ("10.0.0.1", 5000),
        "server": ("service.test", 443),
    }


def test_a_user_is_starlettes_where_that_is_and_one_without_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scope(user=ANN)
    user: Any = found["user"]

    assert isinstance(found["user"], BaseUser)
    assert isinstance(found["auth"], AuthCredentials)
    assert (user.identity, user["org"], found["auth"].scopes) == ("ann", "o1", ["read"])

    monkeypatch.setitem(sys.modules, "starlette.authentication", None)
    bare = scope(user=ANN)

    assert not isinstance(bare["user"], BaseUser)
    assert (bare["user"].identity, bare["user"]["org"], bare["auth"].scopes) == ("ann", "o1", ["read"])
