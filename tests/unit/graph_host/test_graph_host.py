"""The graph host as a real child process: what each mode streams, how runs end, what it survives."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from tests.support.waiting import wait_until
from workers.graph_host import frames

HOSTED = Path(__file__).parents[2] / "projects" / "hosted"
GRAPHS = [
    "steps",
    "builder",
    "stops_before_two",
    "asks",
    "asks_twice",
    "nested",
    "deep",
    "fails",
    "loops",
    "speaks",
    "repeats",
    "writes",
    "writes_much",
    "floods",
    "grows",
    "sleeps",
    "sleeps_in_thread",
    "swallows",
    "says",
    "says_much",
    "leaves",
    "leaves_async",
    "dies",
    "patches",
    "blocks",
    "looks",
    "shows_context",
    "points",
    "sends",
    "functional",
    "invokes_inside",
    "invokes_blocking",
    "invokes_blocking_on_loop",
    "plain_factory",
    "async_factory",
    "managed_factory",
    "managed_sync_factory",
    "callable_instance",
    "failing_factory",
    "wrong_factory",
]
ALL = {name: f"./graphs.py:{name}" for name in GRAPHS}


@pytest.fixture(scope="module")
def shared_host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, ALL) as host:
        host.wait_ready()
        yield host


@pytest.fixture
def host(shared_host: HostProcess) -> Iterator[HostProcess]:
    yield shared_host
    shared_host.answer = lambda run, kind, parts: None


@pytest.fixture
def own_host() -> Iterator[HostProcess]:
    """For a test that ends or disturbs its host."""
    names = ("steps", "dies", "blocks", "sleeps", "floods", "swallows", "patches")
    with graph_host(HOSTED, {name: ALL[name] for name in names}) as host:
        host.wait_ready()
        yield host


def without_ids(value: Any) -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "metadata", "triggers")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


# What is streamed


def test_it_streams_values_and_updates(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, stream_mode=["values", "updates"])

    assert run.events == [
        ("values", {"text": "a", "log": []}),
        ("updates", {"one": {"log": ["one"]}}),
        ("values", {"text": "a", "log": ["one"]}),
        ("updates", {"two": {"log": ["two"]}}),
        ("values", {"text": "a", "log": ["one", "two"]}),
    ]
    assert run.outcome is not None
    assert (run.outcome["status"], run.outcome["thread_status"], run.outcome["error"]) == (
        "success",
        "idle",
        None,
    )
    assert run.values == run.answer == {"text": "a", "log": ["one", "two"]}
    assert run.outcome["state"]["next"] == []


def test_a_caller_that_streams_no_values_still_gets_an_answer(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, stream_mode=["updates"])

    assert set(run.names) == {"updates"}
    assert run.answer == run.values == {"text": "a", "log": ["one", "two"]}


def test_it_streams_custom_events_as_they_were_written(host: HostProcess) -> None:
    assert host.run("writes", {}, stream_mode=["custom"]).events == [("custom", {"n": 1}), ("custom", "text")]


def test_it_streams_both_ends_of_a_task(host: HostProcess) -> None:
    run = host.run("fails", {"text": "a"}, stream_mode=["tasks"])

    assert [without_ids(data) for data in run.named("tasks")] == [
        {"name": "one", "input": {"text": "a", "log": []}},
        {"name": "one", "error": None, "result": {"log": ["one"]}, "interrupts": []},
        {"name": "boom", "input": {"text": "a", "log": ["one"]}},
        {
            "name": "boom",
            "error": {"error": "ValueError", "message": "boom happened"},
            "result": {},
            "interrupts": [],
        },
    ]


def test_it_streams_checkpoints_and_debug(host: HostProcess) -> None:
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


def test_it_streams_tokens_as_the_text_so_far(host: HostProcess) -> None:
    run = host.run("speaks", {"messages": "hi"}, stream_mode=["messages"])

    assert run.names == ["messages/metadata"] + ["messages/partial"] * 5
    assert run.named("messages/metadata")[0]["answer"]["metadata"]["langgraph_node"] == "speak"
    parts = [message for (message,) in run.named("messages/partial")]
    assert [part["content"] for part in parts][:3] == ["hello", "hello ", "hello big"]
    assert {part["type"] for part in parts} == {"ai"}


def test_a_message_a_node_returned_whole_is_complete(host: HostProcess) -> None:
    run = host.run("repeats", {"messages": "hi"}, stream_mode=["messages"])

    assert run.names == ["messages/metadata", "messages/complete"]
    assert run.named("messages/complete")[0][0]["content"] == "said before"


def test_it_streams_the_librarys_own_events_beside_others(host: HostProcess) -> None:
    run = host.run("repeats", {"messages": "hi"}, stream_mode=["events", "updates"])

    kinds = [event["event"] for event in run.named("events")]
    assert kinds[0] == "on_chain_start"
    assert kinds[-1] == "on_chain_end"
    assert run.named("events")[0]["run_id"] == str(run.id)
    assert [list(update) for update in run.named("updates")] == [["repeat"]]
    assert run.answer["messages"][-1]["content"] == "said before"


def test_it_names_subgraphs_in_the_events(host: HostProcess) -> None:
    run = host.run("deep", {"text": "a"}, stream_mode=["updates"], subgraphs=True)

    assert [[part.partition(":")[0] for part in name.split("|")] for name in run.names] == [
        ["updates", "outer", "inner"],
        ["updates", "outer", "inner"],
        ["updates", "outer"],
        ["updates"],
    ]


def test_it_keeps_subgraphs_to_itself_unless_asked(host: HostProcess) -> None:
    assert host.run("deep", {"text": "a"}, stream_mode=["updates"]).names == ["updates"]


def test_an_event_that_is_too_large_is_replaced_and_the_run_goes_on(host: HostProcess) -> None:
    run = host.run("writes_much", {}, stream_mode=["custom"])

    assert run.names == ["error"]
    assert "1048576" in run.named("error")[0]["message"]
    assert run.values["text"] == "went on"


def test_a_state_that_is_too_large_fails_the_run() -> None:
    with graph_host(HOSTED, {"grows": ALL["grows"]}, limits={"state_bytes": 1_000_000}) as host:
        host.wait_ready()
        run = host.run("grows", {}, stream_mode=["updates"])

    assert run.outcome is not None
    assert run.outcome["status"] == "error"
    assert "1000000" in run.outcome["error"]["message"]


# Interrupts


def test_an_interrupt_is_the_last_of_the_values(host: HostProcess) -> None:
    run = host.run("asks", {"text": "sure?"}, stream_mode=["values", "updates"])

    item = {"value": {"question": "sure?"}, "id": run.named("updates")[-1]["__interrupt__"][0]["id"]}
    streamed = {**item, "response_schema": None}
    assert run.events[-2:] == [
        ("updates", {"__interrupt__": [streamed]}),
        ("values", {"text": "sure?", "log": ["one"], "__interrupt__": [streamed]}),
    ]
    assert run.outcome is not None
    assert run.answer == run.events[-1][1]
    assert run.values == {"text": "sure?", "log": ["one"]}
    assert (run.outcome["status"], run.outcome["thread_status"]) == ("success", "interrupted")
    state = run.outcome["state"]
    assert (state["next"], state["interrupts"]) == (["ask"], [item])
    assert run.outcome["interrupts"] == {state["tasks"][0]["id"]: [item]}


def test_interrupts_of_one_step_share_one_event(host: HostProcess) -> None:
    run = host.run("asks_twice", {"text": "a"}, stream_mode=["values", "updates"])

    assert run.names == ["values", "updates", "updates", "values"]
    final = run.named("values")[-1]
    assert final["log"] == ["done"]
    assert [item["value"] for item in final["__interrupt__"]] == [{"question": "a"}, "again"]
    assert run.answer == final
    assert run.outcome is not None
    assert len(run.outcome["interrupts"]) == 2


def test_a_resumed_run_goes_on_from_its_interrupt(host: HostProcess) -> None:
    thread = Checkpointed(host)
    thread.run("asks", {"text": "a"})

    run = thread.run("asks", command={"resume": "yes"}, stream_mode=["values", "updates"])

    assert run.named("values")[0] == {"text": "a", "log": ["one"]}
    assert run.named("updates")[0] == {"ask": {"log": ["yes"]}}
    assert run.values == {"text": "a", "log": ["one", "yes", "two"]}
    assert run.outcome is not None
    assert run.outcome["interrupts"] == {}


def test_several_interrupts_are_answered_by_id(host: HostProcess) -> None:
    thread = Checkpointed(host)
    first = thread.run("asks_twice", {"text": "a"})
    ids = [item["id"] for item in first.answer["__interrupt__"]]

    unclear = thread.run("asks_twice", command={"resume": "both"})
    half = thread.run("asks_twice", command={"resume": {ids[0]: "A"}})
    whole = thread.run("asks_twice", command={"resume": {ids[1]: "B"}})

    assert unclear.outcome is not None
    assert half.outcome is not None
    assert unclear.outcome["error"]["error"] == "RuntimeError"
    assert [item["id"] for item in half.outcome["state"]["interrupts"]] == [ids[1]]
    assert sorted(whole.values["log"]) == ["A", "B", "done"]


def test_an_interrupt_inside_a_subgraph_belongs_to_the_inner_task(host: HostProcess) -> None:
    run = host.run("nested", {"text": "a"}, stream_mode=["values", "updates"], subgraphs=True)

    kinds = [name.partition(":")[0] for name in run.names[-4:]]
    assert kinds == ["updates|child", "values|child", "updates", "values"]
    assert run.outcome is not None
    (outer,) = run.outcome["state"]["tasks"]
    (inner_id,) = run.outcome["interrupts"]
    assert inner_id != outer["id"]
    assert outer["checkpoint"] == {"thread_id": run.thread_id, "checkpoint_ns": f"child:{outer['id']}"}
    assert outer["state"] is None


def test_a_subgraph_is_resumed(host: HostProcess) -> None:
    thread = Checkpointed(host)
    thread.run("nested", {"text": "a"})

    assert thread.run("nested", command={"resume": "yes"}).values["log"] == ["two", "two", "one", "yes"]


def test_a_static_breakpoint_leaves_the_thread_interrupted(host: HostProcess) -> None:
    compiled_in = host.run("stops_before_two", {"text": "a"}, stream_mode=["updates"])
    asked_for = host.run("steps", {"text": "a"}, stream_mode=["updates"], interrupt_after=["one"])
    at_the_end = host.run("steps", {"text": "a"}, stream_mode=["updates"], interrupt_after=["two"])

    for run in (compiled_in, asked_for):
        assert run.events == [("updates", {"one": {"log": ["one"]}}), ("updates", {"__interrupt__": []})]
        assert run.outcome is not None
        assert (run.outcome["thread_status"], run.outcome["state"]["next"]) == ("interrupted", ["two"])
        assert run.answer == {"text": "a", "log": ["one"]}
    assert at_the_end.outcome is not None
    assert at_the_end.outcome["thread_status"] == "idle"


def test_what_a_checkpoint_holds_comes_back_as_the_projects_own_class(host: HostProcess) -> None:
    thread = Checkpointed(host)
    thread.run("points", {})

    assert thread.run("points", command={"resume": 1}).values["kinds"] == ["Point", "True"]


FOREIGN_CLASS = """
from typing import Any, TypedDict
from fractions import Fraction
from langgraph.graph import StateGraph
from langgraph.types import interrupt

