"""Calls that read, follow and end runs each ask the authorization for their actions, and apply its filters."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

import tests.support.factories as make
from shared.models import RunStatus, ThreadStatus
from tests.contract.conftest import Api, Notifications
from tests.contract.statements import execute, scalar
from tests.contract.test_permitted_runs import RUN, assistant, created, runs, thread
from tests.support.acting import Actor
from tests.support.user_code import Context, PlayedAuth, owner_only, refuse

READ, SEARCH = ("threads", "read"), ("threads", "search")
UPDATE, DELETE = ("threads", "update"), ("threads", "delete")
READ_ASSISTANT, SEARCH_ASSISTANTS = ("assistants", "read"), ("assistants", "search")


@pytest.fixture
def key(ann: Api) -> str:
    """Id of a thread of ann's."""
    return thread(ann)


@pytest.fixture
def run(ann: Api, key: str) -> str:
    """Id of a pending run on the thread."""
    return str(make.run(ann.deployment, UUID(key), kwargs={"resumable": True, "config": {}}))


def rpc(api: Api, path: str, method: str, **params: Any) -> Any:
    headers = {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return api.post(path, body, headers=headers).json


def test_each_call_asks_its_pairs(ann: Api, played: PlayedAuth, key: str, run: str) -> None:
    calls: list[tuple[str, str, Any, list[tuple[str, str]]]] = [
        ("GET", f"/threads/{key}/runs", None, [READ, SEARCH]),
        ("GET", f"/threads/{key}/runs/{run}", None, [READ]),
        ("GET", f"/threads/{key}/runs/{run}/stream", None, [READ]),
        ("GET", f"/threads/{key}/runs/{run}/join", None, [READ]),
        ("GET", f"/threads/{key}/runs/{run}/join?cancel_on_disconnect=1", None, [READ, UPDATE]),
        ("GET", f"/runs/{run}/stream", None, [READ]),
        ("GET", f"/threads/{key}/stream", None, [READ]),
        ("POST", f"/threads/{key}/stream/events", {"channels": ["values"]}, [READ]),
        ("POST", f"/threads/{key}/commands", {"id": 1, "method": "agent.getTree"}, [READ]),
        ("GET", "/queue", None, [SEARCH]),
        ("POST", "/runs/search", {}, [SEARCH]),
        ("POST", "/webhooks/search", {}, [SEARCH]),
        ("POST", f"/threads/{key}/runs/{run}/cancel", {}, [UPDATE]),
        ("POST", "/runs/cancel", {"status": "all"}, [UPDATE]),
        ("DELETE", f"/threads/{key}/runs/{run}", None, [DELETE]),
    ]
    for method, path, body, pairs in calls:
        played.forget()
        ann.call(method, path, body).close()
        assert (path, played.pairs()) == (path, pairs)
        assert [call["op"] for call in played.calls].count("authorize") == 1, path


def test_the_handlers_learn_what_is_about_to_be_done(
    ann: Api, played: PlayedAuth, key: str, run: str
) -> None:
    ann.get(f"/threads/{key}/runs")
    assert played.value(*READ) == {"thread_id": UUID(key)}
    assert played.value(*SEARCH) == {"thread_id": UUID(key), "metadata": {}}
    ann.get(f"/runs/{run}/stream").close()
    assert played.value(*READ) == {"thread_id": UUID(key)}
    ann.post(f"/threads/{key}/runs/{run}/cancel?action=rollback")
    which = {"run_ids": [run], "status": None}
    assert played.value(*UPDATE) == {"thread_id": UUID(key), "action": "rollback", "metadata": which}
    ann.post("/runs/cancel", {"status": "pending"})
    which = {"run_ids": None, "status": "pending"}
    assert played.value(*UPDATE) == {"thread_id": None, "action": "interrupt", "metadata": which}
    ann.post("/runs/cancel", {"thread_id": key, "run_ids": [run]})
    assert played.value(*UPDATE)["thread_id"] == UUID(key)
    ann.delete(f"/threads/{key}/runs/{run}")
    assert played.value(*DELETE) == {"run_id": UUID(run), "thread_id": UUID(key)}


def test_cancelling_by_status_ends_ones_own_runs_alone(
    ann: Api, bob: Api, played: PlayedAuth, run: str
) -> None:
    played.on(owner_only)
    assert bob.post("/runs/cancel", {"status": "all"}).status_code == 404
    assert [row["status"] for row in runs()] == ["pending"]
    own = created(bob, "/runs", on_completion="keep")
    assert bob.post("/runs/cancel", {"status": "all"}).status_code == 204
    statuses = {str(row["run_id"]): row["status"] for row in runs()}
    assert (statuses[run], statuses[own["run_id"]]) == ("pending", "interrupted")


def test_the_queue_counts_ones_own_runs_alone(ann: Api, bob: Api, played: PlayedAuth, run: str) -> None:
    make.run(ann.deployment, UUID(thread(ann)), status=RunStatus.RUNNING)
    played.on(owner_only)
    own: Any = ann.get("/queue").json
    assert (own["pending"], own["running"]) == (1, 1)
    seen: Any = bob.get("/queue").json
    assert (seen["pending"], seen["running"], seen["waiting"]) == (0, 0, [])


def test_failed_runs_of_others_are_not_found(ann: Api, bob: Api, played: PlayedAuth, key: str) -> None:
    make.run(ann.deployment, UUID(key), status=RunStatus.ERROR)

    def stamps(ctx: Context, value: dict[str, Any]) -> None:
        value["metadata"]["owner"] = ctx.identity

    for handler in (lambda ctx, value: {"owner": ctx.identity}, stamps):
        played.on(handler, *SEARCH)
        for who, count in ((ann, 1), (bob, 0)):
            found: Any = who.post("/runs/search", {})
            assert (len(found.json), found.headers["X-Pagination-Total"]) == (count, str(count))
    assert len(ann.get(f"/threads/{key}/runs").json) == 1
    assert bob.get(f"/threads/{key}/runs").status_code == 404


def test_who_may_not_cancel_does_not_by_leaving(ann: Api, played: PlayedAuth, key: str, run: str) -> None:
    played.on(refuse, *UPDATE)
    assert ann.get(f"/threads/{key}/runs/{run}/join?cancel_on_disconnect=1").status_code == 403
    response = ann.get(f"/threads/{key}/runs/{run}/stream")
    assert response.status_code == 200
    response.close()


def test_the_end_of_a_temporary_run_is_its_users_alone(
    ann: Api, bob: Api, played: PlayedAuth, notifications: Notifications
) -> None:
    played.on(owner_only)
    run = created(ann, "/runs", stream_resumable=True)
    assert "thread_metadata" not in run["kwargs"]
    Actor(run["run_id"]).finish({"n": 1})
    assert runs() == []
    assert ann.get(f"/runs/{run['run_id']}/join").status_code == 200
    for path in (f"/runs/{run['run_id']}", f"/threads/{run['thread_id']}/runs/{run['run_id']}"):
        for what in ("join", "stream"):
            assert bob.get(f"{path}/{what}").status_code == 404


def test_the_request_that_makes_a_run_may_read_it(ann: Api, played: PlayedAuth) -> None:
    """Holds even if the handler stores no owner in the metadata."""
    played.on(lambda ctx, value: {"owner": ctx.identity})
    response: Any = ann.post("/runs/stream", RUN)
    assert response.status_code == 200
    assert next(response.response)
    response.close()


def test_a_command_is_refused_in_the_protocols_words(
    ann: Api, bob: Api, played: PlayedAuth, key: str, run: str
) -> None:
    played.on(owner_only)
    for method, params in (
        ("agent.getTree", {}),
        ("run.start", RUN),
        ("input.respond", {"interrupt_id": "i"}),
    ):
        answer: Any = bob.post(f"/threads/{key}/commands", {"id": 7, "method": method, "params": params}).json
        assert (method, answer["id"], answer["error"]) == (method, 7, "no_such_run")
    played.on(refuse)
    answer = ann.post(f"/threads/{key}/commands", {"id": 8, "method": "run.start", "params": RUN}).json
    assert (answer["error"], answer["message"]) == ("permission_denied", "Forbidden")
    assert len(runs()) == 1


def asking(ann: Api) -> str:
    """Create a thread that waits for the answer to an interrupt."""
    interrupts = {"task": [{"id": "i", "value": 1}]}
    key = make.thread(ann.deployment.id, status="interrupted", interrupts=interrupts)
    make.run(ann.deployment, key, status=RunStatus.SUCCESS, attempt=1)
    return str(key)


def test_an_answer_asks_with_what_it_will_be(ann: Api, played: PlayedAuth) -> None:
    key = asking(ann)
    params = {"interrupt_id": "i", "response": "yes"}
    body = {"id": 1, "method": "input.respond", "params": params}
    answer: Any = ann.post(f"/threads/{key}/commands", body).json
    assert answer["type"] == "success"
    asked = played.value("threads", "create_run")
    assert asked["kwargs"]["command"]["resume"] == {"i": "yes"}
    assert asked["thread_id"] == UUID(key)


def test_a_thread_that_moves_meanwhile_is_asked_about_again(ann: Api, played: PlayedAuth) -> None:
    key = asking(ann)

    def move(ctx: Context, value: dict[str, Any]) -> None:
        execute("UPDATE thread SET status = 'idle', interrupts = '{}'")

    played.on(move, "threads", "create_run")
    params = {**RUN, "input": "yes"}
    answer: Any = ann.post(
        f"/threads/{key}/commands", {"id": 1, "method": "run.start", "params": params}
    ).json
    assert answer["type"] == "success"
    said = [(ask.value["kwargs"]["input"], ask.value["kwargs"]["command"]) for ask in played.asked]
    assert said == [(None, {"resume": "yes"}), ("yes", None)]
    assert runs()[-1]["input"] == "yes"


def test_a_thread_that_is_waited_for_is_not_shown_to_strangers(
    ann: Api, bob: Api, played: PlayedAuth
) -> None:
    played.on(owner_only)
    key = str(uuid4())
    response: Any = bob.post(f"/threads/{key}/stream/events", {"channels": ["lifecycle"]})
    assert response.status_code == 200
    make.thread(ann.deployment.id, thread_id=UUID(key), metadata={"owner": "ann"})
    make.run(ann.deployment, UUID(key))
    watched = scalar("SELECT protocol_until FROM thread")
    assert watched is None
    heard = [next(response.response) for _ in range(3)]
    assert not [frame for frame in heard if b"event:" in frame]
    response.close()


TAKES = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_tools_are_those_of_ones_own_assistants(ann: Api, bob: Api, played: PlayedAuth) -> None:
    make.takes(ann.deployment, "agent", TAKES)
    own = assistant(ann, name="mine")
    assert {tool["name"] for tool in rpc(ann, "/mcp", "tools/list")["result"]["tools"]} == {"agent", "mine"}
    assert played.pairs() == [SEARCH_ASSISTANTS, READ_ASSISTANT, READ_ASSISTANT]
    played.on(owner_only)
    assert [tool["name"] for tool in rpc(ann, "/mcp", "tools/list")["result"]["tools"]] == ["mine"]
    assert rpc(bob, "/mcp", "tools/list")["result"]["tools"] == []
    played.on(lambda ctx, value: str(value["assistant_id"]) != own, *READ_ASSISTANT)
    del played.handlers["*", "*"]
    assert [tool["name"] for tool in rpc(ann, "/mcp", "tools/list")["result"]["tools"]] == ["agent"]


def test_a_strangers_tool_is_none(ann: Api, bob: Api, played: PlayedAuth) -> None:
    make.takes(ann.deployment, "agent", TAKES)
    assistant(ann, name="mine")
    played.on(owner_only)
    for name in ("mine", "nobodys"):
        for arguments in ({"n": 1}, {"n": "no number"}):
            answer = rpc(bob, "/mcp", "tools/call", name=name, arguments=arguments)
            assert answer["error"]["message"] == f"Unknown tool: {name}"
    refused = rpc(ann, "/mcp", "tools/call", name="mine", arguments={})["result"]
    assert refused["isError"]
    assert "do not match" in refused["content"][0]["text"]
    assert runs() == []


MESSAGE = {"messageId": "m", "role": "user", "parts": [{"data": {"n": 1}}]}


def test_tasks_are_ones_own(ann: Api, bob: Api, played: PlayedAuth) -> None:
    played.on(owner_only)
    later = {"returnImmediately": True}
    sent = rpc(ann, "/a2a/agent", "SendMessage", message=MESSAGE, configuration=later)["result"]["task"]
    assert rpc(ann, "/a2a/agent", "ListTasks")["result"]["totalSize"] == 1
    assert rpc(bob, "/a2a/agent", "ListTasks")["result"]["totalSize"] == 0
    assert rpc(ann, "/a2a/agent", "GetTask", id=sent["id"])["result"]["id"] == sent["id"]
    for method in ("GetTask", "CancelTask", "tasks/get", "tasks/cancel"):
        assert rpc(bob, "/a2a/agent", method, id=sent["id"])["error"]["code"] == -32001
    headers = {"Accept": "text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": sent["id"]}}

    def check_that_bob_does_not_reach_it() -> None:
        for names in ({"contextId": sent["contextId"]}, {"taskId": sent["id"]}):
            answer = rpc(bob, "/a2a/agent", "SendMessage", message={**MESSAGE, **names}, configuration=later)
            assert (answer["error"]["code"], answer["error"]["message"]) == (-32001, "Task not found")
        assert '"code":-32001' in bob.post("/a2a/agent", body, headers=headers).text

    check_that_bob_does_not_reach_it()
    interrupts = {"task": [{"id": "i1", "value": "which?"}]}
    Actor(sent["id"].partition(":")[2]).finish(
        {}, thread_status=ThreadStatus.INTERRUPTED, interrupts=interrupts
    )
    check_that_bob_does_not_reach_it()
    assert len(runs()) == 1
    answer = rpc(
        ann, "/a2a/agent", "SendMessage", message={**MESSAGE, "taskId": sent["id"]}, configuration=later
    )
    assert answer["result"]["task"]["id"] == sent["id"]
    rpc(ann, "/a2a/agent", "CancelTask", id=sent["id"])
    check_that_bob_does_not_reach_it()


def test_a_replaced_metadata_leaves_a_task_a_task(ann: Api, played: PlayedAuth) -> None:
    def replaced(ctx: Context, value: dict[str, Any]) -> None:
        value["metadata"] = {"owner": ctx.identity}

    played.on(replaced, "threads", "create_run")
    later = {"returnImmediately": True}
    sent = rpc(ann, "/a2a/agent", "SendMessage", message=MESSAGE, configuration=later)
    assert sent["result"]["task"]["id"]
