"""Runs on the wire: create, read, strategies, refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from sqlalchemy import select

import tests.support.factories as make
from shared import assistants
from shared.eventlog import events
from shared.infra import redis
from shared.infra.postgres import connection, driver
from shared.models import RUN
from shared.runs import claims
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import MISSING, start, status_of, thread
from tests.support.acting import Actor, act
from web.deployment_api import creation

FIELDS = [
    "run_id", "thread_id", "assistant_id", "created_at", "updated_at", "status", "metadata", "kwargs",
    "multitask_strategy", "langsmith_session_name", "cancel_reason", "revision_id", "usage", "started_at", "ended_at", "attempts", "cost",
]  # fmt: skip
BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
AGENT = str(assistants.default_id("agent"))


def test_a_new_run_has_the_contracts_record_and_headers(
    api: Api, thread_id: str, notifications: Notifications
) -> None:
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", "input": {"a": "\x00"}})

    run = response.json
    assert response.status_code == 200
    assert list(run) == FIELDS
    assert UUID(run["run_id"]).version == 7
    assert (run["thread_id"], run["assistant_id"], run["status"]) == (thread_id, AGENT, "pending")
    assert run["metadata"] == {"graph_id": "agent", "assistant_id": AGENT}
    assert (run["multitask_strategy"], run["langsmith_session_name"], run["cancel_reason"]) == (
        "enqueue", None, None,
    )  # fmt: skip
    assert response.headers["Content-Location"] == f"/threads/{thread_id}/runs/{run['run_id']}"
    assert "Location" not in response.headers
    read = api.get(f"/threads/{thread_id}/runs/{run['run_id']}").json
    assert {name: value for name, value in read.items() if name != "queue"} == run
    assert notifications.heard == [("runs.default", run["run_id"])]


def test_the_record_says_which_models_used_how_many_tokens(api: Api, thread_id: str) -> None:
    usage = {
        "large": {
            "input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 2},
        }
    }  # fmt: skip
    run = start(api, thread_id)
    assert run["usage"] is None
    act(run["run_id"], {}, usage=usage)
    silent = start(api, thread_id)
    act(silent["run_id"], {})

    records = api.get(f"/threads/{thread_id}/runs").json
    assert {record["run_id"]: record["usage"] for record in records} == {
        run["run_id"]: usage,
        silent["run_id"]: None,
    }
    assert api.get(f"/threads/{thread_id}/runs/{run['run_id']}").json["usage"] == usage


def test_the_record_says_when_it_ran_and_which_attempts_were_lost(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    lost = Actor(run["run_id"], owner="box:1:a")
    with connection() as conn:
        claims.give_back(conn, [claims.Requeue(lost.run, death="was killed by SIGKILL")])
    act(run["run_id"], {})

    record = api.get(f"/threads/{thread_id}/runs/{run['run_id']}").json
    (attempt,) = record["attempts"]
    times = [record["started_at"], attempt.pop("started_at"), attempt.pop("ended_at"), record["ended_at"]]
    assert times == sorted(times, key=datetime.fromisoformat)
    assert attempt == {"attempt": 1, "worker": "box:1:a", "reason": "was killed by SIGKILL"}


def test_kwargs_have_the_contracts_defaults(api: Api, thread_id: str) -> None:
    request_id = str(uuid4())
    body = {"assistant_id": "agent", "input": {"a": 1}}
    run = api.post(f"/threads/{thread_id}/runs", body, headers={"x-request-id": request_id}).json
    assert run["kwargs"] == {
        "input": {"a": 1},
        "command": None,
        "config": {
            "configurable": {
                "run_id": run["run_id"],
                "thread_id": thread_id,
                "graph_id": "agent",
                "assistant_id": AGENT,
                "user_id": "",
                "langgraph_auth_user": None,
                "langgraph_auth_user_id": "",
                "langgraph_auth_permissions": [],
                "langgraph_request_id": request_id,
            }
        },
        "context": {},
        "stream_mode": ["values"],
        "interrupt_before": None,
        "interrupt_after": None,
        "webhook": None,
        "feedback_keys": None,
        "temporary": False,
        "subgraphs": False,
        "resumable": False,
        "checkpoint_during": True,
        "durability": "async",
    }


def test_a_run_is_traced_to_the_project_its_caller_names(api: Api, thread_id: str) -> None:
    tracer = {"project_name": "evaluations", "example_id": "8b3f7a52-6a7e-4d8c-9a53-0f0f6a4f1c11"}

    run = start(api, thread_id, langsmith_tracer=tracer)

    assert run["langsmith_session_name"] == "evaluations"
    assert run["kwargs"]["langsmith_tracer"] == tracer
    listed = api.get(f"/threads/{thread_id}/runs").json
    assert [row["langsmith_session_name"] for row in listed] == ["evaluations"]


def test_a_runs_configuration_goes_over_the_assistants(api: Api, thread_id: str) -> None:
    config = {"tags": ["a"], "recursion_limit": 5, "configurable": {"word": "one", "deep": {"x": 1}}}
    made = api.post("/assistants", {"graph_id": "agent", "config": config, "metadata": {"who": "assistant"}})
    api.patch(f"/threads/{thread_id}", {"metadata": {"who": "thread", "mood": "thread"}})

    run = start(
        api,
        thread_id,
        assistant_id=made.json["assistant_id"],
        context={"deep": {"y": 2}},
        config={"tags": ["b"], "metadata": {"from": "config"}},
        metadata={"mood": "run", "graph_id": "mine"},
    )

    kwargs = run["kwargs"]
    assert kwargs["context"] == {"word": "one", "deep": {"y": 2}}
    assert (kwargs["config"]["tags"], kwargs["config"]["recursion_limit"]) == (["b"], 5)
    assert kwargs["config"]["configurable"]["word"] == "one"
    assert kwargs["config"]["configurable"]["deep"] == {"y": 2}
    assert run["metadata"] == {
        "who": "thread", "from": "config", "mood": "run", "graph_id": "mine",
        "assistant_id": made.json["assistant_id"],
    }  # fmt: skip


def test_a_run_freezes_the_active_version(api: Api, thread_id: str) -> None:
    made = api.post("/assistants", {"graph_id": "agent", "context": {"word": "one"}}).json
    path = f"/assistants/{made['assistant_id']}"
    api.patch(path, {"context": {"word": "two"}})
    second = start(api, thread_id, assistant_id=made["assistant_id"])

    api.post(f"{path}/latest", {"version": 1})

    first = start(api, thread_id, assistant_id=made["assistant_id"])
    assert second["kwargs"]["context"] == {"word": "two"}
    assert first["kwargs"]["context"] == {"word": "one"}
    assert api.get(f"/threads/{thread_id}/runs/{second['run_id']}").json["kwargs"] == second["kwargs"]


@pytest.mark.parametrize(
    ("sent", "name", "stored"),
    [
        ({"stream_mode": "updates"}, "stream_mode", ["updates"]),
        ({"stream_mode": ["tools", "lifecycle"]}, "stream_mode", ["tools", "lifecycle"]),
        ({"stream_mode": []}, "stream_mode", ["values"]),
        ({"stream_mode": None}, "stream_mode", ["values"]),
        ({"checkpoint_during": False}, "durability", "exit"),
        ({"checkpoint_during": True}, "durability", "async"),
        ({"checkpoint_during": False, "durability": "sync"}, "durability", "sync"),
        ({"durability": "exit"}, "checkpoint_during", False),
        ({"interrupt_before": "*"}, "interrupt_before", "*"),
        ({"interrupt_after": ["a", "b"]}, "interrupt_after", ["a", "b"]),
        ({"stream_subgraphs": True}, "subgraphs", True),
        ({"stream_resumable": True}, "resumable", True),
        ({"command": {}}, "command", None),
        ({"command": {"resume": None}}, "command", None),
        ({"command": {"resume": False}}, "command", {"resume": False}),
        ({"command": {"resume": {"id": 1}, "unknown": 1}}, "command", {"resume": {"id": 1}}),
        ({"command": {"update": [["a", 1]], "goto": "n"}}, "command", {"update": [["a", 1]], "goto": "n"}),
        ({"command": {"goto": ["a", {"node": "b", "input": 1}]}}, "command",
         {"goto": ["a", {"node": "b", "input": 1}]}),
        ({"input": None}, "input", None),
        ({"input": [1, "x"]}, "input", [1, "x"]),
        ({"after_seconds": 0, "checkpoint": {}, "webhook": None, "feedback_keys": []}, "webhook", None),
        ({"after_seconds": -3, "strict_resume": False, "langsmith_tracer": {"a": 1}}, "webhook", None),
        ({"feedback_keys": ["good"]}, "feedback_keys", ["good"]),
        ({"strict_resume": True}, "strict_resume", True),
    ],
)  # fmt: skip
def test_what_a_body_becomes(api: Api, thread_id: str, sent: dict[str, Any], name: str, stored: Any) -> None:
    assert start(api, thread_id, **sent)["kwargs"][name] == stored


def test_a_thread_is_made_when_asked_for(api: Api) -> None:
    thread_id = str(uuid4())
    refused = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", "if_not_exists": "reject"})
    run = start(api, thread_id, if_not_exists="create", metadata={"a": 1})

    assert (refused.status_code, refused.json) == (404, {"detail": "Thread or assistant not found."})
    made = thread(api, thread_id)
    assert (made["status"], made["thread_id"]) == ("busy", run["thread_id"])
    assert made["metadata"] == {"a": 1, "graph_id": "agent", "assistant_id": AGENT}


@pytest.mark.parametrize(("on_completion", "temporary"), [(None, True), ("delete", True), ("keep", False)])
def test_a_run_without_a_thread_has_one_of_its_own(
    api: Api, on_completion: str | None, temporary: bool
) -> None:
    response = api.post("/runs", {"assistant_id": "agent", "on_completion": on_completion})

    run = response.json
    assert response.headers["Content-Location"] == f"/runs/{run['run_id']}"
    assert run["kwargs"]["temporary"] is temporary
    assert thread(api, run["thread_id"])["status"] == "busy"
    act(run["run_id"], {"a": 1})
    assert api.get(f"/threads/{run['thread_id']}").status_code == (404 if temporary else 200)
    assert status_of(api, run) == (None if temporary else "success")


def test_a_thread_waits_no_more_runs_than_allowed(api: Api, thread_id: str) -> None:
    api.set(max_pending_per_thread=2)
    for _ in range(2):
        start(api, thread_id)
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"})
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) > 0


CREATING = ["/threads/{}/runs", "/threads/{}/runs/stream", "/threads/{}/runs/wait"]


@pytest.mark.parametrize("path", CREATING)
def test_creating_on_a_missing_thread_or_assistant_is_404(api: Api, thread_id: str, path: str) -> None:
    detail = {"detail": "Thread or assistant not found."}
    for thread_key, assistant in ((MISSING, "agent"), (thread_id, MISSING)):
        response = api.post(path.format(thread_key), {"assistant_id": assistant})
        assert (response.status_code, response.json) == (404, detail)
    assert thread(api, thread_id)["status"] == "idle"


@pytest.mark.parametrize("path", CREATING)
def test_creating_under_a_bad_thread_id_is_422(api: Api, path: str) -> None:
    response = api.post(path.format("nope"), {"assistant_id": "agent"})
    assert (response.status_code, response.json) == (422, {"detail": "Invalid thread ID"})


@pytest.mark.parametrize("path", ["/runs", "/runs/stream", "/runs/wait"])
def test_an_unknown_graph_name_is_422(api: Api, path: str) -> None:
    response = api.post(path, {"assistant_id": "nope"})
    detail = (
        "Invalid assistant: 'nope'. Must be either:\n- A valid assistant UUID, or\n"
        "- One of the registered graphs: agent, other"
    )
    assert (response.status_code, response.json) == (422, {"detail": detail})


def test_a_deployment_that_serves_nothing_yet_is_409(api: Api) -> None:
    new = make.deployment("new", organization_id=api.deployment.organization_id, serving=False)
    assert Api(api.client, new).post("/runs", {"assistant_id": "agent"}).status_code == 409


def test_context_beside_configurable_is_400(api: Api) -> None:
    body = {"assistant_id": "agent", "context": {"a": 1}, "config": {"configurable": {"b": 1}}}
    assert api.post("/runs", body).status_code == 400
    body["config"] = {"configurable": {}}
    assert api.post("/runs", body).status_code == 200


def test_an_oversize_body_is_413(api: Api, app: Flask) -> None:
    app.config["MAX_CONTENT_LENGTH"] = 1000
    response = api.post("/runs", {"assistant_id": "agent", "input": "x" * 1000})
    assert (response.status_code, response.json) == (
        413,
        {"detail": "The request body is larger than 1000 bytes"},
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"assistant_id": None}, "assistant_id"),
    ({"assistant_id": 5}, "assistant_id"),
    ({"assistant_id": ""}, "assistant_id"),
    ({"assistant_id": "\x00"}, "assistant_id"),
    ({"command": "resume"}, "command"),
    ({"command": []}, "command"),
    ({"command": {"update": "x"}}, "command.update"),
    ({"command": {"update": [["a"]]}}, "command.update"),
    ({"command": {"goto": 5}}, "command.goto"),
    ({"command": {"goto": {"input": 1}}}, "command.goto"),
    ({"command": {"goto": [["a"]]}}, "command.goto"),
    ({"metadata": None}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"a": "\x00"}}, "metadata"),
    ({"metadata": {"a": "x" * 70_000}}, "metadata"),
    ({"config": None}, "config"),
    ({"config": {"recursion_limit": 1.5}}, "config.recursion_limit"),
    ({"config": {"max_concurrency": 0}}, "config.max_concurrency"),
    ({"config": {"metadata": {"a": "\x00"}}}, "config.metadata"),
    ({"config": {"configurable": {"checkpoint_map": 5}}}, "config.configurable.checkpoint_map"),
    ({"context": None}, "context"),
    ({"context": []}, "context"),
    ({"interrupt_before": "node"}, "interrupt_before"),
    ({"interrupt_after": [1]}, "interrupt_after"),
    ({"stream_mode": "nope"}, "stream_mode"),
    ({"stream_mode": 5}, "stream_mode"),
    ({"stream_mode": ["values", "nope"]}, "stream_mode.1"),
    ({"stream_subgraphs": 1}, "stream_subgraphs"),
    ({"stream_subgraphs": None}, "stream_subgraphs"),
    ({"stream_resumable": "true"}, "stream_resumable"),
    ({"multitask_strategy": "wait"}, "multitask_strategy"),
    ({"if_not_exists": True}, "if_not_exists"),
    ({"on_completion": "complete"}, "on_completion"),
    ({"on_disconnect": "stop"}, "on_disconnect"),
    ({"durability": "never"}, "durability"),
    ({"checkpoint_during": 0}, "checkpoint_during"),
    ({"langsmith_tracer": "x"}, "langsmith_tracer"),
    ({"langsmith_tracer": {"example_id": "x"}}, "langsmith_tracer.example_id"),
    # of the wrong type
    ({"webhook": ""}, "webhook"),
    ({"webhook": 5}, "webhook"),
    ({"after_seconds": "1"}, "after_seconds"),
    ({"after_seconds": False}, "after_seconds"),
    ({"after_seconds": 1e12}, "after_seconds"),
    ({"checkpoint": "x"}, "checkpoint"),
    ({"checkpoint": {"checkpoint_map": {"": 1}}}, "checkpoint.checkpoint_map"),
    ({"checkpoint": {"thread_id": "x"}}, "checkpoint.thread_id"),
    ({"checkpoint_id": 5}, "checkpoint_id"),
    ({"if_thread_status": "gone"}, "if_thread_status"),
    ({"feedback_keys": "a"}, "feedback_keys"),
    ({"strict_resume": 1}, "strict_resume"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_a_bad_body_is_422_and_names_the_field(api: Api, body: dict[str, Any], field: str) -> None:
    response = api.post("/runs", {"assistant_id": "agent", **body})
    assert response.status_code == 422
    assert response.json["detail"].startswith(f"{field}: "), response.json
    with connection() as conn:
        assert conn.execute(select(RUN.c.run_id)).all() == []


@pytest.mark.parametrize("path", ["/runs", "/runs/stream", "/runs/wait"])
def test_every_creating_call_checks_its_body(api: Api, path: str) -> None:
    assert api.post(path, {}).json == {"detail": "assistant_id: this field is required"}
    assert api.call("POST", path).json == {"detail": "Invalid JSON in request body"}


@pytest.mark.parametrize("started", [False, True])
def test_reject_refuses_on_a_busy_thread(api: Api, thread_id: str, started: bool) -> None:
    first = start(api, thread_id, multitask_strategy="reject")
    if started:
        Actor(first["run_id"])
    response = api.post(
        f"/threads/{thread_id}/runs", {"assistant_id": "agent", "multitask_strategy": "reject"}
    )
    assert (response.status_code, response.json) == (409, {"detail": BUSY})
    assert len(api.get(f"/threads/{thread_id}/runs").json) == 1
    assert status_of(api, first) == ("running" if started else "pending")


def test_an_enqueued_run_waits_for_earlier_ones(api: Api, thread_id: str) -> None:
    first, second = start(api, thread_id), start(api, thread_id)
    with driver() as conn:
        early = claims.claim(conn, [UUID(second["run_id"])], claims.Terms("w", 30, 60))
    assert early == []
    act(first["run_id"], {})
    assert thread(api, thread_id)["status"] == "busy"
    act(second["run_id"], {})
    assert thread(api, thread_id)["status"] == "idle"


@pytest.mark.parametrize(("strategy", "left"), [("interrupt", "interrupted"), ("rollback", None)])
def test_a_strategy_ends_pending_runs_in_place(
    api: Api, thread_id: str, strategy: str, left: str | None
) -> None:
    old = [start(api, thread_id) for _ in range(2)]
    new = start(api, thread_id, multitask_strategy=strategy)

    assert [status_of(api, run) for run in old] == [left, left]
    assert status_of(api, new) == "pending"
    assert thread(api, thread_id)["status"] == "busy"
    for run in old:
        assert [e.name for e in events.logged(redis.client(), UUID(run["run_id"]), 0)] == ["end"]
    act(new["run_id"], {})


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_strategy_asks_the_owner_to_stop_a_running_run(api: Api, thread_id: str, strategy: str) -> None:
    old = start(api, thread_id)
    Actor(old["run_id"], owner="w7")
    with redis.client().pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(f"{redis.PREFIX}control:w7")
        heard.get_message(timeout=5)
        new = start(api, thread_id, multitask_strategy=strategy)
        message = heard.get_message(timeout=5)

    reason = f"superseded by run {new['run_id']} (multitask_strategy={strategy})"
    assert message is not None
    assert message["data"].decode() == (
        f'{{"run_id":"{old["run_id"]}","action":"{strategy}","reason":"{reason}"}}'
    )
    with connection() as conn:
        held = claims.renew(conn, [UUID(old["run_id"])], owner="w7", lease_seconds=30)
    assert held[UUID(old["run_id"])].cancel_requested == strategy
    assert held[UUID(old["run_id"])].cancel_reason == reason
    assert status_of(api, old) == "running"


def test_runs_are_listed_newest_first(api: Api, thread_id: str) -> None:
    runs = [start(api, thread_id) for _ in range(11)]
    act(runs[0]["run_id"], {})
    ids = [run["run_id"] for run in reversed(runs)]
    path = f"/threads/{thread_id}/runs"

    assert [run["run_id"] for run in api.get(path).json] == ids[:10]
    assert [run["run_id"] for run in api.get(f"{path}?limit=2&offset=1").json] == ids[1:3]
    assert [run["run_id"] for run in api.get(f"{path}?status=success").json] == [ids[-1]]
    assert len(api.get(f"{path}?status=pending&limit=1000").json) == 10
    assert api.get(f"{path}?status=nonsense").json == []


@pytest.mark.parametrize(
    "query", ["select=run_id&select=status", 'select=["run_id","status"]', "select=run_id,status"]
)
def test_list_selects_in_every_spelling(api: Api, thread_id: str, query: str) -> None:
    run = start(api, thread_id)
    found = api.get(f"/threads/{thread_id}/runs?{query}").json
    assert found == [{"run_id": run["run_id"], "status": "pending"}]


def test_a_bad_list_query_is_refused(api: Api, thread_id: str) -> None:
    path = f"/threads/{thread_id}/runs"
    assert api.get(f"{path}?limit=abc").status_code == 400
    assert api.get(f"{path}?offset=abc").status_code == 400
    assert api.get(f"{path}?limit=0").status_code == 422
    assert api.get(f"{path}?offset=-1").status_code == 422
    response = api.get(f"{path}?select=x")
    assert response.status_code == 422
    assert response.json["detail"].startswith("Invalid select columns: ['x']. Expected: {")


def test_a_run_is_found_on_its_own_thread_only(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    other = api.post("/threads").json["thread_id"]
    for method, path in (("GET", ""), ("GET", "/join"), ("GET", "/stream")):
        response = api.call(method, f"/threads/{other}/runs/{run['run_id']}{path}")
        assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


CALLS = [("GET", ""), ("GET", "/join"), ("GET", "/stream"), ("DELETE", ""), ("POST", "/cancel")]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_bad_run_id_is_422(api: Api, thread_id: str, method: str, path: str) -> None:
    response = api.call(method, f"/threads/{thread_id}/runs/nope{path}")
    assert (response.status_code, response.json) == (422, {"detail": "Invalid run ID: must be a UUID"})
    response = api.call(method, f"/threads/nope/runs/{MISSING}{path}")
    assert (response.status_code, response.json) == (422, {"detail": "Invalid thread ID: must be a UUID"})


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_strangers_run_looks_like_a_missing_one(
    api: Api, neighbour: Api, thread_id: str, method: str, path: str
) -> None:
    run = start(api, thread_id)
    theirs = neighbour.call(method, f"/threads/{thread_id}/runs/{run['run_id']}{path}")
    unknown = neighbour.call(method, f"/threads/{thread_id}/runs/{MISSING}{path}")
    assert (theirs.status_code, theirs.data) == (unknown.status_code, unknown.data)
    assert theirs.status_code == 404
    for end in ("join", "stream"):
        assert neighbour.get(f"/runs/{run['run_id']}/{end}").status_code == 404
    assert status_of(api, run) == "pending"


def test_a_deployments_bound_of_pending_runs_holds(
    api: Api, app: Flask, notifications: Notifications
) -> None:
    app.config["SETTINGS"] = replace(app.config["SETTINGS"], max_pending_per_deployment=2)
    for _ in range(2):
        assert api.post("/runs", {"assistant_id": "agent"}).status_code == 200
    creation._counted.clear()  # the next count is due

    refused = api.post("/runs", {"assistant_id": "agent"})

    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "5"
    assert "2 pending runs" in refused.json["detail"]