class Price(Fraction):
    def _asdict(self): return {"numerator": 1, "denominator": 2}

Price.__module__ = "fractions"
Price.__name__ = "Fraction"

class S(TypedDict, total=False):
    v: Any
    kind: str

def make(s): return {"v": Price(1, 2)}

def look(s):
    interrupt(1)
    return {"kind": type(s["v"]).__name__}

b = StateGraph(S).add_sequence([make, look]).set_entry_point("make")
"""


def test_a_class_that_is_not_the_projects_is_restored_only_where_its_deployment_allows_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "graphs.py").write_text(FOREIGN_CLASS)
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        host.wait_ready()
        thread = Checkpointed(host)
        thread.run("g", {"kind": ""})
        stored = list(thread.stored)
        refused = thread.run("g", command={"resume": 1})
        assert refused.outcome is not None
        assert (refused.outcome["status"], refused.outcome["error"]["error"]) == (
            "error",
            "CheckpointRefused",
        )
        assert "the checkpoint names fractions.Fraction" in refused.outcome["error"]["message"]
        assert thread.stored == stored, "nothing is written in its place"
        assert "refused" in thread.query("state", "g")
    with graph_host(
        tmp_path, {"g": "./graphs.py:b"}, variables={"LANGGRAPH_STRICT_MSGPACK": "false"}
    ) as host:
        host.wait_ready()
        thread.move_to(host)
        assert thread.run("g", command={"resume": 1}).values["kind"] == "Fraction"


TRAP = "made by a checkpoint"


def constructor(code: int, *call: Any) -> bytes:
    return ormsgpack.packb([1, {"a": ormsgpack.Ext(code, ormsgpack.packb(call))}])


PAYLOADS = {
    "a function": ("msgpack", constructor(0, "os", "mkdir", TRAP)),
    "a function's arguments": ("msgpack", constructor(1, "os", "mkdir", (TRAP,))),
    "a class": ("msgpack", constructor(2, "subprocess", "Popen", {"args": ["mkdir", TRAP]})),
    "a method": ("msgpack", constructor(3, "os", "mkdir", TRAP, "__call__")),
    "an old model": ("msgpack", constructor(4, "subprocess", "Popen", {"args": ["mkdir", TRAP]})),
    "a model": ("msgpack", constructor(5, "subprocess", "Popen", {"args": ["mkdir", TRAP]}, "x")),
    "json": ("json", json.dumps({"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [TRAP]}).encode()),
    "pickle": ("pickle", f"cos\nmkdir\n(S'{TRAP}'\ntR.".encode()),
}  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_checkpoint_that_somebody_changed_executes_nothing_and_fails_the_run(
    host: HostProcess, payload: tuple[str, bytes]
) -> None:
    type_, data = payload
    for changed in (frames.CHECKPOINT, frames.WRITES):
        thread = Checkpointed(host)
        thread.run("points", {})
        for _, head, blobs in [item for item in thread.stored if item[0] == changed]:
            head["type"] = type_
            head["writes"] = [[idx, channel, type_] for idx, channel, _ in head.get("writes", ())]
            blobs[:] = [data] * len(blobs)

        run = thread.run("points", command={"resume": 1})

        assert run.outcome is not None
        assert (run.outcome["status"], run.outcome["error"]["error"]) == ("error", "CheckpointRefused")
        assert "refused" in thread.query("state", "points")
    assert not (HOSTED / TRAP).exists()


def test_a_class_of_the_project_comes_back_in_a_host_that_has_not_imported_it(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(
        "from typing import Any, TypedDict\nfrom langgraph.graph import StateGraph\n"
        "from langgraph.types import interrupt\n"
        "class S(TypedDict, total=False):\n    v: Any\n    kind: str\n"
        "def make(s):\n    from places_of import Point\n    return {'v': Point(1)}\n"
        "def look(s):\n    interrupt(1)\n    return {'kind': type(s['v']).__name__}\n"
        "b = StateGraph(S).add_sequence([make, look]).set_entry_point('make')\n"
    )
    (tmp_path / "places_of.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: int\n"
    )
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        host.wait_ready()
        thread = Checkpointed(host)
        thread.run("g", {"kind": ""})
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        host.wait_ready()
        thread.move_to(host)
        assert thread.run("g", command={"resume": 1}).values["kind"] == "Point"


# How runs end


def test_a_run_that_fails_says_so_in_its_event_answer_and_state(host: HostProcess) -> None:
    run = host.run("fails", {"text": "a"})

    error = {"error": "ValueError", "message": "boom happened"}
    assert run.events[-1] == ("error", error)
    assert run.answer == {"__error__": error}
    assert run.outcome is not None
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


def test_an_attempt_after_a_crash_goes_on_from_the_newest_checkpoint(host: HostProcess) -> None:
    thread = Checkpointed(host)
    thread.run("stops_before_two", {"text": "a"})

    run = thread.run("stops_before_two", {"text": "again"}, attempt=2, resume_from_checkpoint=True)

    assert run.values == {"text": "a", "log": ["one", "two"]}
    assert run.outcome is not None
    assert run.outcome["state"]["metadata"]["run_attempt"] == 2


@pytest.mark.parametrize("graph_id", ["sleeps", "sleeps_in_thread", "swallows"])
def test_a_cancelled_run_ends_at_its_last_checkpoint(host: HostProcess, graph_id: str) -> None:
    run = host.start(graph_id, {"text": "a"}, stream_mode=["custom"])
    host.read_until(lambda: "custom" in run.names)

    host.cancel(run)
    host.wait_done(run)

    assert run.outcome is not None
    assert (run.outcome["status"], run.outcome["error"]) == ("cancelled", None)
    assert run.outcome["thread_status"] == "interrupted"
    assert run.answer == run.values == {"text": "a", "log": ["one"]}
    assert run.names == ["custom"]
    assert host.run("steps", {"text": "b"}).values["text"] == "b"


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


# What is stored


def test_a_durable_run_sends_a_checkpoint_a_step_and_its_writes(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, temporary=False, metadata={"topic": "x\u0000y"})

    checkpoints = [head for kind, head, _ in run.stored if kind == frames.CHECKPOINT]
    assert [head["metadata"]["step"] for head in checkpoints] == [-1, 0, 1, 2]
    assert {head["ask"] for _, head, _ in run.stored} == {0}
    assert {head["thread_id"] for head in checkpoints} == {run.thread_id}
    assert {head["metadata"]["topic"] for head in checkpoints} == {"xy"}
    parents = [head["parent_checkpoint_id"] for head in checkpoints]
    assert parents == [None, *(head["checkpoint_id"] for head in checkpoints[:-1])]
    assert run.outcome is not None
    assert run.outcome["state"]["checkpoint_id"] == checkpoints[-1]["checkpoint_id"]
    assert run.outcome["state"]["metadata"]["run_id"] == str(run.id)


def test_durability_sync_waits_for_each_checkpoint(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, temporary=False, durability="sync")

    assert all(head["ask"] for kind, head, _ in run.stored if kind == frames.CHECKPOINT)


def test_durability_exit_stores_one_checkpoint(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, temporary=False, durability="exit")

    assert [kind for kind, _, _ in run.stored] == [frames.CHECKPOINT]


def test_a_large_value_is_sent_once(host: HostProcess) -> None:
    run = host.run("steps", {"text": "x" * 5000}, temporary=False)

    sent = [item for kind, head, _ in run.stored if kind == frames.CHECKPOINT for item in head["new"]]
    refers = [head["blobs"] for kind, head, _ in run.stored if kind == frames.CHECKPOINT]
    assert [channel for channel, _, _ in sent] == ["__start__", "text"]
    assert ["text" in item for item in refers] == [False, True, True, True]


def test_a_temporary_run_stores_nothing(host: HostProcess) -> None:
    for graph_id in ("steps", "nested", "fails"):
        assert host.run(graph_id, {"text": "a"}).stored == []


def test_a_graph_invoked_under_a_thread_of_its_own_does_not_reach_ours(host: HostProcess) -> None:
    run = host.run("invokes_inside", {"text": "a"}, temporary=False)

    assert run.values["log"] == ["one"]
    assert {head["thread_id"] for _, head, _ in run.stored} == {run.thread_id}


@pytest.mark.parametrize("graph_id", ["invokes_blocking", "invokes_blocking_on_loop"])
def test_a_node_may_invoke_a_graph_without_await(host: HostProcess, graph_id: str) -> None:
    thread = Checkpointed(host)
    thread.run(graph_id, {"text": "a"})

    assert thread.run(graph_id, {"text": "b"}).values == {"text": "b", "log": ["done", "done"]}


# What the graph sees


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


def test_commands_go_where_they_say(host: HostProcess) -> None:
    thread = Checkpointed(host)
    thread.run("asks", {"text": "a"})

    run = thread.run("asks", command={"update": [["text", "b"]], "goto": [{"node": "two", "input": {}}]})

    assert run.answer["text"] == "b"
    assert run.answer["log"] == ["one", "two"]


@pytest.mark.parametrize("command", [{}, {"resume": None}, {"unknown": 1}])
def test_a_command_that_says_nothing_is_like_no_input(host: HostProcess, command: dict[str, Any]) -> None:
    thread = Checkpointed(host)
    first = thread.run("asks", {"text": "a"})

    run = thread.run("asks", {"text": "ignored"}, command=command)

    assert run.answer == first.answer


def test_sends_and_entrypoints_run(host: HostProcess) -> None:
    assert host.run("sends", {"text": "a"}).values["log"] == ["routed", "one", "one"]
    assert host.run("functional", 5).answer == 11


# Loading


@pytest.mark.parametrize(
    "graph_id",
    ["builder", "plain_factory", "managed_factory", "managed_sync_factory", "callable_instance"],
)
def test_every_kind_of_graph_entry_runs(host: HostProcess, graph_id: str) -> None:
    assert host.run(graph_id, {"text": "a"}).values["log"] == ["one"]


def test_a_factory_gets_the_runs_config(host: HostProcess) -> None:
    configurable = {"graph_id": "async_factory"}

    run = host.run("async_factory", {}, config={"configurable": configurable})

    assert run.values["log"] == ["async_factory"]


@pytest.mark.parametrize(
    ("graph_id", "error"), [("failing_factory", "RuntimeError"), ("wrong_factory", "NotAGraph")]
)
def test_a_factory_that_fails_fails_the_run(host: HostProcess, graph_id: str, error: str) -> None:
    run = host.run(graph_id, {})

    assert run.answer["__error__"]["error"] == error
    assert run.outcome is not None
    assert run.outcome["state"] is None


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("./missing.py:graph", "no such file"),
        ("./graphs.py:missing", "has no 'missing'"),
        ("./graphs.py", "path:attribute"),
        ("./graphs.py:not_a_graph", "is no graph"),
        ("./graphs.py:two_unannotated", "'a' and 'b'"),
        ("graphs.py:steps", "./graphs.py"),
        ("./broken.py:graph", "ZeroDivisionError"),
        ("./exits.py:graph", "SystemExit"),
        ("./syntax.py:graph", "SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_is_said_for_the_deployer(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "graphs.py").write_bytes((HOSTED / "graphs.py").read_bytes())
    for name in ("shared", "web", "workers"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "broken.py").write_text("def f():\n    return 1 / 0\n\ngraph = f()\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "syntax.py").write_text("def (:\n")

    with graph_host(tmp_path, {"agent": entry}) as host:
        error = host.wait_ready()["error"]
        code = host.process.wait()

    assert error["step"] == "load"
    assert "'agent'" in error["message"]
    assert words in error["message"]
    assert "importlib" not in error["message"]
    assert code == 3


def test_a_module_name_is_imported_and_local_dependencies_are_found(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "agent.py").write_text(
        "import helper_of_mine\nfrom typing import TypedDict\nfrom langgraph.graph import StateGraph\n"
        "class S(TypedDict, total=False):\n    a: str\n"
        "def n(s): return {'a': helper_of_mine.WORD + __name__}\n"
        "graph = StateGraph(S).add_node(n).set_entry_point('n').compile()\n"
    )
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "helper_of_mine.py").write_text("WORD = 'found '\n")

    with graph_host(
        tmp_path, {"g": {"path": "app.agent:graph", "description": "d"}}, paths=[str(tmp_path / "libs")]
    ) as host:
        assert host.wait_ready()["graphs"] == ["g"]
        assert host.run("g", {}).values == {"a": "found app.agent"}


def test_a_factory_may_take_the_server_runtime(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(
        "from typing import TypedDict\nfrom langchain_core.runnables import RunnableConfig\n"
        "from langgraph.graph import StateGraph\nfrom langgraph_sdk.runtime import ServerRuntime\n"
        "class S(TypedDict, total=False):\n    a: list\n"
        "async def make(runtime: ServerRuntime, config: RunnableConfig):\n"
        "    found = runtime.execution_runtime\n"
        "    seen = [runtime.access_context, found and found.context, config['configurable']['user_id']]\n"
        "    def n(s): return {'a': seen}\n"
        "    return StateGraph(S).add_node(n).set_entry_point('n')\n"
    )
    with graph_host(tmp_path, {"g": "./graphs.py:make"}) as host:
        host.wait_ready()
        run = host.run("g", {}, context={"k": 1}, config={"configurable": {"user_id": "u"}})

    assert run.values == {"a": ["threads.create_run", {"k": 1}, "u"]}


FORMS = """
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph_sdk.runtime import ServerRuntime
class S(TypedDict, total=False):
    a: str
