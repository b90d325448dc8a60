"""Runs over HTTP: create, read, strategies, errors."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

import tests.support.factories as make
from shared import assistants
from shared.infra import redis
from shared.infra.postgres import connection
from shared.runs import claims, creation
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import start, status_of, thread
from tests.support.acting import Actor, act

FIELDS = [
    "run_id", "thread_id", "assistant_id", "created_at", "updated_at", "status", "metadata", "kwargs",
    "multitask_strategy", "langsmith_session_name", "cancel_reason", "revision_id", "usage", "started_at", "ended_at", "attempts", "cost",
]  # fmt: skip
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


def test_kwargs_have_the_contracts_defaults_and_name_what_a_run_is_traced_to(
    api: Api, thread_id: str
) -> None:
    request_id = str(uuid4())
    body = {"assistant_id": "agent", "input": {"a": 1}}
    run = api.post(f"/threads/{thread_id}/runs", body, headers={"x-request-id": request_id}).json
    tracer = {"project_name": "evaluations", "example_id": "8b3f7a52-6a7e-4d8c-9a53-0f0f6a4f1c11"}
    traced = start(api, thread_id, langsmith_tracer=tracer)
    assert traced["kwargs"]["langsmith_tracer"] == tracer
    listed = api.get(f"/threads/{thread_id}/runs").json
    assert [row["langsmith_session_name"] for row in listed] == ["evaluations", None]
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


def test_a_runs_configuration_goes_over_the_assistants(api: Api, thread_id: str) -> None:
    config = {"tags": ["a"], "recursion_limit": 5, "configurable": {"word": "one", "deep": {"x": 1}}}
    made = api.post(
        "/assistants",
        {"graph_id": "agent", "config": config, "metadata": {"who": "assistant", "mcp": {"listed": False}}},
    )
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


def test_what_a_body_becomes(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
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
    ]  # fmt: skip
    for sent, name, stored in rows:
        with subtests.test(sent=sent, name=name, stored=stored):
            assert start(api, thread_id, **sent)["kwargs"][name] == stored


def test_a_thread_is_made_when_asked_for(api: Api) -> None:
    thread_id = str(uuid4())
    run = start(api, thread_id, if_not_exists="create", metadata={"a": 1})
    made = thread(api, thread_id)
    assert (made["status"], made["thread_id"]) == ("busy", run["thread_id"])
    assert made["metadata"] == {"a": 1, "graph_id": "agent", "assistant_id": AGENT}


def test_a_run_without_a_thread_has_one_of_its_own(api: Api) -> None:
    for on_completion, temporary in ((None, True), ("delete", True), ("keep", False)):
        response = api.post("/runs", {"assistant_id": "agent", "on_completion": on_completion})

        run = response.json
        assert response.headers["Content-Location"] == f"/runs/{run['run_id']}"
        assert (on_completion, run["kwargs"]["temporary"]) == (on_completion, temporary)
        assert thread(api, run["thread_id"])["status"] == "busy"
        act(run["run_id"], {"a": 1})
        left = api.get(f"/threads/{run['thread_id']}").status_code, status_of(api, run)
        assert (on_completion, left) == (on_completion, (404, None) if temporary else (200, "success"))


def test_a_deployment_that_serves_nothing_yet_is_409(api: Api) -> None:
    new = make.deployment("new", organization_id=api.deployment.organization_id, serving=False)
    assert Api(api.client, new).post("/runs", {"assistant_id": "agent"}).status_code == 409


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


def test_list_selects_in_every_spelling(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    for query in ("select=run_id&select=status", 'select=["run_id","status"]', "select=run_id,status"):
        found = api.get(f"/threads/{thread_id}/runs?{query}").json
        assert (query, found) == (query, [{"run_id": run["run_id"], "status": "pending"}])


def test_list_selects_every_field_of_the_record(api: Api, thread_id: str) -> None:
    shown = set(start(api, thread_id)) | {"queue"}
    for name in shown:
        [run] = api.get(f"/threads/{thread_id}/runs?select={name}").json
        assert run.keys() == {name}

    refused = api.get(f"/threads/{thread_id}/runs?select=cost,unknown")
    assert refused.status_code == 422
    assert "['unknown']" in refused.json["detail"]


def test_no_more_runs_wait_on_a_thread_or_in_a_deployment_than_allowed(api: Api, thread_id: str) -> None:
    api.set(max_pending_per_thread=2, max_pending_per_deployment=3)
    for _ in range(2):
        start(api, thread_id)
    of_thread = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"})
    assert of_thread.status_code == 429
    assert int(of_thread.headers["Retry-After"]) > 0

    assert api.post("/runs", {"assistant_id": "agent"}).status_code == 200
    creation.pending_runs.clear()  # expire the cached count
    of_deployment = api.post("/runs", {"assistant_id": "agent"})
    assert (of_deployment.status_code, of_deployment.headers["Retry-After"]) == (429, "5")
    assert "3 pending runs" in of_deployment.json["detail"]
