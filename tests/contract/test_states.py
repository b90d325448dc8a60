"""A thread's state over HTTP: from its row, and by calls to a graph host, which the tests play."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest

import tests.support.factories as make
from shared.errors import (
    Conflict,
    HostDied,
    HostError,
    HostUnusable,
    Invalid,
    RunyardError,
    TooLarge,
    Unanswered,
    Unavailable,
)
from shared.hosts import calls, pending_calls
from shared.hosts.pending_calls import HostCall
from shared.infra import redis
from shared.infra.postgres import connection, dumps, loads
from shared.models import ThreadStatus
from shared.threads.state import StaleUpdate, store_update
from tests.contract.conftest import Api, Notifications
from tests.contract.statements import execute
from tests.support.acting import Actor

MISSING = "00000000-0000-0000-0000-00000000dead"
CHECKPOINT = "1f0c1b9e-0000-6000-8000-000000000000"
NO_STATE = {
    "values": {}, "next": [], "tasks": [], "metadata": None, "created_at": None, "checkpoint": None,
    "parent_checkpoint": None, "interrupts": [], "checkpoint_id": None, "parent_checkpoint_id": None,
}  # fmt: skip


class Runner:
    """Answers every call to a graph host with the same document or refusal, and records the calls."""

    def __init__(self) -> None:
        self.answer: bytes = b"{}"
        self.refusal: RunyardError | None = None
        self.asked: list[HostCall] = []

    def call(self, request: HostCall) -> bytes:
        self.asked.append(replace(request, document=loads(dumps(request.document))))
        if self.refusal is not None:
            raise self.refusal
        return self.answer


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    runner = Runner()
    monkeypatch.setattr(calls, "call", runner.call)
    return runner


def new(api: Api, **body: Any) -> str:
    response = api.post("/threads", body)
    assert response.status_code == 200, response.text
    return response.json["thread_id"]


@pytest.fixture
def stored(api: Api) -> str:
    """Id of a thread whose newest state waits in a subgraph."""
    thread_id = new(api)
    task = {
        "id": "t", "name": "child", "interrupts": [],
        "checkpoint": {"thread_id": thread_id, "checkpoint_ns": "child:1"}, "state": None,
    }  # fmt: skip
    run = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    state = make.state(thread_id, "c", next=["child"], tasks=[task], metadata={"step": 1})
    actor = Actor(run["run_id"])
    for checkpoint_id in (CHECKPOINT, "c"):
        make.stored(actor.run, checkpoint_id)
    actor.finish({"a": 1, "b": 2}, thread_status=ThreadStatus.INTERRUPTED, state=state)
    return thread_id


def test_the_state_and_history_of_a_thread_without_checkpoints_are_empty(api: Api) -> None:
    path = f"/threads/{new(api)}"
    response = api.get(f"{path}/state")
    assert (response.status_code, response.json) == (200, NO_STATE)
    assert list(response.json) == list(NO_STATE)
    state = api.get(f"{path}/state/{CHECKPOINT}").json
    assert (state["values"], state["checkpoint"]["checkpoint_id"]) == ({}, CHECKPOINT)
    assert api.get(f"{path}/history").json == []


def test_the_newest_state_needs_no_host(api: Api, runner: Runner, stored: str) -> None:
    state = api.get(f"/threads/{stored}/state").json

    assert (state["values"], state["next"], state["checkpoint_id"]) == ({"a": 1, "b": 2}, ["child"], "c")
    assert state["tasks"][0]["state"] is None
    assert not runner.asked


def test_the_states_of_waiting_subgraphs_do(api: Api, runner: Runner, stored: str) -> None:
    runner.answer = b'{"values":{"deep":true}}'

    assert api.get(f"/threads/{stored}/state?subgraphs=true").json == {"values": {"deep": True}}

    [question] = runner.asked
    assert question.revision_id == api.deployment.active_revision_id
    assert question.document["op"] == "state"
    assert question.document["graph_id"] == "agent"
    assert question.document["subgraphs"] is True


def test_while_a_run_works_a_host_is_asked_as_soon_as_it_has_a_checkpoint(api: Api, runner: Runner) -> None:
    thread_id = new(api)
    run = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    actor = Actor(run["run_id"])
    assert api.get(f"/threads/{thread_id}/state").json == NO_STATE

    make.stored(actor.run, "c1")
    runner.answer = b'{"values":{"so":"far"}}'

    assert api.get(f"/threads/{thread_id}/state").json == {"values": {"so": "far"}}


def test_the_state_goes_with_the_only_run_that_made_one(api: Api, stored: str) -> None:
    [run] = api.get(f"/threads/{stored}/runs").json

    assert api.delete(f"/threads/{stored}/runs/{run['run_id']}").status_code == 204

    assert api.get(f"/threads/{stored}/state").json == NO_STATE
    assert api.get(f"/threads/{stored}").json["values"] == {"a": 1, "b": 2}


def test_select_leaves_the_rest_out(api: Api, stored: str) -> None:
    for query, shown in (
        ("select=next&select=metadata", {"next": ["child"], "metadata": {"step": 1}}),
        ("select=next,metadata", {"next": ["child"], "metadata": {"step": 1}}),
        ('select=["next"]', {"next": ["child"]}),
        ("select=values.b&select=values.nope", {"values": {"b": 2}}),
    ):
        assert (query, api.get(f"/threads/{stored}/state?{query}").json) == (query, shown)


def test_a_state_at_a_checkpoint_is_a_host_s_answer(api: Api, runner: Runner, stored: str) -> None:
    runner.answer = orjson.dumps({**NO_STATE, "values": {"x": 1}})
    place = {"checkpoint_id": CHECKPOINT, "checkpoint_ns": "child:1", "thread_id": stored}

    by_id = api.get(f"/threads/{stored}/state/{CHECKPOINT}").json
    by_place = api.post(f"/threads/{stored}/state/checkpoint", {"checkpoint": place, "select": ["values"]})

    assert by_id["values"] == {"x": 1}
    assert by_place.json == {"values": {"x": 1}}
    assert [question.document["checkpoint"] for question in runner.asked] == [
        {"checkpoint_id": CHECKPOINT},
        {"checkpoint_id": CHECKPOINT, "checkpoint_ns": "child:1"},
    ]


def test_history_takes_every_spelling_of_before(api: Api, runner: Runner, stored: str) -> None:
    runner.answer = orjson.dumps([{**NO_STATE, "next": ["a"]}, NO_STATE])
    body = {
        "limit": 5,
        "metadata": {"step": 1},
        "checkpoint": {"checkpoint_ns": "child:1"},
        "select": ["next"],
    }
    spellings: list[Any] = [
        CHECKPOINT,
        CHECKPOINT.upper(),
        {"checkpoint_id": CHECKPOINT},
        {"configurable": {"checkpoint_id": CHECKPOINT}},
    ]
    for before in spellings:
        answer = api.post(f"/threads/{stored}/history", {**body, "before": before})
        assert (before, answer.json) == (before, [{"next": ["a"]}, {"next": []}])
        asked = runner.asked[-1].document
        found = [asked[name] for name in ("op", "limit", "before", "filter", "checkpoint_ns")]
        assert (before, found) == (before, ["history", 5, CHECKPOINT, {"step": 1}, "child:1"])
    for unknown in ("0zz", "", {"checkpoint_id": "0zz"}):  # no checkpoint id, so no bound
        api.post(f"/threads/{stored}/history", {"before": unknown})
        assert (unknown, runner.asked[-1].document["before"]) == (unknown, None)


def test_a_history_is_bounded_by_its_query(api: Api, runner: Runner, stored: str) -> None:
    runner.answer = b"[]"
    for query, limit, before in (
        ("", 1, None),
        (f"?limit=7&before={CHECKPOINT}", 7, CHECKPOINT),
        (f"?before={CHECKPOINT.upper()}", 1, CHECKPOINT),
        ("?before=0zz", 1, None),
        ("?before=", 1, None),
    ):
        api.get(f"/threads/{stored}/history{query}")
        asked = runner.asked[-1].document
        assert (query, asked["limit"], asked["before"]) == (query, limit, before)
    api.post(f"/threads/{stored}/history")
    assert runner.asked[-1].document["limit"] == 1


def test_history_is_asked_for_values_only_where_they_are_shown(api: Api, runner: Runner, stored: str) -> None:
    runner.answer = b"[]"
    for select, values in ((["next", "metadata"], False), (["next", "values.text"], True), ([], True)):
        api.post(f"/threads/{stored}/history", {"select": select})
        assert (select, runner.asked[-1].document["values"]) == (select, values)


@pytest.fixture
def finished(api: Api) -> str:
    """Id of a thread whose newest run ended without next nodes."""
    thread_id = new(api)
    actor = Actor(api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"])
    make.stored(actor.run, "c", metadata={"longest": 1, "a": 2})
    state = make.state(thread_id, "c", metadata={"longest": 1, "a": 2})
    actor.finish({"b": 1, "a": [2.5]}, state=state)
    return thread_id


def test_the_newest_state_of_a_history_needs_no_host_when_it_is_the_last(
    api: Api, runner: Runner, finished: str
) -> None:
    state = api.get(f"/threads/{finished}/state").json
    for body in ({}, {"limit": 1, "before": "0zz", "metadata": {}, "checkpoint": {"checkpoint_ns": ""}}):
        answer = api.post(f"/threads/{finished}/history", body)
        assert answer.json == [state]
    assert answer.text.startswith(
        '[{"values":{"b":1,"a":[2.5]},"next":[],"tasks":[],"metadata":{"a":2,"longest":1}'
    )
    assert api.get(f"/threads/{finished}/history").text == answer.text
    selected = api.post(f"/threads/{finished}/history", {"select": ["values.b", "next"]})
    assert selected.json == [{"values": {"b": 1}, "next": []}]
    assert not runner.asked


def test_any_other_history_of_a_finished_thread_is_asked_of_a_host(
    api: Api, runner: Runner, finished: str
) -> None:
    runner.answer = b"[]"
    bodies: list[Any] = [
        {"limit": 2},
        {"before": CHECKPOINT},
        {"metadata": {"a": 3}},
        {"checkpoint": {"checkpoint_ns": "child:1"}},
    ]
    for asked, body in enumerate(bodies, 1):
        assert (body, api.post(f"/threads/{finished}/history", body).json) == (body, [])
        assert (body, len(runner.asked)) == (body, asked)


def test_a_history_of_a_thread_on_which_a_run_works_is_asked_of_a_host(
    api: Api, runner: Runner, finished: str
) -> None:
    runner.answer = b"[]"
    actor = Actor(api.post(f"/threads/{finished}/runs", {"assistant_id": "agent"}).json["run_id"])
    assert api.get(f"/threads/{finished}/history").json[0]["checkpoint_id"] == "c"

    make.stored(actor.run, "d", parent_checkpoint_id="c")

    assert api.get(f"/threads/{finished}/history").json == []


def test_an_update_answers_where_the_state_is_now(api: Api, runner: Runner, stored: str) -> None:
    place = {"thread_id": stored, "checkpoint_ns": "", "checkpoint_id": "c2"}
    runner.answer = orjson.dumps({"checkpoint": place})

    answer = api.post(
        f"/threads/{stored}/state", {"values": {"a": 2}, "as_node": "one", "checkpoint_id": CHECKPOINT}
    )

    assert answer.json == {"checkpoint": place, "configurable": place, "checkpoint_id": "c2"}
    asked = runner.asked[0].document
    assert asked["supersteps"] == [[{"values": {"a": 2}, "as_node": "one"}]]
    assert asked["checkpoint"] == {"checkpoint_id": CHECKPOINT}


def test_an_update_from_a_checkpoint_that_is_not_there_is_refused(
    api: Api, runner: Runner, stored: str
) -> None:
    refused = api.post(f"/threads/{stored}/state", {"values": {"a": 2}, "checkpoint_id": MISSING})

    assert (refused.status_code, refused.json) == (404, {"detail": f"Checkpoint {MISSING} not found"})
    assert not runner.asked


def test_what_a_host_refuses_has_its_status(
    api: Api, runner: Runner, stored: str, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        (Invalid("why", status=400), 400),
        (Conflict("why"), 409),
        (TooLarge("why"), 413),
        (HostError("why"), 424),
        (HostDied("why"), 424),
        (HostUnusable("why"), 424),
        (Unavailable("why"), 503),
        (Unanswered("why"), 504),
    ]
    for refusal, status in rows:
        with subtests.test(refusal=type(refusal).__name__, status=status):
            runner.refusal = refusal
            response = api.get(f"/threads/{stored}/history")
            assert (response.status_code, response.json) == (status, {"detail": "why"})


def test_a_question_nobody_answers_is_504_and_notified_of_again(
    api: Api, notifications: Notifications, stored: str, own_key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls, "NOTIFY_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(calls, "THREAD_SECONDS", 1)
    heard = len(notifications.heard)

    response = api.get(f"/threads/{stored}/history")

    assert (response.status_code, "no runner of the pool 'default'" in response.json["detail"]) == (504, True)
    again = notifications.heard[heard:]
    assert len(again) > 2
    assert len(set(again)) == 1
    assert not redis.client().llen(pending_calls.list_of(pending_calls.CALLS, UUID(again[0][1])))


def test_a_thread_whose_supersteps_fail_is_not_there(api: Api, runner: Runner) -> None:
    runner.refusal = HostError("no")
    supersteps = [{"updates": [{"values": {}, "as_node": "a"}]}]
    for metadata, status in (({"graph_id": "agent"}, 424), ({}, 400)):
        body = {"thread_id": MISSING, "metadata": metadata, "supersteps": supersteps}
        assert (metadata, api.post("/threads", body).status_code) == (metadata, status)
        assert (metadata, api.get(f"/threads/{MISSING}").status_code) == (metadata, 404)


def test_a_thread_is_built_from_supersteps_once_under_a_key(api: Api, runner: Runner, own_key: None) -> None:
    runner.answer = orjson.dumps({"checkpoint": {"checkpoint_id": "c"}})
    updates = [{"values": {"a": 1}, "as_node": "__start__"}, {"command": {"goto": "b"}, "as_node": "a"}]
    body = {"metadata": {"graph_id": "agent"}, "supersteps": [{"updates": updates}]}

    first, again = (api.post("/threads", body, headers={"Idempotency-Key": "k"}) for _ in range(2))

    assert (first.status_code, again.data) == (200, first.data)
    (asked,) = runner.asked
    assert asked.thread_id == UUID(first.json["thread_id"])
    assert asked.document["supersteps"] == [updates]


def test_patching_the_state_merges_the_threads_metadata(api: Api, stored: str) -> None:
    record = api.patch(f"/threads/{stored}/state", {"metadata": {"mark": 1}}).json
    assert record["metadata"]["mark"] == 1
    assert record["metadata"]["graph_id"] == "agent"


# Storage of updates by the runner


def answer_of(thread_id: str, checkpoint_id: str, parent: str | None, *, next: list[str]) -> dict[str, Any]:
    header = {
        "thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id,
        "parent_checkpoint_id": parent, "type": "msgpack", "blobs": {}, "new": [], "metadata": {},
    }  # fmt: skip
    return {
        "written": [[16, header, 1]],
        "state": make.state(thread_id, checkpoint_id, next=next),
        "interrupts": {},
    }


def test_an_update_is_stored_with_the_threads_state_unless_another_came_before(api: Api, stored: str) -> None:
    def update(answer: dict[str, Any], **more: Any) -> None:
        with connection() as conn:
            key = (api.deployment.id, UUID(stored), UUID(int=1))
            store_update(conn, *key, answer, b'{"a":5}', [b"x"], from_newest=True, **more)

    for id, parent, next, status in (("d", "c", [], "idle"), ("e", "d", ["two"], "interrupted")):
        update(answer_of(stored, id, parent, next=next))
        record = api.get(f"/threads/{stored}").json
        assert (record["values"], record["status"]) == ({"a": 5}, status)
        assert api.get(f"/threads/{stored}/state").json["checkpoint_id"] == id

    closed = str(make.question(api.deployment, UUID(stored), closed_at=datetime.now(UTC)))
    by = {"by": "ada", "key_id": "aaaa", "address": "192.0.2.7"}
    with pytest.raises(Conflict, match="not open any more"):
        update(answer_of(stored, "f", "e", next=[]), cancels={"question_id": closed, **by})
    with pytest.raises(StaleUpdate):
        update(answer_of(stored, "f", "b", next=[]))
    assert api.get(f"/threads/{stored}/state").json["checkpoint_id"] == "e"

    # the transaction that ends a question records who cancelled it
    open_question = str(make.question(api.deployment, UUID(stored)))
    update(answer_of(stored, "f", "e", next=[]), cancels={"question_id": open_question, **by})
    (entry,) = execute("SELECT * FROM audit_entry WHERE action = 'question.cancelled'")
    assert (entry.detail["question_id"], entry.actor["name"], entry.address) == (
        open_question,
        "ada",
        "192.0.2.7",
    )
