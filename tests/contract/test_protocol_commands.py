"""Commands of protocol v2: their effects on a thread, their answers, and their error codes."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from redis.exceptions import ConnectionError
from sqlalchemy import Connection, text

from shared.errors import OutcomeUnknown
from shared.eventlog.events import PAGE
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.protocol import resume
from shared.runs import creation
from tests.contract.conftest import Api, Notifications
from tests.support.acting import act
from tests.support.protocol import Host, command, replay, started
from web.deployment_api.protocols import v2_commands

RUN = 1 << 26
CHECKPOINT = "1f0c1b9e-0000-6000-8000-000000000000"


def run(run_id: str) -> Any:
    """Return a run's row."""
    with connection() as conn:
        found = conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id}).mappings().one()
    return dict(found)


def newest(api: Api, thread_id: str) -> Any:
    return run(api.get(f"/threads/{thread_id}/runs").json[0]["run_id"])


def start(api: Api, thread_id: str, **params: Any) -> Any:
    """Start a run by a command. Returns its row."""
    return run(started(api, thread_id, **params)["result"]["run_id"])


def asking(api: Api, thread_id: str, **questions: Any) -> None:
    """Let a run of the thread end with these interrupts open."""
    Host(started(api, thread_id)["result"]["run_id"]).ask(**(questions or {"q": "?"}))


def refused(answer: Any, code: str, said: str = "") -> None:
    assert (answer["type"], answer["id"], answer["error"]) == ("error", 7, code), answer
    assert set(answer) == {"type", "id", "error", "message"}
    assert said in answer["message"]


# run.start


def test_a_start_makes_a_run_that_all_kinds_of_readers_can_follow(
    api: Api, thread_id: str, notifications: Notifications
) -> None:
    answer = command(
        api,
        thread_id,
        "run.start",
        id=0,
        assistant_id="agent",
        input={"a": 1},
        config={"configurable": {"b": 2}, "tags": ["t"]},
        metadata={"c": 3},
        langsmith_tracer={"project": "p"},
        unknown=1,
    )
    made = newest(api, thread_id)
    assert answer == {
        "type": "success",
        "id": 0,
        "result": {"run_id": str(made["run_id"])},
        "meta": {"applied_through_seq": RUN},
    }
    assert made["input"] == {"a": 1}
    assert made["metadata"]["c"] == 3
    kwargs = made["kwargs"]
    assert kwargs["stream_mode"] == ["values", "updates", "messages-tuple", "custom", "protocol"]
    assert (kwargs["subgraphs"], kwargs["resumable"], kwargs["durability"]) == (True, True, "async")
    assert (kwargs["config"]["configurable"]["b"], kwargs["config"]["tags"]) == (2, ["t"])
    assert (kwargs["command"], made["multitask_strategy"]) == (None, "enqueue")
    assert notifications.heard == [("runs.default", str(made["run_id"]))]


