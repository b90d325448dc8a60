"""What ASGI says of a request, made from the head that the runner sends."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from starlette.authentication import AuthCredentials, BaseUser

from workers.graph_host.user_code.app_exchanges import scope_of

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


def test_a_user_is_starlettes_where_that_is() -> None:
    found = scope(user=ANN)
    user: Any = found["user"]

    assert isinstance(found["user"], BaseUser)
    assert isinstance(found["auth"], AuthCredentials)
    assert (user.identity, user["org"], found["auth"].scopes) == ("ann", "o1", ["read"])


def test_a_user_is_one_without_starlette_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.authentication", None)
    found = scope(user=ANN)

    assert not isinstance(found["user"], BaseUser)
    assert (found["user"].identity, found["user"]["org"], found["auth"].scopes) == ("ann", "o1", ["read"])