def builder(config=None):
    word = "none" if config is None else type(config).__name__ + str("thread_id" in config["configurable"])
    def n(s): return {"a": word}
    return StateGraph(S).add_node(n).set_entry_point("n")
compiled, uncompiled = builder().compile(), builder()
def nothing(): return builder()
async def nothing_async(): return builder().compile()
def bare(anything): return builder(anything)
def as_config(c: RunnableConfig): return builder(c)
def as_dict(d: dict): return builder(d)
def as_any_dict(d: dict[str, Any]): return builder(d)
def optional(config=None): return builder(config)
def keyword(*, config: RunnableConfig): return builder(config)
def both(config: RunnableConfig, runtime: ServerRuntime): return builder(config)
def both_turned(*, runtime: ServerRuntime, config: RunnableConfig): return builder(config)
@contextmanager
def managed(config): yield builder(config)
@asynccontextmanager
async def managed_async(): yield builder()
class Callable:
    def __call__(self, config): return builder(config)
instance = Callable()
"""
WITHOUT = ("compiled", "uncompiled", "nothing", "nothing_async", "managed_async")
WITH = (
    "bare", "as_config", "as_dict", "as_any_dict", "optional", "keyword", "both", "both_turned", "managed",
    "instance",
)  # fmt: skip


def test_a_graph_may_be_given_in_many_forms(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text(FORMS)
    graphs = {name: f"./forms.py:{name}" for name in (*WITHOUT, *WITH)}
    with graph_host(tmp_path, graphs) as host:
        host.wait_ready()
        seen = {name: host.run(name, {}).values["a"] for name in graphs}

    assert seen == {**dict.fromkeys(WITHOUT, "none"), **dict.fromkeys(WITH, "dictTrue")}


def test_a_langgraph_that_is_too_old_is_refused_by_name(tmp_path: Path) -> None:
    metadata = tmp_path / "langgraph-0.6.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: langgraph\nVersion: 0.6.1\n")

    with graph_host(tmp_path, {"g": "./g.py:g"}) as host:
        error = host.wait_ready()["error"]

    assert error["step"] == "environment"
    assert "1.0.10" in error["message"]
    assert "0.6.1" in error["message"]


# Inspection


def test_inspection_describes_every_graph_and_exits() -> None:
    graphs = {
        "nested": {"path": "./graphs.py:nested", "description": "two floors"},
        "deep": "./graphs.py:deep",
        "shows_context": "./graphs.py:shows_context",
        "speaks": "./graphs.py:speaks",
        "functional": "./graphs.py:functional",
        "managed_factory": "./graphs.py:managed_factory",
    }
    with graph_host(HOSTED, graphs, inspect=True) as host:
        ready = host.wait_ready()
        code = host.process.wait()

    assert code == 0
    assert ready["versions"]["python"] == sys.version.split()[0]
    found = ready["graphs"]
    assert set(found) == set(graphs)
    nested = found["nested"]
    assert nested["description"] == "two floors"
    flat = nested["drawings"]["0"]
    assert flat["nodes"] == [
        {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
        {"id": "two", "type": "runnable", "data": {"name": "two"}},
        {"id": "child", "type": "runnable", "data": {"name": "child"}},
        {"id": "__end__"},
    ]
    assert {"source": "__start__", "target": "two"} in flat["edges"]
    assert "child:one" in [node["id"] for node in nested["drawings"]["all"]["nodes"]]
    assert set(found["deep"]["drawings"]) == {"0", "1", "2", "all"}
    assert set(nested["schemas"]) == {
        "graph_id", "input_schema", "output_schema", "state_schema", "config_schema", "context_schema",
    }  # fmt: skip
    assert set(nested["schemas"]["state_schema"]["properties"]) == {"text", "log"}
    assert set(nested["subgraphs"]) == {"child"}
    assert set(found["deep"]["subgraphs"]) == {"outer", "outer|inner"}
    context = found["shows_context"]["schemas"]["context_schema"]
    assert set(context["properties"]) == {"model"}
    assert found["shows_context"]["schemas"]["config_schema"] == context
    assert found["speaks"]["schemas"]["input_schema"]["properties"]["messages"]


def test_inspection_goes_on_when_a_factory_makes_no_graph() -> None:
    graphs = {name: ALL[name] for name in ("failing_factory", "wrong_factory", "steps")}
    with graph_host(HOSTED, graphs, inspect=True) as host:
        found = host.wait_ready()["graphs"]
        assert host.process.wait() == 0

    assert set(found) == set(graphs)
    assert "RuntimeError" in found["failing_factory"]["error"]
    assert "NotAGraph" in found["wrong_factory"]["error"]
    assert found["failing_factory"]["drawings"] == {"all": {"nodes": [], "edges": []}}
    assert "error" not in found["steps"]


# Output


def test_what_a_node_prints_and_logs_is_a_line_of_its_run(host: HostProcess) -> None:
    run = host.run("says", {})

    assert [(line["logger"], line["message"]) for line in run.logs] == [
        ("stdout", "printed"),
        ("stderr", "to stderr"),
        ("project", "logged 1"),
        ("stdout", "bell\\x07 and a half line"),
    ]


def test_a_node_that_prints_without_end_is_cut_off() -> None:
    with graph_host(HOSTED, {"says_much": ALL["says_much"]}) as host:
        host.wait_ready()
        run = host.run("says_much", {})

    assert len(run.logs) < 10_002
    assert max(len(line["message"]) for line in run.logs) <= 8 * 1024


# The process


def test_it_answers_pings_while_nodes_work(own_host: HostProcess) -> None:
    own_host.start("sleeps", {}, stream_mode=["custom"])
    own_host.send(frames.PING, frames.NOBODY, b"")

    own_host.read_until(lambda: own_host.pongs == 1)


def test_it_says_which_runs_it_executes(own_host: HostProcess) -> None:
    begun, unknown = own_host.start("sleeps", {}), Run()
    asked = [begun.id.hex, unknown.id.hex]
    own_host.send(frames.CHECK, frames.NOBODY, json.dumps(asked).encode())
    own_host.read_until(lambda: bool(own_host.checks))

    assert own_host.checks == [[begun.id.hex]]


def test_functions_of_the_standard_library_that_a_node_replaces_are_not_what_later_runs_use(
    own_host: HostProcess,
) -> None:
    own_host.run("patches", {"text": "functions"})

    assert own_host.run("steps", {"text": "b"}).values["text"] == "b"


def test_runs_end_also_where_a_node_has_taken_all_modules_away(own_host: HostProcess) -> None:
    own_host.run("patches", {"text": "modules"})

    assert own_host.run("steps", {"text": "b"}).outcome is not None
    own_host.send(frames.CHECK, frames.NOBODY, b"[]")
    own_host.read_until(lambda: own_host.checks == [[]])


@pytest.mark.parametrize(
    ("harmed", "damage"),
    [("files", "a node lowered the limit of open files"), ("modules", "a node removed loaded modules")],
)
def test_a_host_that_a_node_made_useless_says_so_when_the_run_ends(
    own_host: HostProcess, harmed: str, damage: str
) -> None:
    own_host.run("steps", {"text": "a"})
    assert own_host.pongs == 0

    own_host.run("patches", {"text": harmed})
    own_host.read_until(lambda: own_host.pongs > 0)
    assert own_host.condition == {"queued": 0, "starved": [], "damage": damage}


def test_it_says_how_many_nodes_wait_for_a_thread() -> None:
    graphs = {"sleeps_in_thread": ALL["sleeps_in_thread"]}
    with graph_host(HOSTED, graphs, arguments=["--threads", "1"]) as host:
        host.wait_ready()
        for _ in range(3):
            host.start("sleeps_in_thread", {})
        asked = 0

        def is_told() -> bool:
            nonlocal asked
            if host.pongs == asked:
                asked += 1
                host.send(frames.PING, frames.NOBODY, b"")
            return host.condition.get("queued") == 2

        host.read_until(is_told)


def test_it_says_where_the_loop_is_blocked(own_host: HostProcess) -> None:
    own_host.start("blocks", {})

    own_host.read_until(lambda: bool(own_host.logs))

    assert "block_loop (graphs.py:" in own_host.logs[0]["message"]


@pytest.mark.parametrize("graph_id", ["sleeps", "blocks"])
def test_it_dies_when_the_runner_hangs_up(own_host: HostProcess, graph_id: str) -> None:
    own_host.start(graph_id, {}, stream_mode=["updates"])
    own_host.read_until(lambda: True)

    own_host.hang_up()

    assert own_host.process.wait(timeout=20) == 1


def test_it_stops_when_told(own_host: HostProcess) -> None:
    own_host.send(frames.STOP, frames.NOBODY, b"")

    assert own_host.process.wait(timeout=20) == 0


def test_a_reader_that_does_not_read_stops_the_graph_not_the_memory(own_host: HostProcess) -> None:
    run = own_host.start("floods", {}, stream_mode=["custom"])
    own_host.read_until(lambda: bool(run.events))
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(_memory_kib(own_host.process.pid, "VmRSS"))
        return len(seen) > 100 and max(seen[-100:]) - min(seen[-100:]) < 1024

    wait_until(stands_still, timeout=60)

    own_host.wait_done(run)

    assert [event["number"] for event in run.named("custom")] == list(range(200_000))
    assert _memory_kib(own_host.process.pid, "VmHWM") < 250 * 1024


def _memory_kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


# What a project may do when it is imported

HEAD = """
import asyncio
import os
import threading
import time
from typing import TypedDict
{before}
from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    text: str


