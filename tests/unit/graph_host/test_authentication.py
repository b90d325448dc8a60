"""The `authenticate` function: the arguments it receives, and the handling of its return values and exceptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langgraph_sdk import Auth

from tests.support.authorizing import answer, request
from tests.support.hosted import ALL, HOSTED, SMALLEST
from tests.support.hosts import graph_host
from workers.graph_host.loader import LoadFailed
from workers.graph_host.project import auth as host_auth
from workers.graph_host.project import request as caller_request
from workers.graph_host.project.auth import ProjectAuth
from workers.graph_host.project.users import user_of

DEFAULTS = {"identity": "ann", "is_authenticated": True, "display_name": "ann", "permissions": []}


def authorizing(function: Callable[..., Any]) -> Auth:
    auth = Auth()
    auth.authenticate(function)
    return auth


def returning(value: Any) -> Auth:
    async def authenticate() -> Any:
        return value() if isinstance(value, type) else value

    return authorizing(authenticate)


def raising(error: BaseException) -> Auth:
    async def authenticate() -> Any:
        raise error

    return authorizing(authenticate)


# Arguments


def seen(function: Callable[[dict[str, Any]], Callable[..., Any]], **facts: Any) -> dict[str, Any]:
    """Return the notes that the function took of a request."""
    notes: dict[str, Any] = {}
    assert answer(authorizing(function(notes)), request(**facts)) == {"user": DEFAULTS}
    return notes


def test_parameters_are_given_by_name() -> None:
    def noting(notes: dict[str, Any]) -> Callable[..., Any]:
        async def authenticate(
            scopes: Any, body: Any, path_params: Any, path: Any, method: Any, authorization: Any, headers: Any
        ) -> str:
            notes.update(locals())
            return "ann"

        return authenticate

    headers = [["authorization", "Bearer é"], ["x-request-id", "r1"]]
    notes = seen(noting, method="POST", path="/threads/1", query="a=b", headers=headers)

    assert {
        name: notes[name] for name in ("method", "path", "authorization", "path_params", "body", "scopes")
    } == {
        "method": "POST",
        "path": "/threads/1",
        "authorization": "Bearer é",
        "path_params": {},
        "body": None,
        "scopes": [],
    }
    assert notes["headers"] == {b"authorization": "Bearer é".encode("latin-1"), b"x-request-id": b"r1"}
    assert type(notes["headers"]) is dict


def test_parameters_with_defaults_keep_them_and_without_the_header_there_is_no_authorization() -> None:
    def noting(notes: dict[str, Any]) -> Callable[..., Any]:
        async def authenticate(method: str, /, *args: Any, other: int = 7, **kwargs: Any) -> str:
            notes.update(method=method, other=other, args=args, kwargs=kwargs)
            return "ann"

        return authenticate

    assert seen(noting) == {"method": "GET", "other": 7, "args": (), "kwargs": {}}

    def noting_header(notes: dict[str, Any]) -> Callable[..., Any]:
        async def authenticate(authorization: str | None) -> str:
            notes["authorization"] = authorization
            return "ann"

        return authenticate

    assert seen(noting_header) == {"authorization": None}


@pytest.fixture(params=["starlette", "bare"])
def _framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with Starlette in the project and without."""
    if request.param == "bare":
        monkeypatch.setattr(caller_request, "_starlette", lambda name: None)


@pytest.mark.usefixtures("_framework")
def test_the_request_object_has_all_but_a_body() -> None:
    def noting(notes: dict[str, Any]) -> Callable[..., Any]:
        async def authenticate(request: Any, query_params: Any) -> str:
            notes.update(
                method=request.method,
                url=str(request.url),
                path=request.url.path,
                header=request.headers["X-Word"],
                missing=request.headers.get("x-other"),
                cookies=request.cookies,
                client=(request.client.host, request.client.port),
                tags=(query_params.getlist("tag"), query_params["tag"], request.query_params.get("none")),
            )
            with pytest.raises(RuntimeError, match="before the body"):
                await request.body()
            with pytest.raises(RuntimeError, match="before the body"):
                await request.json()
            return "ann"

        return authenticate

    notes = seen(
        noting,
        query="tag=a&tag=b",
        headers=[["x-word", "w"], ["cookie", "session=s1; theme=dark"], ["host", "service.test"]],
        url="http://service.test/d/app/threads?tag=a&tag=b",
    )

    assert notes == {
        "method": "GET",
        "url": "http://service.test/d/app/threads?tag=a&tag=b",
        "path": "/d/app/threads",
        "header": "w",
        "missing": None,
        "cookies": {"session": "s1", "theme": "dark"},
        "client": ("10.0.0.1", 5000),
        "tags": (["a", "b"], "b", None),
    }


def test_a_function_that_is_no_coroutine_runs_in_a_thread() -> None:
    def authenticate() -> dict[str, Any]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return {"identity": "ann"}

    assert answer(authorizing(authenticate), request()) == {"user": DEFAULTS}


# Return values


