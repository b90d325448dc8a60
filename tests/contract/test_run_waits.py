"""Runs over HTTP: waits and joins, and clients that disconnect from them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RUN, RunStatus, ThreadStatus
from tests.contract.conftest import Api
from tests.contract.run_calls import start
from tests.support.acting import Actor, act

FAILURE = {"error": "ValueError", "message": "boom"}
INTERRUPT = {"id": "4a", "value": {"q": 1}}
ENDS: list[tuple[dict[str, Any], Any]] = [
    ({"values": {"a": 1}, "output": {"a": 1}}, {"a": 1}),
    ({"values": {"a": 1}}, {"a": 1}),
    ({"values": [1, 2]}, [1, 2]),
    ({"values": {}}, {}),
    ({}, {}),
    (
        {"values": {"a": 1}, "thread_status": ThreadStatus.INTERRUPTED, "interrupts": {"t": [INTERRUPT]}},
        {"a": 1, "__interrupt__": [{**INTERRUPT, "response_schema": None}]},
    ),
    (
        {"thread_status": ThreadStatus.INTERRUPTED, "interrupts": {"t": [INTERRUPT]}},
        {"__interrupt__": [{**INTERRUPT, "response_schema": None}]},
    ),
    ({"status": RunStatus.ERROR, "thread_status": ThreadStatus.ERROR, "error": FAILURE},
     {"__error__": FAILURE}),
    ({"status": RunStatus.TIMEOUT, "thread_status": ThreadStatus.ERROR, "error": FAILURE},
     {"__error__": FAILURE}),
    ({"values": {"a": 1}, "status": RunStatus.INTERRUPTED, "thread_status": ThreadStatus.INTERRUPTED,
      "error": {"error": "UserInterrupt", "message": "m"}}, {"a": 1}),
]  # fmt: skip


def test_a_wait_answers_how_the_run_ended_and_a_join_the_same_without_its_log(
    api: Api, subtests: pytest.Subtests
) -> None:
    for end, output in ENDS:
        with subtests.test(end=end):
            thread_id = api.post("/threads").json["thread_id"]
            waited = api.post(f"/threads/{thread_id}/runs/wait", {"assistant_id": "agent"})
            run_id = api.get(f"/threads/{thread_id}/runs").json[0]["run_id"]
            Actor(run_id).finish(**end)
            path = f"/threads/{thread_id}/runs/{run_id}"
            assert (waited.content_type, waited.json) == ("application/json", output)
            redis.client().flushall()
            joined = [api.get(address) for address in (f"{path}/join", f"/runs/{run_id}/join")]
            for response in (waited, *joined):
                assert (response.status_code, response.json) == (200, output)
                assert response.headers["Content-Location"] == path
                assert response.headers["Location"] == f"{path}/join"


def test_a_join_of_a_live_run_waits_for_its_output(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    actor = Actor(run["run_id"])
    response = api.get(f"/threads/{thread_id}/runs/{run['run_id']}/join")
    actor.finish({"a": 1}, output={"a": 1})
    assert response.json == {"a": 1}


def test_a_wait_without_a_thread_names_the_thread_it_made(api: Api) -> None:
    response = api.post("/runs/wait", {"assistant_id": "agent"})
    with connection() as conn:
        run = conn.execute(select(RUN.c.run_id, RUN.c.thread_id)).one()
    act(run.run_id, {"a": 1})
    path = f"/threads/{run.thread_id}/runs/{run.run_id}"
    assert response.headers["Content-Location"] == path
    assert response.headers["Location"] == f"{path}/join"
    assert response.json == {"a": 1}


def test_line_feeds_go_before_the_answer(api: Api, thread_id: str) -> None:
    response = api.post(f"/threads/{thread_id}/runs/wait", {"assistant_id": "agent"}, buffered=False)
    run_id = api.get(f"/threads/{thread_id}/runs").json[0]["run_id"]
    chunks = response.iter_encoded()

    waiting = [next(chunks) for _ in range(4)]
    act(run_id, {"a": 1})
    rest = b"".join(chunks)

    assert waiting == [b"", *[b"\n"] * 3], "the headers, then line feeds"
    assert rest.lstrip(b"\n") == b'{"a":1}'
    response.close()


LEAVES = [
    ("POST", "wait", "cancel", "interrupted"),
    ("POST", "wait", "continue", "pending"),
    ("POST", "stream", "cancel", "interrupted"),
    ("POST", "stream", "continue", "pending"),
    ("GET", "join", "1", "interrupted"),
    ("GET", "join", "true", "interrupted"),
    ("GET", "join", "0", "pending"),
    ("GET", "stream", "1", "interrupted"),
    ("GET", "stream", "0", "pending"),
]


def test_a_client_that_leaves_cancels_if_it_said_so(api: Api) -> None:
    for method, what, said, status in LEAVES:
        runs = f"/threads/{api.post('/threads').json['thread_id']}/runs"
        if method == "POST":
            body = {"assistant_id": "agent", "on_disconnect": said}
            response = api.post(f"{runs}/{what}", body, buffered=False)
        else:
            run: Any = api.post(runs, {"assistant_id": "agent"}).json
            path = f"{runs}/{run['run_id']}/{what}?cancel_on_disconnect={said}"
            response = api.get(path, buffered=False)
        response.close()
        (left,) = api.get(runs).json
        assert (method, what, said, left["status"]) == (method, what, said, status)
        if method == "POST" and said == "cancel":
            assert left["cancel_reason"] == "client disconnected from the run stream (on_disconnect=cancel)"
