"""Queries about threads: states, history, and updates, whose storage is left to the runner."""

from __future__ import annotations

import itertools

import pytest

from tests.support.hosts import Checkpointed


def test_the_history_is_newest_first_and_each_state_can_be_had_by_its_id(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "a"})

    history = thread.query("history", "steps", limit=10)

    assert [state["values"].get("log", []) for state in history] == [["one", "two"], ["one"], [], []]
    assert [state["next"] for state in history] == [[], ["two"], ["one"], ["__start__"]]
    assert [state["metadata"]["step"] for state in history] == [2, 1, 0, -1]
    for state, older in itertools.pairwise(history):
        assert state["parent_checkpoint"] == older["checkpoint"]
    for state in history:
        place = {"checkpoint_id": state["checkpoint_id"]}
        assert thread.query("state", "steps", checkpoint=place, subgraphs=False) == state
    assert thread.query("state", "steps", checkpoint=None) == history[0]

    assert thread.query("history", "steps", limit=2) == history[:2]
    assert thread.query("history", "steps", limit=10, before=history[1]["checkpoint_id"]) == history[2:]
    assert thread.query("history", "steps", limit=10, filter={"step": 1}) == [history[1]]
    assert thread.query("history", "steps", limit=10, checkpoint_ns="nobody:here") == []
    assert thread.query("history", "steps", limit=10, values=False) == [
        {name: value for name, value in state.items() if name != "values"} for state in history
    ]


def test_a_state_that_is_not_there_is_empty(thread: Checkpointed) -> None:
    assert thread.query("state", "steps", checkpoint=None)["checkpoint"] is None
    place = {"checkpoint_id": "1f0c1b9e-0000-6000-8000-000000000000"}

    state = thread.query("state", "steps", checkpoint=place)

    assert (state["values"], state["next"], state["metadata"]) == ({}, [], None)
    assert state["checkpoint_id"] == place["checkpoint_id"]

    thread.run("asks", {"text": "a"})

    answer = thread.query("update", "asks", supersteps=[[{"values": None, "as_node": "__end__"}]])

    assert answer["state"]["next"] == []
    assert answer["interrupts"] == {}


def test_a_waiting_subgraph_s_state_comes_when_it_is_asked_for(thread: Checkpointed) -> None:
    thread.run("nested", {"text": "a"})

    flat = thread.query("state", "nested", checkpoint=None, subgraphs=False)
    deep = thread.query("state", "nested", checkpoint=None, subgraphs=True)

    [task] = flat["tasks"]
    assert task["state"] is None
    assert task["checkpoint"]["checkpoint_ns"].startswith("child:")
    [task] = deep["tasks"]
    assert task["checkpoint"] is None
    assert task["state"]["next"] == ["ask"]
    assert task["state"]["values"]["log"] == ["two", "one"]
    ns = flat["tasks"][0]["checkpoint"]["checkpoint_ns"]
    inner = thread.query("state", "nested", checkpoint={"checkpoint_ns": ns})
    assert inner["values"] == task["state"]["values"]
    assert thread.query("history", "nested", checkpoint_ns=ns, limit=1)[0]["values"] == inner["values"]


def test_an_update_runs_the_reducers_and_says_what_comes_next(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "a"})
    before = thread.query("state", "steps", checkpoint=None)

    answer = thread.query("update", "steps", supersteps=[[{"values": {"log": ["x"]}, "as_node": "one"}]])

    assert answer["values"] == {"text": "a", "log": ["one", "two", "x"]}
    assert answer["state"]["next"] == ["two"]
    assert answer["state"]["metadata"]["source"] == "update"
    assert answer["state"]["parent_checkpoint"] == before["checkpoint"]
    assert answer["checkpoint"]["checkpoint_id"] == answer["state"]["checkpoint_id"]
    assert thread.query("state", "steps", checkpoint=None)["values"] == answer["values"]
    assert thread.run("steps", None).values["log"] == ["one", "two", "x", "two"]


def test_an_update_of_an_older_checkpoint_is_a_fork(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "a"})
    older = thread.query("history", "steps", limit=10)[1]

    answer = thread.query(
        "update",
        "steps",
        checkpoint={"checkpoint_id": older["checkpoint_id"]},
        supersteps=[[{"values": {"log": ["forked"]}, "as_node": "one"}]],
    )

    assert answer["values"]["log"] == ["one", "forked"]
    assert answer["state"]["parent_checkpoint"] == older["checkpoint"]
    assert thread.query("history", "steps", limit=1)[0]["values"] == answer["values"]


def test_several_supersteps_build_a_thread_from_nothing(thread: Checkpointed) -> None:
    steps = [
        [{"values": {"text": "a", "log": ["0"]}, "as_node": "__start__"}],
        [{"values": {"log": ["1"]}, "as_node": "one"}],
        [{"command": {"update": {"log": ["2"]}}, "as_node": "two"}],
    ]

    answer = thread.query("update", "steps", supersteps=steps)

    assert answer["values"] == {"text": "a", "log": ["0", "1", "2"]}
    assert answer["state"]["next"] == []
    history = thread.query("history", "steps", limit=10)
    assert [state["values"]["log"] for state in history] == [["0", "1", "2"], ["0", "1"], ["0"]]
    assert {state["metadata"]["source"] for state in history} == {"update"}


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"values": {"log": ["x"]}, "as_node": "nope"}, "Node nope does not exist"),
        ({"values": 5, "as_node": "one"}, "Expected dict"),
    ],
)
def test_an_update_that_cannot_be_made_stores_nothing(
    thread: Checkpointed, update: dict[str, object], message: str
) -> None:
    thread.run("steps", {"text": "a"})
    stored = len(thread.stored)

    refused = thread.query("update", "steps", supersteps=[[update]])["refused"]

    assert refused["kind"] == "invalid"
    assert message in refused["message"]
    assert len(thread.stored) == stored


def test_an_update_in_a_subgraph_that_is_not_there_is_refused(thread: Checkpointed) -> None:
    thread.run("nested", {"text": "a"})

    place = {"checkpoint_ns": "nope:1"}
    answer = thread.query("update", "nested", checkpoint=place, supersteps=[[{"values": {"log": ["x"]}}]])

    refused = answer["refused"]
    assert (refused["kind"], refused["message"]) == ("invalid", "Subgraph nope not found")


def test_a_factory_is_asked_for_its_graph_and_its_failure_is_the_answer(thread: Checkpointed) -> None:
    thread.run("plain_factory", {"text": "a"})

    assert thread.query("state", "plain_factory", checkpoint=None)["values"]["log"]
    refused = thread.query("state", "failing_factory", checkpoint=None)["refused"]
    assert refused["kind"] == "failed"
    assert thread.query("state", "nope", checkpoint=None)["refused"]["error"] == "GraphNotFound"
