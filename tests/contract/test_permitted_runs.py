"""Calls that create a run ask the deployment's authorization: the values that handlers see, change and hide."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph_sdk import Auth
from sqlalchemy import text

import tests.support.factories as make
from shared import assistants
from shared.deployments import user_code
from shared.infra.postgres import connection
from tests.contract.conftest import Api, Notifications
from tests.contract.statements import execute, scalar
from tests.support.user_code import PlayedAuth, crash, owner_only, refuse
from web.gate.deployments import forget as forget_deployments

AGENT = str(assistants.default_id("agent"))
CREATE_RUN, READ_ASSISTANT = ("threads", "create_run"), ("assistants", "read")
HIDDEN = {"detail": "Thread or assistant not found."}
RUN = {"assistant_id": "agent"}

VALUE = {
    "thread_id", "assistant_id", "run_id", "status", "metadata", "prevent_insert_if_inflight",
    "multitask_strategy", "if_not_exists", "after_seconds", "kwargs",
}  # fmt: skip
KWARGS = {
    "input", "command", "config", "context", "stream_mode", "interrupt_before", "interrupt_after", "webhook",
    "feedback_keys", "temporary", "subgraphs", "resumable", "checkpoint_during", "durability",
}  # fmt: skip


def thread(api: Api, **metadata: Any) -> str:
    return str(make.thread(api.deployment.id, metadata={"owner": "ann", **metadata}))


def assistant(api: Api, **columns: Any) -> str:
    return str(make.assistant(api.deployment.id, metadata={"owner": "ann"}, **columns))


def metadata_of(thread_id: str) -> dict[str, Any]:
    found: dict[str, Any] = scalar("SELECT metadata FROM thread WHERE thread_id = :id", id=thread_id)
    return found


def created(api: Api, path: str, **body: Any) -> dict[str, Any]:
    response = api.post(path, {**RUN, **body})
    assert response.status_code == 200, response.text
    run: Any = response.json
    return dict(run)


def runs() -> list[Any]:
    """Return all stored runs."""
    with connection() as conn:
        return list(conn.execute(text("SELECT * FROM run ORDER BY run_id")).mappings())


def test_the_handler_sees_the_run_as_it_will_be(ann: Api, played: PlayedAuth) -> None:
    key = thread(ann)
    played.forget()

    run = created(ann, f"/threads/{key}/runs", input={"n": 1}, metadata={"a": 1}, after_seconds=5)

    assert played.pairs() == [CREATE_RUN]
    value = played.value(*CREATE_RUN)
    assert value.keys() == VALUE
    assert (value["thread_id"], value["run_id"]) == (UUID(key), UUID(run["run_id"]))
    assert value["assistant_id"] == UUID(AGENT)
    assert (value["status"], value["metadata"]) == ("pending", {"a": 1})
    assert (value["multitask_strategy"], value["if_not_exists"]) == ("enqueue", "reject")
    assert (value["after_seconds"], value["prevent_insert_if_inflight"]) == (5, False)
    assert value["kwargs"].keys() == KWARGS
    assert value["kwargs"] == run["kwargs"]
    configurable = value["kwargs"]["config"]["configurable"]
    assert configurable["langgraph_auth_user"]["team"] == "team of ann"
    assert configurable["langgraph_auth_user_id"] == configurable["user_id"] == "ann"
    assert configurable["langgraph_auth_permissions"] == ["of:ann"]


def test_the_values_of_a_run_without_a_thread_and_of_an_assistant_of_ones_own(
    ann: Api, played: PlayedAuth
) -> None:
    run = created(ann, "/runs")
    assert played.value(*CREATE_RUN)["thread_id"] is None
    assert played.value(*CREATE_RUN)["run_id"] == UUID(run["run_id"])

    own = assistant(ann)
    played.forget()

    created(ann, "/runs", assistant_id=own)

    assert played.pairs() == [CREATE_RUN, READ_ASSISTANT]
    assert played.value(*READ_ASSISTANT) == {"assistant_id": UUID(own)}
    assert [call["op"] for call in played.calls].count("authorize") == 1


def test_a_batch_is_asked_about_in_one_call_and_one_item_that_is_refused_refuses_it(
    ann: Api, played: PlayedAuth
) -> None:
    own = assistant(ann)
    played.forget()

    made: Any = ann.post("/runs/batch", [RUN, {"assistant_id": own}, {"assistant_id": own}]).json

    assert played.pairs() == [CREATE_RUN, CREATE_RUN, CREATE_RUN, READ_ASSISTANT]
    assert [str(asked.value["run_id"]) for asked in played.asked[:3]] == [run["run_id"] for run in made]
    assert [call["op"] for call in played.calls].count("authorize") == 1

    played.on(lambda ctx, value: value["metadata"].get("n") != 1, *CREATE_RUN)
    items = [{**RUN, "metadata": {"n": n}} for n in range(3)]
    before = runs()
    assert ann.post("/runs/batch", items).status_code == 403
    assert runs() == before


def stamped_in_place(ctx: Any, value: dict[str, Any]) -> None:
    value["metadata"]["owner"] = ctx.identity


def stamped_anew(ctx: Any, value: dict[str, Any]) -> None:
    value["metadata"] = {"owner": ctx.identity}


def test_what_the_handler_says_of_a_run_its_new_thread_says_too(ann: Api, played: PlayedAuth) -> None:
    for handler in (stamped_in_place, stamped_anew):
        played.on(handler, *CREATE_RUN)
        made = created(ann, f"/threads/{uuid4()}/runs", if_not_exists="create", metadata={"owner": "bob"})
        for run in (made, created(ann, "/runs")):
            assert run["metadata"]["owner"] == "ann", handler
            assert run["metadata"]["assistant_id"] == AGENT, handler
            assert metadata_of(run["thread_id"])["owner"] == "ann", handler
    key = thread(ann, owner="nobody")  # an existing thread keeps its metadata
    assert created(ann, f"/threads/{key}/runs")["metadata"]["owner"] == "ann"
    assert metadata_of(key)["owner"] == "nobody"


def test_the_handler_changes_what_the_run_gets_but_not_who_asks(ann: Api, played: PlayedAuth) -> None:
    def change(ctx: Any, value: dict[str, Any]) -> None:
        kwargs = value["kwargs"]
        kwargs["input"] = {"n": 2}
        kwargs["config"]["configurable"] |= {
            "region": "eu",
            "langgraph_auth_user": {"identity": "root"},
            "langgraph_auth_user_id": "root",
            "langgraph_auth_other": 1,
            "__pregel_resuming": True,
            "run_id": str(uuid4()),
        }
        value["multitask_strategy"], value["after_seconds"] = "reject", 100

    played.on(change, *CREATE_RUN)
    run = created(ann, "/runs", input={"n": 1})
    configurable = run["kwargs"]["config"]["configurable"]
    assert run["kwargs"]["input"] == {"n": 2}
    assert configurable["region"] == "eu"
    assert configurable["langgraph_auth_user"]["identity"] == configurable["langgraph_auth_user_id"] == "ann"
    assert configurable["run_id"] == run["run_id"]
    assert not configurable.keys() & {"langgraph_auth_other", "__pregel_resuming"}
    assert run["multitask_strategy"] == "enqueue"
    assert runs()[0]["not_before"] is None


def test_what_can_be_no_run_is_none(ann: Api, played: PlayedAuth, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        {"metadata": ["no object"]},
        {"metadata": {"nul": "\0"}},
        {"kwargs": None},
        {"kwargs": {}},
        {"kwargs": {"config": "no object"}},
        {"kwargs": {"config": {"configurable": 1}}},
    ]
    for left in rows:
        with subtests.test(left=left):
            played.on(lambda ctx, value, left=left: value.update(left), *CREATE_RUN)
            assert ann.post("/runs", RUN).status_code == 500
            assert runs() == []
    played.on(lambda ctx, value: {"owner": {"$ne": "bob"}}, *CREATE_RUN)  # an invalid filter
    assert ann.post("/runs", RUN).status_code == 500
    assert runs() == []


CREATING = (
    "/threads/{thread}/runs", "/threads/{thread}/runs/wait", "/threads/{thread}/runs/stream",
)  # fmt: skip
STATELESS = ("/runs", "/runs/wait", "/runs/stream")


def test_who_is_refused_makes_nothing(
    ann: Api, played: PlayedAuth, notifications: Notifications, subtests: pytest.Subtests
) -> None:
    for path in CREATING + STATELESS:
        for handler, status in ((refuse, 403), (crash, 500)):
            with subtests.test(path=path, handler=handler, status=status):
                key = thread(ann)
                played.on(handler, *CREATE_RUN)
                for body in (RUN, {"assistant_id": str(uuid4())}, {"assistant_id": "no graph"}):
                    for wanted in (key, uuid4()):
                        response = ann.post(path.format(thread=wanted), body)
                        assert response.status_code == status, response.text
                        assert "secret" not in response.text
                assert runs() == []
                assert notifications.heard == []


def test_a_strangers_thread_is_as_one_that_is_not_there(ann: Api, bob: Api, played: PlayedAuth) -> None:
    played.on(owner_only)
    key = thread(ann)
    created(ann, f"/threads/{key}/runs")
    for path in CREATING:
        for more in ({}, {"if_not_exists": "create"}, {"multitask_strategy": "interrupt"}):
            for wanted in (key,) if "if_not_exists" in more else (key, uuid4()):
                hidden = bob.post(path.format(thread=wanted), {**RUN, **more})
                assert (path, more, hidden.status_code, hidden.json) == (path, more, 404, HIDDEN)
    assert [run["status"] for run in runs()] == ["pending"]


@pytest.mark.usefixtures("own_key")
def test_a_repeated_request_is_asked_about_again(ann: Api, bob: Api, played: PlayedAuth) -> None:
    played.on(owner_only)  # default assistants are open to every user
    headers = {"Idempotency-Key": "one"}
    first: Any = ann.post("/runs", RUN, headers=headers)
    again = ann.post("/runs", RUN, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json == first.json
    others: Any = bob.post("/runs", RUN, headers=headers)
    assert others.json["run_id"] != first.json["run_id"]
    played.on(refuse, *CREATE_RUN)
    assert ann.post("/runs", RUN, headers=headers).status_code == 403


@pytest.mark.usefixtures("own_key")
def test_a_repeated_request_shows_no_thread_that_is_anothers_by_now(ann: Api, played: PlayedAuth) -> None:
    played.on(owner_only)
    key, headers = thread(ann), {"Idempotency-Key": "one"}
    assert ann.post(f"/threads/{key}/runs", RUN, headers=headers).status_code == 200
    execute("""UPDATE thread SET metadata = '{"owner": "bob"}'""")
    response = ann.post(f"/threads/{key}/runs", RUN, headers=headers)
    assert (response.status_code, response.json) == (404, HIDDEN)


def test_a_project_says_itself_how_it_refuses(ann: Api, played: PlayedAuth) -> None:
    def too_many(ctx: Any, value: dict[str, Any]) -> None:
        raise Auth.exceptions.HTTPException(status_code=429, detail="Come back", headers={"Retry-After": "9"})

    played.on(too_many, *CREATE_RUN)
    response = ann.post("/runs", RUN)
    assert (response.status_code, response.json) == (429, {"detail": "Come back"})
    assert response.headers["Retry-After"] == "9"


def test_the_assistant_may_move_while_the_handlers_think(ann: Api, played: PlayedAuth) -> None:
    own = assistant(ann, context={"n": 1})

    def slow(ctx: Any, value: dict[str, Any]) -> None:
        del played.handlers[CREATE_RUN]
        execute("""UPDATE assistant_version SET context = '{"n": 2}'""")

    played.on(slow, *CREATE_RUN)
    run = created(ann, "/runs", assistant_id=own)
    assert run["kwargs"]["context"] == played.value(*CREATE_RUN)["kwargs"]["context"] == {"n": 1}


def test_without_handlers_nobody_is_asked(ann: Api, played: PlayedAuth) -> None:
    execute("""UPDATE revision SET user_code = '{"auth": {"handlers": []}}'""")
    user_code._known.clear()
    forget_deployments()
    run = created(ann, "/runs")
    assert played.asked == []
    assert run["kwargs"]["config"]["configurable"]["langgraph_auth_user_id"] == "ann"
