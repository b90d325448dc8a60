"""Events that the graph host streams in each mode, and lines that nodes print."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import orjson
import pytest
from langgraph.types import Send

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import HostProcess, Run, graph_host
from tests.support.transcripts import GRAPHS, MODES, STREAMED, recorded, streamed, title
from workers.graph_host.serialization import dumps, loads


def reported(run: Run) -> list[tuple[str, bool, bool]]:
    """Return the node reports of a run as `(name, ended, failed)`."""
    assert [node["at"] for node in run.nodes] == sorted(node["at"] for node in run.nodes)
    return [(node["name"], node["ended"], node["error"] is not None) for node in run.nodes]


def test_who_traces_a_run_learns_when_its_nodes_begin_and_end(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, stream_mode=["values"], traced=True)
    assert reported(run) == [(name, ended, False) for name in ("one", "two") for ended in (False, True)]
    assert set(run.names) == {"values"}, "its stream stays as it is"
    failed = host.run("fails", {"text": "a"}, stream_mode=["tasks"], traced=True)
    assert reported(failed)[-1] == ("boom", True, True)
    assert len(failed.named("tasks")) == len(failed.nodes) == 4
    nested = host.run("nested", {"text": "a"}, subgraphs=True, traced=True)
    ids = {node["name"]: node["id"] for node in nested.nodes}
    within = {node["name"]: node["within"] for node in nested.nodes}
    assert within.pop("two") is None
    assert within.pop("child") is None
    assert set(within.values()) == {ids["child"]}
    for mode in ("values", "events"):
        assert host.run("steps", {"text": "a"}, stream_mode=[mode], traced=mode == "events").nodes == []


def test_a_run_shows_what_the_graphs_output_schema_names_and_its_thread_keeps_all(host: HostProcess) -> None:
    run = host.run("shows_log", {"text": "a"}, stream_mode=["values", "updates"])

    assert run.events == [
        ("updates", {"one": {"log": ["one"]}}),
        ("values", {"log": ["one"]}),
        ("updates", {"retext": None}),
    ]
    assert run.answer == {"log": ["one"]}
    assert run.values == {"text": "changed", "log": ["one"]}
    assert (run.outcome["thread_status"], run.outcome["state"]["next"]) == ("idle", [])

    run = host.run("asks_and_shows_log", {"text": "a"}, stream_mode=["updates"])

    assert run.answer == {"log": ["one"], "__interrupt__": run.named("updates")[-1]["__interrupt__"]}
    assert run.values == {"text": "a", "log": ["one"]}


@pytest.mark.parametrize("modes", [["values"], ["custom"], ["events"]])
@pytest.mark.parametrize(
    ("graph_id", "answer"), [("shows_log", {"log": ["one"]}), ("shows_little", {}), ("steps", None)]
)
def test_who_waits_gets_what_the_output_schema_names(
    host: HostProcess, graph_id: str, answer: Any, modes: list[str]
) -> None:
    run = host.run(graph_id, {"text": "a"}, stream_mode=modes)

    assert run.answer == (run.values if answer is None else answer)
    assert run.values["text"]


def test_an_event_has_the_value_that_the_node_streamed_though_it_changes_it_later(host: HostProcess) -> None:
    run = host.run("writes", {"text": "a"}, stream_mode=["custom", "updates"])

    assert run.events == [("custom", {"n": 1}), ("custom", "text"), ("updates", {"write": None})]


def test_it_streams_checkpoints_and_debug_with_the_address_of_a_subgraphs_own(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, stream_mode=["checkpoints", "debug"])

    checkpoints = run.named("checkpoints")
    assert [item["metadata"]["step"] for item in checkpoints] == [-1, 0, 1, 2]
    assert [item["next"] for item in checkpoints] == [["__start__"], ["one"], ["two"], []]
    assert not any(key.startswith("__") for item in checkpoints for key in item["config"]["configurable"])
    debug = run.named("debug")
    assert [item["type"] for item in debug][:4] == ["checkpoint", "checkpoint", "task", "task_result"]
    second = debug[1]["payload"]
    assert second["checkpoint"]["checkpoint_id"] == second["config"]["configurable"]["checkpoint_id"]
    assert second["parent_checkpoint"] == debug[0]["payload"]["checkpoint"]

    run = host.run("nested", {"text": "a"}, stream_mode=["debug", "checkpoints"])

    tasks = [task for item in run.named("debug") for task in item["payload"].get("tasks", ())]
    child = {"id": tasks[-1]["id"], "name": "child", "interrupts": []}
    place = {"thread_id": run.thread_id, "checkpoint_ns": f"child:{child['id']}"}
    assert tasks[-1] == {**child, "checkpoint": place}
    assert [task["state"] for task in tasks[:-1]] == [None, None]
    assert run.named("checkpoints")[-1]["tasks"] == [{**child, "state": {"configurable": place}}]


def test_what_a_run_streams_says_which_attempt_and_which_library_made_it(host: HostProcess) -> None:
    modes = ["messages-tuple", "tasks", "events", "debug"]
    run = host.run("speaks", {"messages": "hi"}, stream_mode=modes, attempt=2)

    found = [metadata for _, metadata in run.named("messages")]
    found += [task["metadata"] for task in run.named("tasks") if "metadata" in task]
    found += [event["metadata"] for event in run.named("events")]
    found += [item["payload"]["metadata"] for item in run.named("debug") if item["type"] == "task"]
    said = {(metadata["run_attempt"], metadata["langgraph_version"]) for metadata in found}
    assert said == {(2, version("langgraph"))}


def test_it_streams_tokens_as_tuples(host: HostProcess) -> None:
    run = host.run(
        "speaks", {"messages": "hi"}, stream_mode=["messages-tuple", "messages"], metadata={"topic": "t"}
    )

    chunks = [message for message, _ in run.named("messages")]
    assert "".join(chunk["content"] for chunk in chunks) == "hello big world"
    assert {(chunk["type"], chunk["id"]) for chunk in chunks} == {("AIMessageChunk", "answer")}
    assert [chunk["chunk_position"] for chunk in chunks] == [None] * 4 + ["last"]
    metadata = run.named("messages")[0][1]
    assert metadata["langgraph_node"] == "speak"
    assert (metadata["run_id"], metadata["thread_id"]) == (str(run.id), run.thread_id)
    assert (metadata["graph_id"], metadata["assistant_id"], metadata["topic"]) == ("speaks", "a", "t")
    assert {"langgraph_step", "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns"} <= set(
        metadata
    )
    assert set(run.names) == {"messages"}


def kinds_of(run: Run) -> list[str]:
    """Return the names of the run's events in order. An `events` event is shown with its kind and source."""
    return [f"{data['event']} {data['name']}" if name == "events" else name for name, data in run.events]


