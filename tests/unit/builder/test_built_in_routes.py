"""Which routes of an app would stand in the place of built-in ones."""

from __future__ import annotations

from typing import Any

import pytest

from workers.builder import built_in_routes


def route(path: str, *methods: str, kind: str = "http") -> dict[str, Any]:
    return {"path": path, "methods": list(methods), "kind": kind}


@pytest.mark.parametrize(
    "covering",
    [
        route("/threads", "POST"),
        route("/threads/{x}", "GET"),
        route("/threads/mine", "GET"),
        route("/threads/{x:uuid}/state", "GET", "HEAD"),
        route("/{a}/{b}/{c}", "POST"),
        route("/threads"),
        route("/{rest:path}", "DELETE"),
        route("/assistants/{x}/subgraphs/{name}/more", "GET"),
        route("/assistants/{x}/subgraphs/{rest:path}", "GET"),
        route("/store", kind="mount"),
        route("", kind="mount"),
        route("/{x}", kind="mount"),
        route("/threads/{x}/stream/events", kind="websocket"),
    ],
    ids=lambda route: route["path"],
)
def test_a_route_that_takes_a_path_of_a_built_in_one_covers_it(covering: dict[str, Any]) -> None:
    assert built_in_routes.covering([covering]) != []


@pytest.mark.parametrize(
    "beside",
    [
        route("/threads", "GET"),
        route("/threads/", "POST"),
        route("/threads/{x}/files", "GET"),
        route("/threads/{x}/runs", "PUT"),
        route("/", "GET"),
        route("/docs", "GET"),
        route("/info", "GET"),
        route("/metrics", "GET"),
        route("/static", kind="mount"),
        route("/threads/files", kind="websocket"),
        route("/hello", "GET"),
        route("/hello/{rest:path}", "GET"),
    ],
    ids=lambda route: route["path"],
)
def test_one_that_shares_no_path_and_method_covers_nothing(beside: dict[str, Any]) -> None:
    assert built_in_routes.covering([beside]) == []


def test_they_are_named_as_people_read_them() -> None:
    routes = [
        route("/threads/{x}", "HEAD", "GET"),
        route("/threads/{x}/stream/events", kind="websocket"),
        route("/store/", kind="mount"),
    ]

    assert built_in_routes.covering(routes) == [
        "GET /threads/{x}",
        "WEBSOCKET /threads/{x}/stream/events",
        "all of /store/",
    ]