class Bare:
    identity = "ann"


@dataclass
class Rich:
    identity: str = "ann"
    permissions: list[str] = field(default_factory=lambda: ["read"])
    org: dict[str, int] = field(default_factory=lambda: {"id": 3})
    _hidden: str = "secret"

    @property
    def display_name(self) -> str:
        return "Ann"

    @property
    def broken(self) -> str:
        raise RuntimeError("not loaded")

    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("returned", "user"),
    [
        ("ann", DEFAULTS),
        ({"identity": "ann"}, DEFAULTS),
        ({"identity": "ann", "org": {"id": 3}, "role": None}, {**DEFAULTS, "org": {"id": 3}, "role": None}),
        ({"identity": "ann", "is_authenticated": False}, {**DEFAULTS, "is_authenticated": False}),
        ({"identity": "ann", "display_name": "Ann"}, {**DEFAULTS, "display_name": "Ann"}),
        ({"identity": "ann", "permissions": "read"}, {**DEFAULTS, "permissions": ["read"]}),
        ({"identity": "ann", "permissions": ("a", "b")}, {**DEFAULTS, "permissions": ["a", "b"]}),
        ({"identity": "ann", "permissions": None}, DEFAULTS),
        ({"identity": "ann", "permissions": 7}, DEFAULTS),
        ({"identity": UUID(int=1)}, {**DEFAULTS, "identity": str(UUID(int=1)), "display_name": str(UUID(int=1))}),
        ({"identity": 7}, {**DEFAULTS, "identity": "7", "display_name": "7"}),
        (Bare, DEFAULTS),
        (Rich, {**DEFAULTS, "display_name": "Ann", "permissions": ["read"], "org": {"id": 3}}),
        ((["write"], {"identity": "ann", "permissions": ["read"]}), {**DEFAULTS, "permissions": ["write"]}),
        ((["write"], "ann"), {**DEFAULTS, "permissions": ["write"]}),
        (Auth.types.StudioUser("ann", is_authenticated=True), {**DEFAULTS, "permissions": ["authenticated"], "username": "ann"}),
    ],
)  # fmt: skip
def test_what_it_returns_becomes_a_user(returned: Any, user: dict[str, Any]) -> None:
    assert answer(returning(returned), request()) == {"user": user}


def test_claims_make_nobody_one_of_the_platforms_tools(caplog: pytest.LogCaptureFixture) -> None:
    claims = {"identity": "langgraph-studio-user", "kind": "StudioUser", "team": "red"}
    (user,) = answer(returning(claims), request()).values()
    assert (user["identity"], user["team"], "kind" in user) == ("langgraph-studio-user", "red", False)
    assert not isinstance(user_of(user), Auth.types.StudioUser)

    own = {"identity": "ann", "connection": object(), "surrogate": "\ud800", "n": 1}

    assert answer(returning(own), request()) == {"user": {**DEFAULTS, "n": 1}}
    assert "'connection' is no JSON" in caplog.text


@pytest.mark.parametrize(
    "returned",
    [None, 7, True, {}, {"identity": ""}, "", {"identity": None}, {"identity": True}, [], ["a", "b"], object(),
     "a\0b", "\ud800", (["read"], None), ("a", "b", "c"), {"name": "ann"}],
)  # fmt: skip
def test_what_names_nobody_is_no_user(returned: Any) -> None:
    assert answer(returning(returned), request()) == {"failed": "authenticate raised NoUser"}


# Exceptions


class Odd(Exception):
    status_code = 401
    detail = "not ours"


@pytest.mark.parametrize(
    ("error", "denied"),
    [
        (Auth.exceptions.HTTPException(), (401, "Unauthorized", {})),
        (Auth.exceptions.HTTPException(status_code=403), (403, "Forbidden", {})),
        (
            Auth.exceptions.HTTPException(detail="no", headers={"WWW-Authenticate": "Bearer"}),
            (401, "no", {"WWW-Authenticate": "Bearer"}),
        ),
        (Auth.exceptions.HTTPException(status_code=404, detail="gone"), (404, "gone", {})),
        (Auth.exceptions.HTTPException(status_code=503, detail="later"), (503, "later", {})),
        (Auth.exceptions.HTTPException(detail={"code": 7}), (401, '{"code":7}', {})),  # type: ignore[arg-type]
        (
            Auth.exceptions.HTTPException(headers={"x-bad": "a\r\nset-cookie: b", "x-good": "a"}),
            (401, "Unauthorized", {"x-good": "a"}),
        ),
    ],
)
def test_its_exceptions_are_refusals(error: Exception, denied: tuple[int, str, dict[str, str]]) -> None:
    status, detail, headers = denied
    expected = {"denied": {"status": status, "detail": detail, "headers": headers}}

    assert answer(raising(error), request()) == expected


def test_an_exception_of_starlettes_is_a_refusal_too() -> None:
    from starlette.exceptions import HTTPException

    error = HTTPException(429, headers={"Retry-After": "7"})
    expected = {"status": 429, "detail": "Too Many Requests", "headers": {"Retry-After": "7"}}

    assert answer(raising(error), request()) == {"denied": expected}