@pytest.mark.parametrize("subgraphs", [False, True])
def test_the_librarys_own_events_come_beside_others_and_bring_no_chunk_twice(
    host: HostProcess, subgraphs: bool
) -> None:
    modes = ["events", "updates", "values"]
    run = host.run("repeats", {"messages": "hi"}, stream_mode=modes, subgraphs=subgraphs)

    assert kinds_of(run) == [
        "on_chain_start repeats",
        "values",
        "on_chain_start repeat",
        "on_chain_stream repeat",
        "on_chain_end repeat",
        "updates",
        "values",
        "on_chain_end repeats",
    ]
    assert run.named("events")[0]["run_id"] == str(run.id)
    assert run.answer["messages"][-1]["content"] == "said before"


def test_the_graphs_end_is_the_last_event_also_after_an_interrupt(host: HostProcess) -> None:
    run = host.run("asks", {"text": "a"}, stream_mode=["events", "updates", "values"])

    assert kinds_of(run)[-4:] == ["on_chain_start ask", "updates", "values", "on_chain_end asks"]
    assert "__interrupt__" in run.named("updates")[-1]


@pytest.mark.parametrize(
    ("graph_id", "config", "name"),
    [
        ("steps", {}, "steps"),
        ("builder", {}, "builder"),
        ("plain_factory", {}, "plain_factory"),
        ("named", {}, "a name of its own"),
        ("named", {"run_name": "the caller's"}, "the caller's"),
        ("steps", {"run_name": 1}, "steps"),
    ],
)
def test_a_run_has_the_name_of_its_graph(
    host: HostProcess, graph_id: str, config: dict[str, Any], name: str
) -> None:
    run = host.run(graph_id, {"text": "a"}, stream_mode=["events"], config=config)

    own = [event["name"] for event in run.named("events") if event["run_id"] == str(run.id)]
    assert own == [name] * 2


def test_an_event_that_is_too_large_is_replaced_and_a_state_fails_the_run(host: HostProcess) -> None:
    run = host.run("writes_much", {}, stream_mode=["custom"])

    assert run.names == ["error"]
    assert "1048576" in run.named("error")[0]["message"]
    assert run.values["text"] == "went on"

    with graph_host(HOSTED, {"grows": ALL["grows"]}, limits={"state_bytes": 1_000_000}) as host:
        run = host.run("grows", {}, stream_mode=["updates"])

    assert run.outcome["status"] == "error"
    assert "1000000" in run.outcome["error"]["message"]


def test_a_set_is_shown_in_the_same_order_by_every_process() -> None:
    assert loads(dumps({"c", "a", "b"})) == ["a", "b", "c"]
    assert loads(dumps({(2, "x"), frozenset({3, 1}), None})) == [[1, 3], [2, "x"], None]


def test_a_document_can_enclose_any_value_of_a_graph() -> None:
    value: Any = "leaf"
    for depth in range(400):
        written = loads(dumps(value))
        assert orjson.dumps(enclosed(written, 12))
        assert depth > 200 or written == value
        value = {"a": value}


def enclosed(value: Any, levels: int) -> Any:
    return value if levels == 0 else {"in": enclosed(value, levels - 1)}


def test_what_is_sent_to_a_node_is_shown_in_the_clients_words() -> None:
    assert loads(dumps(Send("leaf", {"text": "a"}))) == {"node": "leaf", "args": {"text": "a"}}


# Complete recorded streams


@pytest.fixture(scope="module")
def streaming_host() -> Iterator[HostProcess]:
    with graph_host(STREAMED, GRAPHS) as host:
        yield host


@pytest.mark.parametrize("graph_id", GRAPHS)
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("subgraphs", [False, True], ids=["root", "subgraphs"])
def test_a_stream_is_the_recorded_one(
    streaming_host: HostProcess, graph_id: str, modes: str, subgraphs: bool
) -> None:
    expected = recorded(graph_id)
    whole = expected.get(title(modes, subgraphs=subgraphs)) or expected[modes]

    assert streamed(streaming_host, graph_id, modes, subgraphs=subgraphs) == whole
