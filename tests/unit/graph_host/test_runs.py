"""Run options: starting checkpoints, commands in all forms, stream modes, and lifecycle events of subgraphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run


def at(place: dict[str, Any]) -> dict[str, Any]:
    return {"configurable": {**place}}


def ids(run: Run) -> list[str]:
    """Return the ids of the interrupts that a run left open."""
    return [item["id"] for item in run.outcome["state"]["interrupts"]]


# Config


@pytest.mark.parametrize(("config", "most"), [({"max_concurrency": 1}, 1), ({"max_concurrency": None}, 3)])
def test_so_many_nodes_run_at_once_as_the_config_says(
    thread: Checkpointed, config: dict[str, Any], most: int
) -> None:
    run = thread.run("meets", {"text": "a"}, config=config)
    assert run.values["log"] == [most] * 3


# Starting from a checkpoint


def places(thread: Checkpointed, graph_id: str, **asked: Any) -> list[dict[str, Any]]:
    """Return the states of the thread, newest first."""
    return thread.query("history", graph_id, limit=20, **asked)


def test_a_replay_goes_on_from_its_checkpoint(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "a"})
    old = next(state for state in places(thread, "steps") if state["next"] == ["two"])

    run = thread.run("steps", config=at({"checkpoint_id": old["checkpoint_id"]}), stream_mode=["updates"])

    assert run.events == [("updates", {"two": {"log": ["two"]}})]
    assert run.values == {"text": "a", "log": ["one", "two"]}
    (first, second, *_) = places(thread, "steps")
    assert first["checkpoint_id"] == run.outcome["state"]["checkpoint_id"]
    assert second["metadata"]["source"] == "fork"
    assert second["parent_checkpoint"]["checkpoint_id"] == old["checkpoint_id"]


def test_an_answered_interrupt_is_asked_again_in_a_replay(thread: Checkpointed) -> None:
    first = thread.run("asks", {"text": "a"})
    thread.run("asks", command={"resume": "yes"})
    config = at({"checkpoint_id": first.outcome["state"]["checkpoint_id"]})

    again = thread.run("asks", config=config)
    assert again.outcome["thread_status"] == "interrupted"
    assert thread.run("asks", command={"resume": "no"}).values["log"] == ["one", "no", "two"]


def test_a_replay_inside_a_subgraph_goes_on_from_there(thread: Checkpointed) -> None:
    thread.run("nested", {"text": "a"})
    (outer,) = thread.query("state", "nested", subgraphs=True)["tasks"]
    place = outer["state"]["checkpoint"]
    thread.run("nested", command={"resume": "first"})
    root = next(state for state in places(thread, "nested") if state["next"] == ["child"])
    chart = {"": root["checkpoint_id"], place["checkpoint_ns"]: place["checkpoint_id"]}

    asked = thread.run("nested", config=at({**place, "checkpoint_map": chart}), stream_mode=["updates"])

    assert asked.outcome["thread_status"] == "interrupted"
    assert thread.run("nested", command={"resume": "second"}).values["log"] == ["two", "two", "one", "second"]


def test_an_attempt_after_a_crash_does_not_start_at_the_checkpoint_again(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "a"})
    old = next(state for state in places(thread, "steps") if state["next"] == ["one"])
    thread.run("stops_before_two", config=at({"checkpoint_id": old["checkpoint_id"]}))

    run = thread.run(
        "stops_before_two",
        config=at({"checkpoint_id": old["checkpoint_id"]}),
        attempt=2,
        resume_from_checkpoint=True,
        stream_mode=["updates"],
    )

    assert run.events == [("updates", {"two": {"log": ["two"]}})]


# Commands


@pytest.mark.parametrize("value", [1, "text", False, {"a": [1]}, [], ""])
def test_one_interrupt_takes_any_value(thread: Checkpointed, value: Any) -> None:
    thread.run("asks", {"text": "a"})
    assert thread.run("asks", command={"resume": value}).values["log"] == ["one", value, "two"]


def test_no_input_asks_the_same_again_and_new_input_starts_over(thread: Checkpointed) -> None:
    first = thread.run("asks", {"text": "a"})
    again = thread.run("asks", None)
    assert ids(again) == ids(first)
    over = thread.run("asks", {"text": "b"})
    assert over.values == {"text": "b", "log": ["one", "one"]}
    assert over.outcome["thread_status"] == "interrupted"


def test_an_update_is_applied_with_the_resume(thread: Checkpointed) -> None:
    for update in ({"text": "new"}, [["text", "new"]]):
        thread.run("asks", {"text": "a"})
        run = thread.run("asks", command={"resume": 1, "update": update})
        assert run.values["text"] == "new"


@pytest.mark.parametrize(
    ("goto", "updates"),
    [
        ("two", {"two"}),
        (["two"], {"two"}),
        (["one", "two"], {"one", "two"}),
        ({"node": "two", "input": {"log": []}}, {"two"}),
        ([{"node": "two"}, "one"], {"one", "two"}),
    ],
)
def test_goto_names_nodes_in_every_form(thread: Checkpointed, goto: Any, updates: set[str]) -> None:
    thread.run("steps", {"text": "a"})
    run = thread.run("steps", command={"goto": goto}, stream_mode=["updates"])
    assert run.outcome["status"] == "success", run.outcome["error"]
    assert {name for data in run.named("updates") for name in data} == updates


def test_resuming_where_nothing_waits_changes_nothing(thread: Checkpointed) -> None:
    nothing = thread.run("steps", command={"resume": 1})
    assert nothing.outcome["error"]["error"] == "EmptyInputError"
    thread.run("steps", {"text": "a"})
    run = thread.run("steps", command={"resume": 1})
    assert (run.outcome["status"], run.answer["log"]) == ("success", ["one", "two"])

    thread.run("steps", {"text": "a"})
    config = at({"checkpoint_id": "1f1e0000-0000-6000-8000-000000000001"})

    empty = thread.run("steps", config=config)
    assert empty.outcome["error"]["error"] == "EmptyInputError"


STRANGE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("graph_id", "resume", "message"),
    [
        ("steps", "x", "Nothing waits"),
        ("steps", {STRANGE: 1}, STRANGE),
        ("asks", {STRANGE: 1}, STRANGE),
        ("asks", {}, "names no interrupt"),
        ("asks_twice", "x", "Several interrupts wait"),
    ],
)
def test_a_strict_resume_that_fits_nothing_leaves_the_thread_alone(
    thread: Checkpointed, graph_id: str, resume: Any, message: str
) -> None:
    first = thread.run(graph_id, {"text": "a"})
    stored = len(thread.stored)

    run = thread.run(graph_id, command={"resume": resume}, strict_resume=True)

    error = run.outcome["error"]
    assert error["error"] == "UnknownInterruptError"
    assert message in error["message"]
    assert run.events == [("error", error)]
    assert run.answer == {"__error__": error}
    assert (run.outcome["keeps_thread"], run.outcome["unchanged"]) == (True, True)
    assert len(thread.stored) == stored
    assert thread.query("state", graph_id)["checkpoint"] == first.outcome["state"]["checkpoint"]


@pytest.mark.parametrize("more", [{}, {"strict_resume": True}])
def test_an_answer_to_a_node_that_the_graph_lacks_leaves_the_question_open(
    thread: Checkpointed, more: dict[str, Any]
) -> None:
    (id,) = ids(thread.run("asks", {"text": "a"}))
    for resume in ("yes", {id: "yes"}):
        refused = thread.run("steps", command={"resume": resume}, **more)
        assert refused.outcome["error"]["error"] == "MissingNodeError"
        assert "a node that this revision" in refused.outcome["error"]["message"]
        assert refused.outcome["keeps_thread"]
    moved = Checkpointed(thread.host)
    moved.run("asks", {"text": "a"})
    assert moved.run("steps", command={"resume": 1, "goto": "two"}).values["log"] == ["one", "two"]

    thread.move_to(moved.host)
    assert thread.run("asks", command={"resume": "yes"}).values["log"] == ["one", "yes", "two"]


def test_a_strict_resume_that_fits_is_like_another(thread: Checkpointed) -> None:
    waiting = ids(thread.run("asks_twice", {"text": "a"}))
    half = thread.run("asks_twice", command={"resume": {waiting[0]: "A"}}, strict_resume=True)
    twice = thread.run("asks_twice", command={"resume": {waiting[0]: "again"}}, strict_resume=True)
    whole = thread.run("asks_twice", command={"resume": "B"}, strict_resume=True)
    assert ids(half) == waiting[1:]
    assert waiting[0] in twice.outcome["error"]["message"]
    assert sorted(whole.values["log"]) == ["A", "B", "done"]

    inside = Checkpointed(thread.host)
    (id,) = ids(inside.run("nested", {"text": "a"}))
    assert (
        inside.run("nested", command={"resume": {id: "yes"}}, strict_resume=True).values["log"][-1] == "yes"
    )

    paused = Checkpointed(thread.host)
    paused.run("stops_before_two", {"text": "a"})
    run = paused.run("stops_before_two", command={"resume": "on"}, strict_resume=True)
    assert run.values["log"] == ["one", "two"]


# Streams


def test_a_join_adds_modes_and_subgraphs(host: HostProcess) -> None:
    joined = {"stream_mode": ["updates"], "subgraphs": True}
    run = host.run("deep", {"text": "a"}, joined=joined)
    assert {name.partition("|")[0] for name in run.names} == {"values", "updates"}
    assert any("|" in name for name in run.names)


@pytest.mark.parametrize(
    ("asked", "joined", "names"),
    [
        (["messages"], ["messages-tuple"], {"messages/metadata", "messages/partial", "messages"}),
        (["messages-tuple"], ["messages"], {"messages/metadata", "messages/partial", "messages"}),
        (["messages", "messages-tuple"], [], {"messages"}),
    ],
)
def test_both_forms_of_messages_are_streamed_for_different_readers(
    host: HostProcess, asked: list[str], joined: list[str], names: set[str]
) -> None:
    run = host.run("speaks", {"messages": "hi"}, stream_mode=asked, joined={"stream_mode": joined})
    assert set(run.names) == names


def test_a_tools_call_is_sent_from_its_start_to_its_end(host: HostProcess) -> None:
    call = {"toolCallId": "call-1", "name": "look_up"}
    run = host.run("uses_tool", {"text": "word"}, stream_mode=["tools"])
    start, end = run.named("tools")
    assert start == {"event": "on_tool_start", **call, "input": {"word": "word"}}
    assert end["output"]["content"] == "word means something"
    assert {name: end[name] for name in ("event", "toolCallId", "name")} == {"event": "on_tool_end", **call}

    failed = host.run("uses_tool", {"text": "nothing"}, stream_mode=["tools"])
    assert failed.named("tools")[1] == {"event": "on_tool_error", **call, "error": "no such word"}

    inside = host.run("uses_tool_inside", {"text": "word"}, stream_mode=["tools"], subgraphs=True)
    assert {name.partition(":")[0] for name in inside.names} == {"tools|inner"}


def lives(run: Run) -> list[tuple[list[str], str]]:
    """Return the lifecycle events of the run and its subgraphs as pairs of namespace and event, without task ids."""
    found = []
    for name, data in run.events:
        if name.partition("|")[0] == "lifecycle":
            assert name.split("|")[1:] == data["namespace"]
            found.append(([part.partition(":")[0] for part in data["namespace"]], data["event"]))
    return found


def test_the_lives_of_a_run_and_its_subgraphs_are_sent(host: HostProcess) -> None:
    run = host.run("deep", {"text": "a"}, stream_mode=["lifecycle"], subgraphs=True)
    assert {name.partition("|")[0] for name in run.names} == {"lifecycle"}
    assert lives(run) == [
        ([], "started"),
        (["outer"], "started"),
        (["outer", "inner"], "started"),
        (["outer", "inner"], "completed"),
        (["outer"], "completed"),
        ([], "completed"),
    ]
    assert lives(host.run("deep", {"text": "a"}, stream_mode=["lifecycle"])) == [
        ([], "started"),
        ([], "completed"),
    ]

    asks = host.run("nested", {"text": "a"}, stream_mode=["lifecycle", "tasks"], subgraphs=True)
    assert lives(asks)[1:] == [(["child"], "started"), (["child"], "interrupted"), ([], "interrupted")]
    assert asks.named("tasks")

    failed = host.run("uses_tool_inside", {"text": "nothing"}, stream_mode=["lifecycle"], subgraphs=True)
    assert lives(failed)[1:] == [(["inner"], "started"), (["inner"], "failed"), ([], "failed")]
    assert failed.events[-1][1]["error"] == "no such word"


# The environment of the graph


def test_the_graph_sees_its_project_and_nothing_of_ours(host: HostProcess) -> None:
    run = host.run(
        "looks",
        {},
        config={"configurable": {"user_id": "u"}, "tags": ["t"]},
        metadata={"topic": "weather"},
    )

    packages, ours, environment, configurable, topic, tags = run.values["log"]
    assert packages == ["shared", "web", "workers"]
    assert ours == ["graph_host"]
    assert set(environment) <= {"PATH", "LANGGRAPH_STRICT_MSGPACK", "LC_CTYPE"}
    assert (configurable["user_id"], configurable["thread_id"]) == ("u", run.thread_id)
    assert (topic, tags) == ("weather", ["t"])


@pytest.mark.parametrize("command", [{}, {"resume": None}, {"unknown": 1}])
def test_a_command_that_says_nothing_is_like_no_input(thread: Checkpointed, command: dict[str, Any]) -> None:
    first = thread.run("asks", {"text": "a"})

    run = thread.run("asks", {"text": "ignored"}, command=command)

    assert run.answer == first.answer


def test_sends_and_entrypoints_run(host: HostProcess) -> None:
    assert host.run("sends", {"text": "a"}).values["log"] == ["routed", "one", "one"]
    assert host.run("functional", 5).answer == 11
    assert host.run("functional", 5, stream_mode=["updates"]).answer == 11
    assert host.run("shows_context", {}, context={"model": "big", "junk": 1}).values["log"] == ["big"]
    assert host.run("shows_context", {}).values["log"] == ["small"]