@pytest.mark.parametrize(
    "error",
    [
        Auth.exceptions.HTTPException(status_code=302),
        Auth.exceptions.HTTPException(status_code=200),
        ValueError("a secret"),
        AssertionError("a secret"),
        Odd(),
        SystemExit(3),
        asyncio.CancelledError(),
    ],
)
def test_whatever_else_it_raises_is_a_failure_that_says_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failed = answer(raising(error), request())

    assert failed == {"failed": f"authenticate raised {type(error).__name__}"}
    assert "authenticate failed" in caplog.text


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_function_that_does_not_return_fails(monkeypatch: pytest.MonkeyPatch, is_sync: bool) -> None:
    monkeypatch.setattr(host_auth, "ASK_SECONDS", 0.01)
    go_on = threading.Event()

    async def sleeps() -> str:
        await asyncio.Event().wait()
        return "ann"

    def blocks() -> str:
        go_on.wait()
        return "ann"

    try:
        failed = answer(authorizing(blocks if is_sync else sleeps), request())
    finally:
        go_on.set()
    assert failed == {"failed": "authenticate did not answer in time"}


# Loading


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auth = 7\n", "is no langgraph_sdk.Auth: int"),
        (
            "from langgraph_sdk import Auth\nauth = Auth()\n",
            "no function is registered with @auth.authenticate",
        ),
        (
            "from langgraph_sdk import Auth\nauth = Auth()\n@auth.authenticate\nasync def who(token): ...\n",
            "has the unknown parameter 'token', which needs a default",
        ),
        (
            "from langgraph_sdk import Auth\nauth = Auth()\n@auth.on\ndef f(ctx, value): ...\n",
            "must be an async function",
        ),
    ],
)
def test_what_cannot_be_loaded_is_said_for_the_deployer(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "graph.py").write_text(SMALLEST)
    (tmp_path / "guard.py").write_text(text)

    with graph_host(tmp_path, {"g": "./graph.py:graph"}, auth={"path": "./guard.py:auth"}) as host:
        error = host.ready["error"]

    assert error["step"] == "load"
    assert error["message"].startswith("auth.path: ")
    assert words in error["message"]


def test_the_names_it_wants_are_reported_and_unknown_ones_refused() -> None:
    async def authenticate(
        authorization: str, headers: dict[bytes, bytes], other: int = 1, **kwargs: Any
    ) -> str:
        return "ann"

    async def wants(token: str) -> str:
        return token

    assert ProjectAuth(authorizing(authenticate)).describe()["parameters"] == ["authorization", "headers"]
    with pytest.raises(LoadFailed, match="token"):
        ProjectAuth(authorizing(wants))


def test_a_host_shares_the_module_with_the_graph_and_answers_also_without_auth(tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(
        "from typing import TypedDict\nfrom langgraph.graph import StateGraph\nfrom langgraph_sdk import Auth\n"
        "asked = []\nauth = Auth()\n"
        "@auth.authenticate\nasync def who(path):\n    asked.append(path)\n    return 'ann'\n"
        "@auth.on\nasync def may(ctx, value):\n    return {'owner': ctx.user.identity}\n"
        "class S(TypedDict, total=False):\n    asked: list\n"
        "graph = StateGraph(S).add_node('n', lambda s: {'asked': asked}).set_entry_point('n').compile()\n"
    )
    with graph_host(tmp_path, {"g": "./all.py:graph"}, auth={"path": "all.py:auth"}) as host:
        (found,) = host.query(request(path="/threads/7"))
        asks = [{"resource": "threads", "action": "read", "value": {"thread_id": str(UUID(int=1))}}]
        (granted,) = host.query({"op": "authorize", "user": {"identity": "ann"}, "asks": asks})
        run = host.run("g", {})

    assert b'"identity":"ann"' in found
    assert b'{"granted":[{"value":{"thread_id":"00000000' in granted
    assert granted.endswith(b'"filter":{"owner":"ann"}}]}')
    assert run.values == {"asked": ["/threads/7"]}

    with graph_host(HOSTED, {"steps": ALL["steps"]}) as host:
        assert host.query(request()) == [b'{"failed":"this revision has no auth"}']


def test_what_fails_is_in_the_log_with_the_projects_own_lines_only(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(SMALLEST)
    (tmp_path / "guard.py").write_text(
        "from langgraph_sdk import Auth\nauth = Auth()\n@auth.authenticate\ndef who():\n    return {}['token']\n"
    )
    with graph_host(tmp_path, {"g": "./graph.py:graph"}, auth={"path": "./guard.py:auth"}) as host:
        assert host.query(request()) == [b'{"failed":"authenticate raised KeyError"}']
        (line,) = host.logs

    assert line["level"] == "ERROR"
    assert "guard.py" in line["message"]
    assert "graph_host" not in line["message"]
