"""Authorization handlers: which one is called, its arguments, and the handling of its results and exceptions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langgraph_sdk import Auth

from tests.support.authorizing import answer, ask
from workers.graph_host.project.auth import ProjectAuth

THREAD = str(UUID(int=1))
ANN = {"identity": "ann", "permissions": ["read"], "org": {"id": 3}}


def guarded() -> Auth:
    auth = Auth()

    @auth.authenticate
    async def authenticate() -> str:
        return "ann"

    return auth


def deciding(result: Any) -> Auth:
    """Return an auth whose only handler returns or raises the result."""
    auth = guarded()

    @auth.on
    async def decide(ctx: Any, value: Any) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return auth


# Choice of the handler


def test_exactly_the_most_specific_handler_is_asked() -> None:
    auth = guarded()

    @auth.on
    async def everything(ctx: Any, value: Any) -> Any:
        value["by"] = "everything"

    @auth.on.threads
    async def threads(ctx: Any, value: Any) -> Any:
        value["by"] = "threads"

    @auth.on.threads.create
    async def create(ctx: Any, value: Any) -> Any:
        value["by"] = "threads.create"

    @auth.on(actions="read")
    async def reads(ctx: Any, value: Any) -> Any:
        value["by"] = "reads"

    own = ProjectAuth(auth)
    asks = [
        {"resource": resource, "action": action, "value": {}}
        for resource, action in [
            ("threads", "create"), ("threads", "read"), ("assistants", "read"), ("assistants", "update"),
        ]
    ]  # fmt: skip

    granted = answer(own, {"op": "authorize", "user": ANN, "asks": asks})["granted"]

    assert [one["value"]["by"] for one in granted] == ["threads.create", "threads", "reads", "everything"]
    assert own.describe()["handlers"] == [["*", "*"], ["*", "read"], ["threads", "*"], ["threads", "create"]]


def test_what_no_handler_decides_is_allowed_as_it_is() -> None:
    assert answer(guarded(), ask("threads", "read", {"thread_id": THREAD})) == {
        "granted": [{"value": {"thread_id": THREAD}, "filter": None}]
    }


def test_asks_are_decided_in_order_until_one_refuses() -> None:
    auth = guarded()
    asked = []

    @auth.on
    async def decide(ctx: Any, value: Any) -> Any:
        asked.append((ctx.resource, ctx.action))
        return ctx.action != "update"

    asks = [{"resource": "threads", "action": action, "value": {}} for action in ("read", "update", "delete")]

    refused = answer(auth, {"op": "authorize", "user": ANN, "asks": asks})

    assert refused == {"denied": {"status": 403, "detail": "Forbidden", "headers": {}}}
    assert asked == [("threads", "read"), ("threads", "update")]


# Arguments of the handler


def seen(value: dict[str, Any], user: dict[str, Any] = ANN) -> tuple[Any, dict[str, Any]]:
    """Return the context and the value that a handler receives."""
    auth = guarded()
    notes = []

    @auth.on
    async def note(ctx: Any, value: Any) -> None:
        notes.append((ctx, dict(value)))

    assert "granted" in answer(auth, ask("threads", "create_run", value, user))
    return notes[0]


def test_the_context_names_user_permissions_resource_and_action_read_only() -> None:
    ctx, _ = seen({})

    assert (ctx.resource, ctx.action, ctx.permissions) == ("threads", "create_run", ["read"])
    assert (ctx.user.identity, ctx.user["identity"]) == ("ann", "ann")
    assert (ctx.user.org, ctx.user["org"], ctx.user.get("none")) == ({"id": 3}, {"id": 3}, None)
    assert "org" in ctx.user
    assert set(ctx.user) == {"identity", "is_authenticated", "display_name", "permissions", "org"}
    assert (ctx.user.display_name, ctx.user.is_authenticated, ctx.user.permissions) == ("ann", True, ["read"])
    assert isinstance(ctx.user, Auth.types.BaseUser)
    assert not isinstance(ctx.user, Auth.types.StudioUser)
    assert not hasattr(ctx.user, "none")

    user: Any = ctx.user
    with pytest.raises(AttributeError):
        user.identity = "bob"
    with pytest.raises(TypeError):
        user["identity"] = "bob"
    with pytest.raises(AttributeError):
        del user.identity
    assert ctx.user.identity == "ann"


def test_a_studio_user_is_one_and_who_only_says_so_is_none() -> None:
    ctx, _ = seen({}, {"identity": "langgraph-studio-user", "kind": "StudioUser", "permissions": []})

    user: Any = ctx.user
    assert isinstance(ctx.user, Auth.types.StudioUser)
    assert (ctx.user.identity, ctx.user.display_name) == ("langgraph-studio-user", "langgraph-studio-user")
    assert (ctx.user.is_authenticated, list(ctx.user.permissions), ctx.permissions) == (True, [], [])
    assert user["kind"] == "StudioUser"

    ctx, _ = seen({}, {"identity": "mallory", "kind": "StudioUser", "permissions": []})

    assert not isinstance(ctx.user, Auth.types.StudioUser)


def test_ids_are_uuids_and_namespaces_tuples() -> None:
    ids = {
        name: str(UUID(int=n)) for n, name in enumerate(("thread_id", "run_id", "assistant_id", "cron_id"))
    }
    _, value = seen({**ids, "namespace": ["a"], "thread_ids": [THREAD], "metadata": {"thread_id": THREAD}})

    assert value == {
        **{name: UUID(text) for name, text in ids.items()},
        "namespace": ("a",),
        "thread_ids": [THREAD],
        "metadata": {"thread_id": THREAD},
    }
    assert seen({"namespace": None, "suffix": ["z"]})[1] == {"namespace": None, "suffix": ("z",)}
    assert seen({"thread_id": None, "assistant_id": "agent"})[1] == {
        "thread_id": None,
        "assistant_id": "agent",
    }

    told = {"thread_id": None, "action": "interrupt", "metadata": {"run_ids": [THREAD], "status": None}}
    assert seen(told)[1]["metadata"] == {"run_ids": [UUID(THREAD)], "status": None}
    told["metadata"] = {"run_ids": None, "status": "all"}
    assert seen(told)[1]["metadata"] == {"run_ids": None, "status": "all"}


# Results of the handler


def test_the_value_comes_back_as_the_handler_left_it() -> None:
    auth = guarded()

    @auth.on.threads.create
    async def in_place(ctx: Any, value: Any) -> None:
        value["metadata"]["owner"] = ctx.user.identity

    @auth.on.threads.update
    async def replaced(ctx: Any, value: Any) -> None:
        value["metadata"] = {"owner": ctx.user.identity, "thread": value["thread_id"]}

    @auth.on.store
    async def narrowed(ctx: Any, value: Any) -> None:
        value["namespace"] = (ctx.user.identity, *value["namespace"])

    def left(resource: str, action: str, value: dict[str, Any]) -> Any:
        return answer(auth, ask(resource, action, value))["granted"][0]["value"]

    value = {"thread_id": THREAD, "metadata": {"a": 1}}
    assert left("threads", "create", value) == {"thread_id": THREAD, "metadata": {"a": 1, "owner": "ann"}}
    assert left("threads", "update", value)["metadata"] == {"owner": "ann", "thread": THREAD}
    assert left("store", "put", {"namespace": ["a"], "key": "k"}) == {"namespace": ["ann", "a"], "key": "k"}


@pytest.mark.parametrize(
    ("result", "filter"),
    [
        (None, None),
        (True, None),
        (1, None),
        (2.5, None),
        ({}, None),
        ({"owner": "ann"}, {"owner": "ann"}),
        ({"owner": UUID(int=1)}, {"owner": THREAD}),
        ({"$or": [{"a": {"$eq": 1}}, {"b": {"$contains": ["x"]}}]},) * 2,
    ],
)
def test_a_handler_allows(result: Any, filter: Any) -> None:
    assert answer(deciding(result), ask("threads", "read", {})) == {
        "granted": [{"value": {}, "filter": filter}]
    }


@pytest.mark.parametrize("result", [False, 0])
def test_a_handler_forbids(result: Any) -> None:
    expected = {"denied": {"status": 403, "detail": "Forbidden", "headers": {}}}

    assert answer(deciding(result), ask("threads", "read", {})) == expected


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (Auth.exceptions.HTTPException(status_code=418, detail="tea"), 418, "tea"),
        (Auth.exceptions.HTTPException(status_code=500, detail="broken"), 500, "broken"),
        (AssertionError("not yours"), 403, "not yours"),
        (AssertionError(), 403, "Forbidden"),
    ],
)
def test_a_handler_refuses_in_its_own_words(error: Exception, status: int, detail: str) -> None:
    expected = {"denied": {"status": status, "detail": detail, "headers": {}}}

    assert answer(deciding(error), ask("threads", "read", {})) == expected


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("yes", "WrongAnswer"),
        (["a"], "WrongAnswer"),
        ({"owner": object()}, "WrongAnswer"),
        ({7: "x"}, "WrongAnswer"),
        ({"$or": [{"owner": float("nan")}]}, "WrongAnswer"),
        ({"owner": float("inf")}, "WrongAnswer"),
        (ValueError("a secret"), "ValueError"),
        (SystemExit(1), "SystemExit"),
        (Auth.exceptions.HTTPException(status_code=302), "HTTPException"),
    ],
)
def test_whatever_else_a_handler_does_is_a_failure(result: Any, error: str) -> None:
    assert answer(deciding(result), ask("threads", "read", {})) == {"failed": f"authorize raised {error}"}


def test_a_value_that_is_no_json_any_more_and_a_filter_of_the_store_are_failures() -> None:
    auth = guarded()

    @auth.on
    async def spoil(ctx: Any, value: Any) -> None:
        value["metadata"] = {"owner": object()}

    assert answer(auth, ask("threads", "create", {})) == {"failed": "authorize raised WrongAnswer"}
    assert answer(deciding({"owner": "ann"}), ask("store", "get", {})) == {
        "failed": "authorize raised WrongAnswer"
    }
