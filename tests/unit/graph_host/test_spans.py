"""The spans of a run: its nodes, nested for subgraphs, and its model and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosted import ALL_STREAMS, HOSTED
from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host


@pytest.fixture(scope="module")
def streams_host() -> Iterator[HostProcess]:
    names = ("react", "layers", "delegates")
    with graph_host(HOSTED, {name: ALL_STREAMS[name] for name in names}) as host:
        yield host


def spans_of(run: Run) -> list[dict[str, Any]]:
    return run.outcome["spans"]["spans"]


def tree(run: Run) -> list[str]:
    """Return the paths of the spans, in the order of their beginning."""
    by_id = {span["id"]: span for span in spans_of(run)}

    def path(span: dict[str, Any]) -> str:
        outer = by_id.get(span["within"])
        return f"{path(outer)}/{span['name']}" if outer else span["name"]

    return [path(span) for span in spans_of(run)]


def test_model_and_tool_calls_are_within_their_nodes(streams_host: HostProcess) -> None:
    run = streams_host.run("react", {"messages": "hi"}, temporary=False)

    assert tree(run) == ["agent", "agent/Scripted", "tools", "tools/look_up", "agent", "agent/Scripted"]
    kinds = [span["kind"] for span in spans_of(run)]
    assert kinds == ["node", "model", "node", "tool", "node", "model"]
    assert spans_of(run)[1]["tokens"] > 0
    for span in spans_of(run):
        assert 0 <= span["from"] <= span["until"] <= run.outcome["spans"]["lasted_ms"]


def test_nodes_of_subgraphs_are_within_the_nodes_that_call_them(streams_host: HostProcess) -> None:
    run = streams_host.run("layers", {"messages": "hi"}, temporary=False)

    assert tree(run) == [
        "note",
        "middle",
        "middle/note",
        "middle/inner",
        "middle/inner/tell",
        "middle/inner/tell/Scripted",
    ]


def test_a_send_is_named_after_its_node_and_a_tools_subgraph_is_within_it(streams_host: HostProcess) -> None:
    run = streams_host.run("delegates", {"messages": "hi"}, temporary=False)

    assert "tools/delegate" in tree(run)
    assert "tools/tell/Scripted" in tree(run)


def test_a_failed_node_has_the_class_of_its_error(host: HostProcess) -> None:
    run = host.run("fails", {}, temporary=False)

    assert [(span["name"], span.get("error")) for span in spans_of(run)] == [
        ("one", None),
        ("boom", "ValueError"),
    ]


def test_a_question_interrupts_its_node_and_the_next_run_repeats_it(thread: Checkpointed) -> None:
    first = thread.run("asks", {})
    second = thread.run("asks", command={"resume": "yes"})

    assert [(span["name"], span.get("error")) for span in spans_of(first)] == [
        ("one", None),
        ("ask", "interrupted"),
    ]
    assert [(span["name"], span.get("error")) for span in spans_of(second)] == [("ask", None), ("two", None)]


def test_a_cancelled_node_ends_with_the_cancellation(host: HostProcess) -> None:
    run = host.start("sleeps", {}, temporary=False, stream_mode=["custom"])
    host.read_until(lambda: bool(run.events))
    host.cancel(run)
    host.wait_done(run)

    assert [(span["name"], span.get("error")) for span in spans_of(run)] == [
        ("one", None),
        ("sleep", "CancelledError"),
    ]


def test_a_temporary_run_has_no_spans(host: HostProcess) -> None:
    assert host.run("steps", {}).outcome["spans"] is None
