"""How runs end in a graph host: by themselves, by an error, cancelled, or with the process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess


def test_a_run_that_fails_says_so_in_its_event_answer_and_state(host: HostProcess) -> None:
    run = host.run("fails", {"text": "a"})

    error = {"error": "ValueError", "message": "boom happened"}
    assert run.events[-1] == ("error", error)
    assert run.answer == {"__error__": error}
    assert (run.outcome["status"], run.outcome["thread_status"]) == ("error", "error")
    assert run.outcome["error"] == error
    assert run.outcome["state"]["next"] == ["boom"]
    assert run.outcome["state"]["tasks"][0]["error"] == "ValueError('boom happened')"
    assert run.values == {"text": "a", "log": ["one"]}


@pytest.mark.parametrize(
    ("graph_id", "input", "error"),
    [("loops", {"text": "a"}, "GraphRecursionError"), ("steps", None, "EmptyInputError")],
)
def test_the_librarys_errors_keep_their_names(
    host: HostProcess, graph_id: str, input: Any, error: str
) -> None:
    run = host.run(graph_id, input, config={"recursion_limit": 5})

    assert run.answer["__error__"]["error"] == error


def test_an_attempt_after_a_crash_goes_on_from_the_newest_checkpoint(thread: Checkpointed) -> None:
    thread.run("stops_before_two", {"text": "a"})

    run = thread.run("stops_before_two", {"text": "again"}, attempt=2, resume_from_checkpoint=True)

    assert run.values == {"text": "a", "log": ["one", "two"]}
    assert run.outcome["state"]["metadata"]["run_attempt"] == 2


@pytest.mark.parametrize("graph_id", ["sleeps", "sleeps_in_thread", "swallows"])
def test_a_cancelled_run_ends_at_its_last_checkpoint(host: HostProcess, graph_id: str) -> None:
    run = host.start(graph_id, {"text": "a"}, stream_mode=["custom"])
    host.read_until(lambda: "custom" in run.names)

    host.cancel(run)
    host.wait_done(run)

    assert (run.outcome["status"], run.outcome["error"]) == ("cancelled", None)
    assert run.outcome["thread_status"] == "interrupted"
    assert run.answer == run.values == {"text": "a", "log": ["one"]}
    assert run.names == ["custom"]
    assert host.run("steps", {"text": "b"}).values["text"] == "b"


def test_a_run_that_is_cancelled_before_its_first_step_ends_without_one(host: HostProcess) -> None:
    said_before = len(host.logs)
    with host.stopped():  # it reads both frames at once
        run = host.start("steps", {"text": "a"})
        host.cancel(run)
    host.wait_done(run)

    assert (run.outcome["status"], run.outcome["unchanged"]) == ("cancelled", True)
    assert (run.events, run.stored) == ([], [])
    assert host.logs[said_before:] == [], "it was not given up"


@pytest.mark.parametrize("graph_id", ["leaves", "leaves_async"])
def test_a_node_that_exits_fails_its_run_only(host: HostProcess, graph_id: str) -> None:
    run = host.run(graph_id, {"text": "a"})

    assert run.answer == {"__error__": {"error": "SystemExit", "message": "7"}}
    assert host.run("steps", {"text": "b"}).values["text"] == "b"


def test_a_process_that_exits_takes_the_host(own_host: HostProcess) -> None:
    with pytest.raises(ConnectionError, match="9"):
        own_host.run("dies", {})


def test_an_unknown_graph_is_an_error_of_the_run(host: HostProcess) -> None:
    assert host.run("nope", {}).answer["__error__"]["error"] == "GraphNotFound"