def test_input_for_a_thread_that_asks_is_its_answer(
    api: Api, thread_id: str, subtests: pytest.Subtests
) -> None:
    for input in ({"a": 1}, "yes", 0, False, [], "", None):
        with subtests.test(input=input):
            asking(api, thread_id)
            made = start(api, thread_id, input=input)
            answer = None if input is None else {"resume": input}  # without input, the node runs again
            assert (made["input"], made["kwargs"]["command"]) == (None, answer)
            Host(str(made["run_id"])).finish({})
    Host(api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"]).ask(q="?")
    assert start(api, thread_id, input="yes")["kwargs"]["command"] == {"resume": "yes"}


def test_a_run_from_a_checkpoint_and_one_on_a_cancelled_thread_answer_nothing(
    api: Api, thread_id: str
) -> None:
    asking(api, thread_id)
    made = start(api, thread_id, config={"configurable": {"checkpoint_id": CHECKPOINT}})
    assert (made["input"], made["kwargs"]["command"]) == ({"a": 1}, None)
    assert made["kwargs"]["config"]["configurable"]["checkpoint_id"] == CHECKPOINT
    Host(str(made["run_id"])).finish({})

    host = Host(started(api, thread_id)["result"]["run_id"])
    host.finish({}, status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED)
    made = start(api, thread_id)
    assert (made["input"], made["kwargs"]["command"]) == ({"a": 1}, None)


def test_a_busy_thread_does_as_the_strategy_says(api: Api) -> None:
    for name in ("multitask_strategy", "multitaskStrategy"):
        thread_id = api.post("/threads").json["thread_id"]
        first = start(api, thread_id)
        assert start(api, thread_id)["status"] == "pending"
        answer = command(api, thread_id, "run.start", assistant_id="agent", **{name: "reject"})
        refused(answer, "unknown_error", "409: Thread is already running a task")
        assert start(api, thread_id, **{name: "interrupt"})["multitask_strategy"] == "interrupt"
        assert (name, run(str(first["run_id"]))["status"]) == (name, "interrupted")


def test_a_run_whose_creation_got_no_answer_is_found(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = creation.connection

    class Lost:
        def __enter__(self) -> Any:
            self._inner = real()
            return self._inner.__enter__()

        def __exit__(self, *error: Any) -> None:
            self._inner.__exit__(*error)
            raise OutcomeUnknown("lost")

    monkeypatch.setattr(creation, "connection", Lost)
    assert started(api, thread_id)["meta"] == {"applied_through_seq": RUN}


def test_a_bad_start_is_refused(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({}, "invalid_argument", "assistant_id: this field is required"),
        ({"assistant_id": ""}, "invalid_argument", "assistant_id"),
        ({"assistant_id": 7}, "invalid_argument", "assistant_id: must be a string"),
        ({"assistant_id": "nope"}, "unknown_error", "422: Invalid assistant: 'nope'"),
        ({"assistant_id": CHECKPOINT}, "unknown_error", "422: "),
        ({"config": 1}, "invalid_argument", "config: must be an object"),
        ({"config": {"recursion_limit": 0}}, "invalid_argument", "config.recursion_limit"),
        ({"config": {"configurable": {"checkpoint_id": "x"}}}, "invalid_argument", "Invalid checkpoint ID"),
        ({"metadata": []}, "invalid_argument", "metadata: must be an object"),
        ({"multitask_strategy": "nope"}, "invalid_argument", "multitask_strategy: must be one of"),
        ({"multitaskStrategy": 1}, "invalid_argument", "multitaskStrategy: must be one of"),
    ]  # fmt: skip
    for params, code, said in rows:
        with subtests.test(params=params, code=code, said=said):
            known = {} if "assistant_id" in params or not params else {"assistant_id": "agent"}
            refused(command(api, thread_id, "run.start", **known, **params), code, said)
            assert api.get(f"/threads/{thread_id}/runs").json == []


def test_a_full_thread_and_a_full_deployment_refuse(app: Flask, api: Api, thread_id: str) -> None:
    api.set(max_pending_per_thread=1)
    started(api, thread_id)
    refused(
        command(api, thread_id, "run.start", assistant_id="agent"), "unknown_error", "429: This thread has"
    )
    api.set(max_pending_per_deployment=0)
    answer = command(api, str(uuid4()), "run.start", assistant_id="agent")
    refused(answer, "unknown_error", "429: This deployment has")


# input.respond


def test_an_answer_makes_a_run_that_resumes(api: Api, thread_id: str) -> None:
    asking(api, thread_id)
    answer = command(
        api,
        thread_id,
        "input.respond",
        namespace=["anything"],
        interrupt_id="q",
        response={"x": 1},
        update={"b": 2},
        goto="node",
        config={"configurable": {"c": 3}},
        metadata={"d": 4},
        strict_resume=True,
    )
    assert answer == {"type": "success", "id": 7, "result": {}, "meta": {"applied_through_seq": 2 * RUN}}
    made = newest(api, thread_id)
    kwargs = made["kwargs"]
    assert kwargs["command"] == {"resume": {"q": {"x": 1}}, "update": {"b": 2}, "goto": "node"}
    assert kwargs["config"]["configurable"]["c"] == 3
    assert (made["input"], made["metadata"]["d"], kwargs["strict_resume"]) == (None, 4, True)
    assert (kwargs["resumable"], "protocol" in kwargs["stream_mode"]) == (True, True)


def test_the_assistant_that_asked_gets_the_answer(api: Api, thread_id: str) -> None:
    made = api.post("/assistants", {"graph_id": "other"}).json
    Host(started(api, thread_id, assistant_id=made["assistant_id"])["result"]["run_id"]).ask(q="?")
    cancelled = start(api, thread_id, input=None)
    api.post(f"/threads/{thread_id}/runs/{cancelled['run_id']}/cancel")
    command(api, thread_id, "input.respond", interrupt_id="q", response=1)
    assert str(newest(api, thread_id)["assistant_id"]) == made["assistant_id"]


def test_several_answers_make_one_run(api: Api, thread_id: str) -> None:
    asking(api, thread_id, q=1, r=2, s=3)
    responses = [
        {"interrupt_id": "q", "response": None, "namespace": []},
        {"interrupt_id": "r", "response": 2},
    ]
    command(api, thread_id, "input.respond", responses=responses)
    assert newest(api, thread_id)["kwargs"]["command"] == {"resume": {"q": None, "r": 2}}


def test_each_interrupt_is_answered_once_also_one_after_the_other(api: Api, thread_id: str) -> None:
    asking(api, thread_id, q=1, r=2)
    for id in ("q", "r"):
        assert command(api, thread_id, "input.respond", interrupt_id=id, response=1)["type"] == "success"

    def are_refused() -> None:
        for id in ("q", "r"):
            answer = command(api, thread_id, "input.respond", interrupt_id=id, response=1)
            refused(answer, "no_such_interrupt", f"Unknown or already answered interrupt: {id}")

    are_refused()
    for run in reversed(api.get(f"/threads/{thread_id}/runs").json[:2]):
        Host(run["run_id"]).finish({})
    are_refused()


def test_a_run_that_goes_on_without_naming_an_interrupt_leaves_none(api: Api, thread_id: str) -> None:
    for input in ({"a": 1}, None):
        asking(api, thread_id, q=1, r=2)
        run_id = started(api, thread_id, input=input)["result"]["run_id"]
        refused(command(api, thread_id, "input.respond", interrupt_id="r", response=1), "no_such_interrupt")
        Host(run_id).finish({})


def test_a_bad_answer_is_refused(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    asking(api, thread_id)
    rows: list[Any] = [
        ({}, "invalid_argument", "interrupt_id: this field is required"),
        ({"response": 1}, "invalid_argument", "interrupt_id: this field is required"),
        ({"interrupt_id": ""}, "invalid_argument", "interrupt_id"),
        ({"interrupt_id": 7}, "invalid_argument", "interrupt_id: must be a string"),
        ({"responses": []}, "invalid_argument", "responses: must have at least 1 item"),
        ({"responses": {}}, "invalid_argument", "responses: must be an array"),
        ({"responses": [7]}, "invalid_argument", "responses.0"),
        ({"responses": [{"response": 1}]}, "invalid_argument", "responses.0.interrupt_id"),
        ({"responses": [{"interrupt_id": "q"}, {"interrupt_id": "q"}]}, "invalid_argument", "only once"),
        ({"interrupt_id": "q", "goto": 7}, "invalid_argument", "goto: must be"),
        ({"interrupt_id": "q", "update": 7}, "invalid_argument", "update: must be"),
        ({"interrupt_id": "q", "strict_resume": 1}, "invalid_argument", "strict_resume: must be true or false"),
        ({"interrupt_id": "q", "config": 7}, "invalid_argument", "config: must be an object"),
        ({"interrupt_id": "x"}, "no_such_interrupt", "x"),
        ({"responses": [{"interrupt_id": "q"}, {"interrupt_id": "x"}]}, "no_such_interrupt", ": x"),
    ]  # fmt: skip
    for params, code, said in rows:
        with subtests.test(params=params, code=code, said=said):
            refused(command(api, thread_id, "input.respond", **params), code, said)
            assert len(api.get(f"/threads/{thread_id}/runs").json) == 1


def test_an_answer_waits_until_the_end_of_the_run_that_asked_is_stored(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking(api, thread_id)
    command(api, thread_id, "input.respond", interrupt_id="q", response=1)
    host = Host(newest(api, thread_id)["run_id"])
    host.publish(q="and again?", r="?")
    looks: list[bool] = []
    is_running = resume.is_running

    def look(conn: Connection, run_id: UUID) -> bool:
        if len(looks) == 2:
            host.rest(q="and again?", r="?")
        looks.append(is_running(conn, run_id))
        return looks[-1]

    monkeypatch.setattr(resume, "is_running", look)
    responses = [{"interrupt_id": "q", "response": 2}, {"interrupt_id": "r", "response": 3}]
    assert command(api, thread_id, "input.respond", responses=responses)["type"] == "success"
    assert newest(api, thread_id)["kwargs"]["command"] == {"resume": {"q": 2, "r": 3}}
    assert looks == [True, True, False]


def test_an_answer_does_not_wait_for_ever(api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2_commands, "STORED_SECONDS", 0.05)
    Host(started(api, thread_id)["result"]["run_id"]).publish(q="?")
    refused(command(api, thread_id, "input.respond", interrupt_id="q", response=1), "no_such_interrupt", "q")


def test_an_answer_to_what_was_not_asked_is_refused_at_once(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(*_: Any) -> Any:
        raise ConnectionError

    monkeypatch.setattr(v2_commands, "_wait_for_end", lambda _: pytest.fail("it waits"))
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.publish(r=1)
    refused(command(api, thread_id, "input.respond", interrupt_id="q", response=1), "no_such_interrupt", "q")
    host.publish(q=1)
    monkeypatch.setattr(resume.logs, "names", names)  # Redis does not answer
    refused(command(api, thread_id, "input.respond", interrupt_id="q", response=1), "no_such_interrupt", "q")


# agent.getTree


def test_the_tree_says_which_graphs_have_begun_and_ended(api: Api, thread_id: str) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    for namespace, event in (
        (["child:1"], "started"),
        (["child:1", "inner:2"], "started"),
        (["child:1", "inner:2"], "failed"),
        (["tools:3"], "started"),
    ):
        data = {"event": event, "namespace": namespace}
        host.show("lifecycle", data, namespace=namespace, tail=f"lc|{'|'.join(namespace)}|{event}")
    inner = {"namespace": ["child:1", "inner:2"], "status": "failed", "graph_name": "inner"}
    assert command(api, thread_id, "agent.getTree")["result"] == {
        "tree": {
            "namespace": [],
            "status": "running",
            "graph_name": "agent",
            "children": [
                {"namespace": ["child:1"], "status": "started", "graph_name": "child", "children": [inner]},
                {"namespace": ["tools:3"], "status": "started", "graph_name": "tools"},
            ],
        }
    }


def test_the_tree_of_a_long_run_costs_none_of_its_data(api: Api, thread_id: str) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    for n in range(2 * PAGE):
        host.show("values", {"text": "x" * 1_000})
        if n % PAGE == 0:
            data = {"event": "started", "namespace": [f"child:{n}"]}
            host.show("lifecycle", data, namespace=[f"child:{n}"], tail=f"lc|child:{n}|started")

    def sent() -> int:
        return redis.client().info("stats")["total_net_output_bytes"]  # type: ignore[index,return-value]

    before = sent()
    tree = command(api, thread_id, "agent.getTree")["result"]["tree"]
    assert [child["namespace"] for child in tree["children"]] == [["child:0"], [f"child:{PAGE}"]]
    assert sent() - before < PAGE * 1_000


def test_the_tree_of_a_run_is_asked_by_its_id(api: Api, thread_id: str) -> None:
    first = started(api, thread_id)["result"]["run_id"]
    act(first, {})
    started(api, thread_id)

    def status(**params: Any) -> str:
        return command(api, thread_id, "agent.getTree", **params)["result"]["tree"]["status"]

    assert (status(), status(run_id=first)) == ("started", "completed")
    refused(command(api, thread_id, "agent.getTree", run_id=str(uuid4())), "no_such_run")
    refused(command(api, thread_id, "agent.getTree", run_id="nope"), "invalid_argument", "run_id")


def test_a_command_that_makes_nothing_names_the_newest_event(api: Api, thread_id: str) -> None:
    new = str(uuid4())
    for id in (thread_id, new):
        refused(command(api, id, "input.respond", interrupt_id="q"), "no_such_run")
    for method in ("run.start", "input.respond", "agent.getTree"):
        refused(command(api, "nonsense", method), "unknown_error", "422: Invalid thread ID")
    assert started(api, new, id=-5)["id"] == -5
    assert api.get(f"/threads/{new}").json["status"] == "busy", "it is made with the caller's id"
    without_params = {"id": 7, "method": "agent.getTree"}
    refused(api.post(f"/threads/{thread_id}/commands", without_params).json, "no_such_run")
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.show("values", {})

    def through() -> int:
        return command(api, thread_id, "agent.getTree")["meta"]["applied_through_seq"]

    assert through() == replay(api, thread_id, since=0)[-1]["seq"] == RUN + 2
    host.finish({})
    assert through() == replay(api, thread_id, since=0)[-1]["seq"] == 2 * RUN - 1


# Unknown methods and invalid commands


def test_a_method_that_is_not_served_is_refused(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("subscription.subscribe", "not_supported"),
        ("subscription.unsubscribe", "not_supported"),
        ("subscription.reconnect", "not_supported"),
        ("state.get", "not_supported"),
        ("state.listCheckpoints", "not_supported"),
        ("state.fork", "not_supported"),
        ("input.inject", "not_supported"),
        ("run.stop", "unknown_command"),
        ("", "unknown_command"),
        ("é", "unknown_command"),
    ]  # fmt: skip
    for method, code in rows:
        with subtests.test(method=method, code=code):
            refused(command(api, thread_id, method), code)


def test_what_is_no_command_is_a_400_with_its_id(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({}, None), ([], None), (7, None), ("text", None), (None, None),
        ({"id": "x", "method": "run.start"}, "x"),
        ({"id": None, "method": "run.start"}, None),
        ({"id": True, "method": "run.start"}, True),
        ({"id": 1.5, "method": "run.start"}, 1.5),
        ({"id": {"a": 1}, "method": "run.start"}, {"a": 1}),
        ({"method": "run.start"}, None),
        ({"id": 7}, 7),
        ({"id": 7, "method": None}, 7),
        ({"id": 7, "method": 7}, 7),
        ({"id": 7, "method": "run.start", "params": 7}, 7),
        ({"id": 7, "method": "run.start", "params": None}, 7),
        ({"id": 7, "method": "run.start", "params": []}, 7),
    ]  # fmt: skip
    for sent, id in rows:
        with subtests.test(sent=sent, id=id):
            response = (
                api.call("POST", f"/threads/{thread_id}/commands", sent)
                if sent is not None
                else api.client.post(f"/d/chat/threads/{thread_id}/commands", data=b"null")
            )
            answer: Any = response.json
            assert response.status_code == 400, response.text
            assert (answer["type"], answer["id"], answer["error"]) == ("error", id, "invalid_argument")
            assert set(answer) == {"type", "id", "error", "message"}
    for raw in (b"", b"  \n", b"{", b'{"id": NaN}', b'{"a": "\xff"}'):
        with subtests.test(raw=raw):
            response = api.client.post(f"/d/chat/threads/{thread_id}/commands", data=raw)
            assert (response.status_code, response.json) == (400, {"detail": "Invalid JSON in request body"})


def test_commands_reach_no_thread_of_others(api: Api, neighbour: Api) -> None:
    thread_id = neighbour.post("/threads").json["thread_id"]
    asking(neighbour, thread_id)
    refused(command(api, thread_id, "agent.getTree"), "no_such_run")
    refused(command(api, thread_id, "input.respond", interrupt_id="q"), "no_such_run")
    run_id = started(api, thread_id)["result"]["run_id"]
    assert [run["run_id"] for run in api.get(f"/threads/{thread_id}/runs").json] == [run_id]
    assert neighbour.get(f"/threads/{thread_id}").json["status"] == "interrupted"
