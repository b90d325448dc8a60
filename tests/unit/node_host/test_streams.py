"""The streams of TypeScript graphs are those that the Python host writes for the same graphs in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import HostProcess
from tests.support.node_hosts import node_host
from tests.support.transcripts import MODES, RUNS, recorded, streamed, title

# LangChain's own events have other tags in JavaScript, and a graph's custom events are never its subgraph's alone.
COMPARED = [mode for mode in MODES if mode != "events"]
OTHER = {("nested", "custom", False)}
# LangChain for Python and for JavaScript prefix the ids of streamed messages differently.
MESSAGE_ID = re.compile(r'"(?:lc_run--|run-)?(#\d+)(?:-tool-call-1)?": \{"metadata')


@pytest.fixture(scope="module")
def streaming_host(node_project: Path) -> Iterator[HostProcess]:
    with node_host(node_project, {name: f"./streamed.ts:{name}" for name in RUNS}) as host:
        assert "error" not in host.ready, host.ready
        yield host


def without_prefixes(lines: list[str]) -> list[str]:
    return [MESSAGE_ID.sub(r'"\1": {"metadata', line) for line in lines]


@pytest.mark.parametrize("graph_id", RUNS)
@pytest.mark.parametrize("modes", COMPARED)
@pytest.mark.parametrize("subgraphs", [False, True], ids=["root", "subgraphs"])
def test_a_stream_is_that_of_the_python_host(
    streaming_host: HostProcess, graph_id: str, modes: str, subgraphs: bool
) -> None:
    expected = recorded(graph_id)
    whole = expected.get(title(modes, subgraphs=subgraphs)) or expected[modes]

    lines = streamed(streaming_host, graph_id, modes, subgraphs=subgraphs)

    if (graph_id, modes, subgraphs) not in OTHER:
        assert without_prefixes(lines) == without_prefixes(whole)


def test_the_librarys_own_events_leave_out_its_hidden_steps(streaming_host: HostProcess) -> None:
    run = streaming_host.run(
        "agent", {"messages": [{"role": "user", "content": "hi"}]}, stream_mode=["events"]
    )

    events = run.named("events")
    assert events[0]["event"] == "on_chain_start"
    assert events[-1]["event"] == "on_chain_end"
    assert {"on_chat_model_stream", "on_tool_start"} <= {event["event"] for event in events}
    assert all(event["parent_ids"] == [] for event in events)
    assert not any("langsmith:hidden" in event["tags"] for event in events)
