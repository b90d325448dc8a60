"""Channels stored as changes: each state is rebuilt from the writes of its checkpoint's ancestors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from workers.graph_host import frames

CHANGES = Path(__file__).parents[2] / "projects" / "changes"
WORKS = ["work 0", "work 1", "work 2"]
BEFORE_QUESTION = ["begin", *WORKS, "begin", *WORKS, "begin"]  # a subgraph's log starts with its input


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with graph_host(CHANGES, {"changes": "./graphs.py:changes"}) as host:
        yield host


@pytest.fixture
def thread(host: HostProcess) -> Checkpointed:
    thread = Checkpointed(host)
    thread.run("changes", {"text": "a"})
    thread.run("changes", None, command={"resume": "yes"})
    return thread


def counted(thread: Checkpointed) -> list[str]:
    """Return a list that collects the names of the host's storage requests from now on."""
    answer, ops = thread.host.answer, []

    def counting(run: Run, kind: int, parts: list[bytes]) -> list[bytes] | None:
        if kind == frames.ASK:
            ops.append(json.loads(parts[0])["op"])
        return answer(run, kind, parts)

    thread.host.answer = counting
    return ops


def test_each_state_of_a_history_has_what_was_written_before_it(thread: Checkpointed) -> None:
    history = thread.query("history", "changes", limit=20)

    end, reset, asked, worked, begun, empty, start = (state["values"] for state in history)
    assert end["log"] == [*BEFORE_QUESTION, "yes", "end"]
    assert (end["short"], end["late"]) == (["reset"], ["y" * 1000, "late"])
    assert (reset["log"], reset["short"]) == ([*BEFORE_QUESTION, "yes"], ["reset"])
    assert asked["log"] == [*BEFORE_QUESTION, "yes"]
    assert worked["log"] == ["begin", *WORKS]
    assert worked["short"] == ["begin", {"number": 0}, {"number": 1}, {"number": 2}]
    assert (begun["log"], begun["short"]) == (["begin"], ["begin"])
    assert [values.get("log", []) for values in (empty, start)] == [[], []]
    for state in history:
        place = {"checkpoint_id": state["checkpoint_id"]}
        assert thread.query("state", "changes", checkpoint=place)["values"] == state["values"]

    ops = counted(thread)

    thread.query("history", "changes", limit=20)
    assert ops == ["list"]
    ops.clear()
    thread.query("history", "changes", limit=1)
    assert ops == ["list", "ancestors"]
    ops.clear()
    thread.query("state", "changes", checkpoint=None)
    assert ops == ["get_tuple", "ancestors"]


def test_a_temporary_run_ends_with_what_its_steps_added(host: HostProcess) -> None:
    for mode in ("values", "updates"):
        run = host.run("changes", {"text": "a"}, stream_mode=[mode])

        assert run.outcome["thread_status"] == "interrupted"
        assert run.values["log"] == ["begin", *WORKS]
        assert run.values["short"] == ["begin", {"number": 0}, {"number": 1}, {"number": 2}]


def test_a_longer_thread_costs_a_run_no_more_questions(thread: Checkpointed) -> None:
    ops = counted(thread)
    run = thread.run("changes", {"text": "b"})
    assert run.values["log"][:11] == [*BEFORE_QUESTION, "yes", "end"]
    of_the_first = list(ops)
    thread.run("changes", None, command={"resume": "yes"})
    ops.clear()

    thread.run("changes", {"text": "c"})

    assert ops == of_the_first


def test_the_answer_of_an_update_has_what_it_wrote(thread: Checkpointed) -> None:
    steps: list[Any] = [[{"values": {"log": [f"update {n}"]}, "as_node": "fail"}] for n in (1, 2)]

    answer = thread.query("update", "changes", supersteps=steps)

    assert answer["values"]["log"] == [*BEFORE_QUESTION, "yes", "end", "update 1", "update 2"]
    assert thread.query("state", "changes", checkpoint=None)["values"] == answer["values"]


def test_a_fork_has_the_changes_of_its_own_ancestors(thread: Checkpointed) -> None:
    older = thread.query("history", "changes", limit=20)[3]

    answer = thread.query(
        "update",
        "changes",
        checkpoint={"checkpoint_id": older["checkpoint_id"]},
        supersteps=[[{"values": {"log": ["forked"]}, "as_node": "reset"}]],
    )

    assert answer["values"]["log"] == ["begin", *WORKS, "forked"]
    assert [state["values"].get("log", []) for state in thread.query("history", "changes", limit=2)] == [
        ["begin", *WORKS, "forked"],
        [*BEFORE_QUESTION, "yes", "end"],
    ]
