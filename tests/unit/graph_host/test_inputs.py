"""What the graph sees: its project and nothing of ours, its run's config, context and commands."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess


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


def test_context_is_coerced_and_what_the_schema_does_not_know_is_dropped(host: HostProcess) -> None:
    assert host.run("shows_context", {}, context={"model": "big", "junk": 1}).values["log"] == ["big"]
    assert host.run("shows_context", {}).values["log"] == ["small"]


def test_commands_go_where_they_say(thread: Checkpointed) -> None:
    thread.run("asks", {"text": "a"})

    run = thread.run("asks", command={"update": [["text", "b"]], "goto": [{"node": "two", "input": {}}]})

    assert run.answer["text"] == "b"
    assert run.answer["log"] == ["one", "two"]


@pytest.mark.parametrize("command", [{}, {"resume": None}, {"unknown": 1}])
def test_a_command_that_says_nothing_is_like_no_input(thread: Checkpointed, command: dict[str, Any]) -> None:
    first = thread.run("asks", {"text": "a"})

    run = thread.run("asks", {"text": "ignored"}, command=command)

    assert run.answer == first.answer


def test_sends_and_entrypoints_run(host: HostProcess) -> None:
    assert host.run("sends", {"text": "a"}).values["log"] == ["routed", "one", "one"]
    assert host.run("functional", 5).answer == 11


def test_an_entrypoint_whose_values_nobody_streams_still_answers(host: HostProcess) -> None:
    assert host.run("functional", 5, stream_mode=["updates"]).answer == 11