def of(node):
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()

"""
OWN_LOOP = """
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
threading.Thread(target=loop.run_forever, daemon=True).start()


async def answer():
    return {"text": "b"}


graph = of(lambda state: asyncio.run_coroutine_threadsafe(answer(), loop).result())
"""
SLEEPS = """
time.sleep(0.5)


def node(state):
    time.sleep(0.01)
    return {"text": "b"}


graph = of(node)
"""


def ready_of(directory: Path, text: str, *, before: str = "") -> tuple[dict[str, Any], Run | None]:
    """What a host says of a project, and how its run ends if there can be one."""
    (directory / "project.py").write_text(HEAD.format(before=before) + text)
    with graph_host(directory, {"graph": "./project.py:graph"}) as host:
        ready = host.wait_ready()
        return ready, None if "error" in ready else host.run("graph", {"text": "a"})


@pytest.mark.parametrize(
    ("text", "before"),
    [
        pytest.param(OWN_LOOP, "", id="has a loop of its own"),
        pytest.param(SLEEPS, "", id="takes its time"),
        pytest.param(SLEEPS, "from gevent import monkey; monkey.patch_all(thread=False)", id="gevent"),
    ],
)
def test_a_project_may_do_much_when_it_is_imported(tmp_path: Path, text: str, before: str) -> None:
    _, run = ready_of(tmp_path, text, before=before)

    assert run is not None
    assert run.values == {"text": "b"}


def test_a_project_that_replaces_threads_is_refused_with_the_reason(tmp_path: Path) -> None:
    ready, _ = ready_of(tmp_path, SLEEPS, before="from gevent import monkey; monkey.patch_all()")

    assert ready["error"]["step"] == "load"
    assert "monkey.patch_all()" in ready["error"]["message"]


@pytest.mark.parametrize("module", ["langgraph.py", "langgraph/__init__.py"])
def test_a_project_with_a_langgraph_of_its_own_is_refused_with_the_reason(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).touch()
    ready, _ = ready_of(tmp_path, SLEEPS)

    assert ready["error"]["step"] == "environment"
    assert "module of the same name" in ready["error"]["message"]
