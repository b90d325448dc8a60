"""The streams of TypeScript graphs are those that the Python host writes for the same graphs in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from tests.support.node_hosts import node_host
from tests.support.transcripts import GRAPHS as PYTHON_GRAPHS
from tests.support.transcripts import MODES, RUNS, STREAMED, executed, recorded, streamed, title, transcript
from tests.support.twins import masked, protocol_events, states, without_prefixes
from workers.graph_host import frames

# `events` is compared below: some of its tags and names are the library's. The modes that are left out are combined in
# one of the others.
COMPARED = [mode for mode in MODES if mode not in ("events", "values", "updates", "messages-tuple")]
# Graphs whose streams are not recorded, and their input
FURTHER = {"loops": {"text": "a"}, "thinks": {"messages": []}}
# The signature, and the reason why the model stopped, by provider
REASONING = {"anthropic": ({"signature": "s1"}, "end_turn"), "openai": ({"id": "r1"}, None)}
SHARED_METADATA = (
    "assistant_id", "graph_id", "run_attempt", "run_id", "thread_id", "langgraph_checkpoint_ns", "langgraph_node",
    "langgraph_path", "langgraph_step", "langgraph_triggers", "ls_model_type",
)  # fmt: skip


@pytest.fixture(scope="module")
def python_host() -> Iterator[HostProcess]:
    with graph_host(
        STREAMED, {**PYTHON_GRAPHS, **{name: f"./graphs.py:{name}" for name in ("whispers", *FURTHER)}}
    ) as host:
        yield host


@pytest.fixture(scope="module")
def streaming_host(node_project: Path) -> Iterator[HostProcess]:
    with node_host(
        node_project,
        {name: f"./streamed.ts:{name}" for name in (*RUNS, "types", "whispers", *REASONING, *FURTHER)},
    ) as host:
        assert "error" not in host.ready, host.ready
        yield host


@pytest.mark.parametrize("graph_id", RUNS)
@pytest.mark.parametrize("modes", COMPARED)
@pytest.mark.parametrize("subgraphs", [False, True], ids=["root", "subgraphs"])
def test_a_stream_is_that_of_the_python_host(
    streaming_host: HostProcess, graph_id: str, modes: str, subgraphs: bool
) -> None:
    expected = recorded(graph_id)
    whole = expected.get(title(modes, subgraphs=subgraphs)) or expected[modes]

    lines = streamed(streaming_host, graph_id, modes, subgraphs=subgraphs)

    assert without_prefixes(lines) == without_prefixes(whole)


@pytest.mark.parametrize("mode", ["messages", "messages-tuple"])
def test_an_answer_whose_stream_is_hidden_is_a_whole_message(
    streaming_host: HostProcess, python_host: HostProcess, mode: str
) -> None:
    lines, expected = (
        transcript([host.run("whispers", {"messages": []}, stream_mode=[mode]).events])
        for host in (streaming_host, python_host)
    )

    assert without_prefixes(lines) == without_prefixes(expected)
    assert any("ai: in secret" in line for line in lines)


@pytest.mark.parametrize("graph_id", FURTHER)
def test_streams_of_a_loop_and_of_reasoning_are_those_of_the_python_host(
    streaming_host: HostProcess, python_host: HostProcess, graph_id: str
) -> None:
    for modes in ("values", "updates custom messages-tuple", "messages", "tasks checkpoints", "debug"):
        lines, expected = (
            transcript([host.run(graph_id, FURTHER[graph_id], stream_mode=modes.split()).events])
            for host in (streaming_host, python_host)
        )
        assert without_prefixes(lines) == without_prefixes(expected), modes

    lines, expected = (
        protocol_events(host, graph_id, runs=[{"input": FURTHER[graph_id]}])
        for host in (streaming_host, python_host)
    )
    assert lines == expected


# Events of LangChain


def library_events(host: HostProcess, graph_id: str) -> list[str]:
    """Run the graph and return one line per event of LangChain, without what only one of the libraries adds."""
    thread = Checkpointed(host)
    lines: list[str] = []
    for run in RUNS[graph_id]:
        events = executed(thread, graph_id, run, stream_mode=["events"]).named("events")
        for event in events:
            assert event.pop("parent_ids")[:1] in ([], [event["metadata"]["run_id"]])
            step = [] if event["event"] == "on_custom_event" else ["graph:step"]  # has the tags of the node
            event["tags"] = [tag for tag in event["tags"] if tag.startswith((*step, "mine"))]
            event["name"] = event["name"].replace("tools_condition", "RunnableLambda")
            event["metadata"] = {key: event["metadata"].get(key) for key in SHARED_METADATA}
            chunk = event["data"].get("chunk") if event["event"] == "on_chat_model_stream" else {}
            for name in (
                "tool_calls",
                "invalid_tool_calls",
            ):  # each library's own guess from a part of a call
                chunk.pop(name, None)
            lines.append(json.dumps(event, sort_keys=True))
    return masked("\n".join(lines))


@pytest.mark.parametrize("graph_id", RUNS)
def test_the_events_of_langchain_are_those_of_the_python_host(
    streaming_host: HostProcess, python_host: HostProcess, graph_id: str
) -> None:
    assert library_events(streaming_host, graph_id) == library_events(python_host, graph_id)


# Events of protocol v2


@pytest.mark.parametrize("graph_id", RUNS)
def test_the_events_of_protocol_v2_are_those_of_the_python_host(
    streaming_host: HostProcess, python_host: HostProcess, graph_id: str
) -> None:
    # each library has its own order of parallel nodes
    order = sorted if graph_id == "parallels" else list
    assert order(protocol_events(streaming_host, graph_id)) == order(protocol_events(python_host, graph_id))


def test_a_model_that_reports_tokens_without_their_chunks_ends_its_message(
    streaming_host: HostProcess,
) -> None:
    run = streaming_host.run("types", {"messages": []}, stream_mode=["protocol", "messages-tuple"])

    chunks = [message for message, _ in run.named("messages")]
    assert [(chunk["content"], chunk["chunk_position"]) for chunk in chunks] == [
        ("a", None), ("b", None), ("", "last"),
    ]  # fmt: skip
    events = [
        (params["data"] or {}).get("event") or json.loads(name[1:])[0]
        for name, params in run.events
        if name.startswith(('~["messages"', '~["updates"'))
    ]
    assert events[-3:] == ["message-finish", "updates", "updates"]


@pytest.mark.parametrize("provider", REASONING)
def test_reasoning_of_a_provider_is_one_block_before_the_answer(
    streaming_host: HostProcess, provider: str
) -> None:
    extra, reason = REASONING[provider]

    messages = by_method(streaming_host.run(provider, {"messages": []}, stream_mode=["protocol"]))["messages"]

    thought, said = [data["content"] for data in messages if data["event"] == "content-block-finish"]
    assert {**thought, "index": 0} == {"type": "reasoning", "reasoning": "hm", "index": 0, **extra}
    assert (said["type"], said["text"]) == ("text", "yes")
    assert messages[-1].get("reason") == reason


@pytest.fixture(scope="module")
def transforming_host(node_project: Path) -> Iterator[HostProcess]:
    graphs = {name: f"./transformed.ts:{name}" for name in ("censored", "broken")}
    with node_host(node_project, graphs) as host:
        assert "error" not in host.ready, host.ready
        yield host


def by_method(run: Run) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, params in run.events:
        if name.startswith("~"):
            found.setdefault(json.loads(name[1:])[0], []).append(params["data"])
    return found


def test_the_graphs_own_transformers_change_hide_and_add_and_what_they_fail_on_is_left_out(
    transforming_host: HostProcess,
) -> None:
    run = transforming_host.run("censored", {"messages": []}, stream_mode=["protocol"])

    assert run.outcome["status"] == "success"
    assert run.values["messages"][-1]["content"] == "pin 7"
    found = by_method(run)
    deltas = [data["delta"]["text"] for data in found["messages"] if data["event"] == "content-block-delta"]
    assert "".join(deltas) == "pin *"
    assert "message-finish" not in {data["event"] for data in found["messages"]}, "it has no valid form"
    assert not {"updates", "values"} & found.keys()
    assert len(found["tasks"]) == 2
    (added,) = found["custom"]
    assert (added["name"], added["payload"]["messages"] > len(deltas)) == ("seen", True)
    assert "a secret" not in json.dumps(run.events)
    assert any("a stream transformer failed: Error: what is this?" in log["message"] for log in run.logs)


def test_nothing_is_shown_of_a_run_whose_transformers_cannot_be_made(transforming_host: HostProcess) -> None:
    run = transforming_host.run("broken", {"messages": []}, stream_mode=["protocol"])

    assert run.outcome["status"] == "success"
    assert not {"values", "messages", "updates", "custom", "tasks"} & by_method(run).keys()
    assert any("no censor today" in log["message"] for log in run.logs)


def test_a_reader_that_joins_late_gets_values_and_updates(streaming_host: HostProcess) -> None:
    thread = Checkpointed(streaming_host)
    run = thread.start("agent", {"messages": [{"role": "user", "content": "hi"}]})
    body = json.dumps({"stream_mode": ["protocol", "updates"]}).encode()
    streaming_host.send(frames.WIDEN, run.id.bytes, body)
    streaming_host.wait_done(run)

    methods = {json.loads(name[1:])[0] for name in run.names if name.startswith("~")}
    assert methods <= {"values", "updates"}
    assert run.outcome["status"] == "success"


# States and histories


@pytest.mark.parametrize("graph_id", RUNS)
def test_states_and_histories_are_those_of_the_python_host(
    streaming_host: HostProcess, python_host: HostProcess, graph_id: str
) -> None:
    assert states(streaming_host, graph_id) == states(python_host, graph_id)
