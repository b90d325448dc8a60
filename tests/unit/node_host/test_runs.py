"""Runs of JavaScript graphs: loading, outcomes, interrupts, cancellation, context and the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess, Run
from tests.support.node_hosts import PROJECT, node_host
from workers.graph_host import frames

HI = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"text": "a"}
EXAMPLE = "8b3f7a52-6a7e-4d8c-9a53-0f0f6a4f1c11"
MEANING = PROJECT.parent / "meaning_typescript" / "agent.ts"


def test_it_tells_the_versions_of_its_libraries(host: HostProcess) -> None:
    assert host.ready["versions"].keys() == {"node", "langgraph", "core", "checkpoint"}
    assert host.ready["versions"]["langgraph"] == "1.7.3"


def test_messages_have_the_fields_of_python(host: HostProcess) -> None:
    run = host.run("echo", HI)

    assert run.answer == run.named("values")[-1] == run.values
    *_, answer = run.values["messages"]
    assert answer.pop("id")
    assert answer == {
        "content": "echo hi", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": None,
    }  # fmt: skip


@pytest.mark.parametrize("graph_id", ["steps", "builder", "promised", "wrapped"])
def test_it_loads_each_kind_of_export(host: HostProcess, graph_id: str) -> None:
    run = host.run(graph_id, TEXT)

    assert run.outcome["status"] == "success"
    assert run.values["log"][0] == "one"


def test_a_function_makes_a_graph_for_each_use_from_its_config(host: HostProcess) -> None:
    for wish in ("tea", "milk"):
        run = host.run("made", TEXT, config={"configurable": {"wish": wish}})
        assert run.values["log"] == [wish]

    run = host.run("wrong", TEXT)
    assert run.outcome["error"] == {
        "error": "NotAGraph", "message": "graph 'wrong': String is not a graph",
    }  # fmt: skip


def test_a_function_that_makes_a_graph_sees_the_purpose_and_the_context_of_a_run(
    thread: Checkpointed,
) -> None:
    thread.run("tells_openings", TEXT, context={"tenant": "a"})
    thread.query("state", "tells_openings", context={"tenant": "a"})
    updated = thread.query("update", "tells_openings", supersteps=[[{"values": {}, "as_node": "tell"}]])
    log = thread.run("tells_openings", TEXT).values["log"]

    assert "refused" not in updated
    assert log[-4:] == [
        ["threads.create_run", {"tenant": "a"}],
        ["threads.read", None],
        ["threads.update", None],
        ["threads.create_run", "none"],
    ]


def test_an_unknown_graph_is_refused(host: HostProcess) -> None:
    run = host.run("nowhere", TEXT)

    assert run.outcome["error"]["error"] == "GraphNotFound"
    assert run.outcome["unchanged"]


def test_a_failure_is_the_runs_error_and_its_log_names_the_line_of_the_source(host: HostProcess) -> None:
    run = host.run("fails", TEXT)

    assert run.outcome["status"] == run.outcome["thread_status"] == "error"
    assert run.outcome["error"] == run.named("error")[0] == {"error": "Broken", "message": "it broke"}
    assert run.answer == {"__error__": run.outcome["error"]}
    assert run.outcome["state"]["next"] == ["fail"]
    (log,) = run.logs
    assert log["level"] == "ERROR"
    first, second, third = log["message"].split("\n")
    assert (first, second) == ("run failed", "Broken: it broke")
    assert "graphs.ts:" in third


def test_an_answer_to_a_node_that_the_graph_lacks_leaves_the_question_open(thread: Checkpointed) -> None:
    thread.run("asks_twice", TEXT)
    refused = thread.run("steps", command={"resume": 1})
    assert refused.outcome["error"]["error"] == "MissingNodeError"
    assert "a node that this revision" in refused.outcome["error"]["message"]
    assert refused.outcome["keeps_thread"]
    assert thread.run("asks_twice", command={"resume": 1}).outcome["status"] == "success"


def test_both_interrupts_of_a_node_wait_one_after_the_other(thread: Checkpointed) -> None:
    asked = thread.run("asks_twice", TEXT)
    again = thread.run("asks_twice", command={"resume": 1})
    done = thread.run("asks_twice", command={"resume": 2})

    for run, value in ((asked, "first?"), (again, "second?")):
        state = run.outcome["state"]
        assert run.outcome["thread_status"] == "interrupted"
        assert [item["value"] for item in state["interrupts"]] == [value]
        assert state["next"] == ["first"]
        (interrupts,) = run.outcome["interrupts"].values()
        assert interrupts == state["interrupts"]
        assert run.answer["__interrupt__"] == [{**interrupts[0], "response_schema": None}]
        assert run.answer["text"] == "a"
    assert done.outcome["thread_status"] == "idle"
    assert done.values["log"] == [1, 2]


def test_interrupts_of_parallel_nodes_share_an_event_and_are_answered_by_id(thread: Checkpointed) -> None:
    asked = thread.run("parallels", TEXT, stream_mode=["values", "updates"])

    classic = [name for name in asked.names if not name.startswith("~")]
    assert classic == ["values", "updates", "updates", "values"]
    interrupts = asked.named("updates")[-1]["__interrupt__"]
    assert {item["value"] for item in interrupts} == {"left?", "right?"}
    assert asked.named("values")[-1] == {"text": "a", "log": ["middle"], "__interrupt__": interrupts}
    assert sorted(asked.outcome["state"]["next"]) == ["left", "right"]

    left = next(item["id"] for item in interrupts if item["value"] == "left?")
    one = thread.run(
        "parallels", command={"resume": {left: "l"}}, strict_resume=True, stream_mode=["updates", "tasks"]
    )
    classic = [(name, next(iter(data))) for name, data in one.events if not name.startswith("~")]
    begun, replayed = ("tasks", "id"), ("updates", "middle")
    assert classic[:4] == [begun, begun, begun, replayed], "as of Python graphs"
    assert [item["value"] for item in one.outcome["state"]["interrupts"]] == ["right?"]
    assert one.outcome["state"]["next"] == ["right"]

    refused = thread.run("parallels", command={"resume": {left: "l"}}, strict_resume=True)
    assert refused.outcome["error"]["error"] == "UnknownInterruptError"
    assert refused.outcome["keeps_thread"]

    done = thread.run("parallels", command={"resume": "r"})
    assert done.values["log"] == ["l", "middle", "r", "last"]
    assert done.outcome["thread_status"] == "idle"


def test_one_value_does_not_answer_several_interrupts(thread: Checkpointed) -> None:
    thread.run("parallels", TEXT)

    refused = thread.run("parallels", command={"resume": "which?"})

    assert refused.outcome["error"]["error"] == "RuntimeError"
    assert "you must specify the interrupt id" in refused.outcome["error"]["message"]
    assert [item["value"] for item in refused.outcome["state"]["interrupts"]] == ["left?", "right?"]


def test_open_and_answered_interrupts_are_events_of_every_run(thread: Checkpointed) -> None:
    asked = thread.run("asks_twice", TEXT)
    answered = thread.run("asks_twice", command={"resume": 1})

    (name, params), *_ = [event for event in asked.events if event[0].startswith("~")]
    method, ns, tail, _ = json.loads(name[1:])
    id = params["data"]["interrupt_id"]
    assert (method, ns, tail) == ("input.requested", [], f"input||{id}")
    assert params["data"]["value"] == "first?"
    assert answered.events[0][0].startswith('~["input.answered"')
    assert answered.events[0][1]["data"] == {"interrupt_ids": [id]}


def test_a_breakpoint_stops_and_goes_on_without_input(thread: Checkpointed) -> None:
    stopped = thread.run("steps", TEXT, interrupt_before=["two"], stream_mode=["values", "updates"])

    assert stopped.named("updates") == [{"one": {"log": ["one"]}}, {"__interrupt__": []}]
    assert stopped.named("values") == [{"text": "a", "log": []}, {"text": "a", "log": ["one"]}]
    assert stopped.outcome["thread_status"] == "interrupted"
    assert stopped.outcome["state"]["next"] == ["two"]

    done = thread.run("steps", command={"resume": None, "update": None, "goto": None})
    assert done.values["log"] == ["one", "two", "three"]


def test_a_command_goes_to_a_node_and_updates_the_state(thread: Checkpointed) -> None:
    thread.run("steps", TEXT)

    run = thread.run("steps", command={"goto": "three", "update": {"text": "b"}})
    sent = thread.run("steps", command={"goto": {"node": "three", "input": {"text": "c"}}})

    assert run.values == {"text": "b", "log": ["one", "two", "three", "three"]}
    assert sent.values["log"][-2:] == ["three", "three"]


def test_a_resume_of_a_thread_without_state_fails(thread: Checkpointed) -> None:
    run = thread.run("asks_twice", command={"resume": 1})

    assert run.outcome["error"]["error"] == "EmptyInputError"


def test_a_cancelled_run_ends_and_keeps_its_state(thread: Checkpointed) -> None:
    run = thread.start("sleeps", TEXT, stream_mode=["custom"])
    thread.host.read_until(lambda: bool(run.events))

    thread.host.cancel(run)
    thread.host.wait_done(run)

    assert run.outcome["status"] == "cancelled"
    assert run.outcome["state"]["next"] == ["sleep"]
    assert run.answer == run.values == {"text": "a", "log": []}
    assert not run.logs


def test_a_node_that_goes_on_after_its_run_changes_nothing(thread: Checkpointed) -> None:
    run = thread.start("swallows", TEXT, stream_mode=["custom"])
    thread.host.read_until(lambda: bool(run.events))
    thread.host.cancel(run)
    thread.host.wait_done(run)
    stored = len(thread.stored)

    thread.host.read_until(lambda: any(log["message"] == "still here" for log in thread.host.logs))

    assert run.outcome["status"] == "cancelled"
    assert len(thread.stored) == stored
    assert not run.logs


def test_context_is_passed_when_there_is_any_and_checked_by_its_schema(host: HostProcess) -> None:
    given = host.run("looks", TEXT, context={"depth": 1}, config={"configurable": {"colour": "red"}})
    without = host.run("looks", TEXT)
    wrong = host.run("checks_context", TEXT, context={"depth": "deep"})

    assert given.values["log"] == [{"depth": 1}, "red"]
    assert without.values["log"] == [None, None]
    assert wrong.outcome["error"]["error"] == "ZodError"


def test_the_store_asks_the_runner_in_batches(host: HostProcess) -> None:
    asked: list[dict[str, Any]] = []
    item = {"namespace": ["a"], "key": "key", "value": {"n": 1}, "score": None}
    times = {"created_at": "2026-01-01T00:00:00+00:00", "updated_at": "2026-01-01T00:00:00+00:00"}
    results = {"put": None, "get": {**item, **times}, "search": [{**item, **times}], "namespaces": [["a"]]}

    def answer(run: Run, kind: int, parts: list[bytes]) -> list[bytes] | None:
        head = json.loads(parts[0])
        if kind != frames.ASK or head["op"] != "store":
            return None
        asked.extend(head["ops"])
        return [json.dumps([results[op["op"]] for op in head["ops"]]).encode()]

    host.answer = answer
    run = host.run("stores", TEXT)

    assert run.outcome["error"] is None
    assert run.values["log"] == [{"n": 1}, True, 1, [["a"]]]
    assert [op["op"] for op in asked] == ["put", "get", "search", "namespaces", "put"]
    assert asked[0] == {
        "op": "put", "namespace": ["a"], "key": "key", "value": {"n": 1}, "ttl": None, "index": None,
    }  # fmt: skip
    assert asked[3]["matches"] == [["prefix", ["a"]]]
    assert asked[-1]["value"] is None


def test_a_run_is_traced_to_the_project_that_its_caller_names(host: HostProcess, own_host: Any) -> None:
    variables = {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_API_KEY": "key",
        "LANGSMITH_ENDPOINT": "http://127.0.0.1:9",
    }
    with own_host("traces", variables=variables) as tracing:
        for tracer, seen in (
            (None, [None, None]),
            ({"project_name": "theirs"}, ["theirs", None]),
            ({"project_name": None, "example_id": EXAMPLE}, [None, EXAMPLE]),
        ):
            assert tracing.run("traces", {}, langsmith_tracer=tracer).values["log"] == [seen]
    assert host.run("traces", {}, langsmith_tracer={"project_name": "theirs"}).values["log"] == []


def test_a_traced_run_reports_the_begin_and_end_of_its_nodes(host: HostProcess) -> None:
    run = host.run("steps", TEXT, traced=True)

    assert [(node["name"], node["ended"]) for node in run.nodes] == [
        (name, ended) for name in ("one", "two", "three") for ended in (False, True)
    ]


def test_a_durable_run_keeps_the_spans_of_its_nodes(thread: Checkpointed) -> None:
    run = thread.run("steps", TEXT)

    spans = run.outcome["spans"]["spans"]
    assert [span["name"] for span in spans] == ["one", "two", "three"]
    assert all(span["until"] >= span["from"] for span in spans)


def test_model_calls_with_callbacks_of_their_own_count(host: HostProcess) -> None:
    runs = [host.start("spends", TEXT), host.start("spends", TEXT, stream_mode=["events"])]

    for run in runs:
        host.wait_done(run)
        assert run.used == [3, 6, 9]
        assert run.outcome["usage"]["unknown"]["total_tokens"] == 9
        assert run.outcome["node_usage"] == {
            "spend": {"unknown": {"input_tokens": 6, "output_tokens": 3, "total_tokens": 9}}
        }


@pytest.mark.parametrize("model", ["__proto__", "constructor"])
def test_a_model_with_the_name_of_a_property_of_all_objects_counts(host: HostProcess, model: str) -> None:
    for _ in range(2):
        run = host.run("spends", {"kept": model})
        assert run.outcome["usage"] == {model: {"input_tokens": 6, "output_tokens": 3, "total_tokens": 9}}


def test_embeddings_may_be_a_function_of_texts(node_project: Path) -> None:
    shutil.copy(MEANING, node_project / "meaning.ts")
    index = {"dims": 3, "embed": "./meaning.ts:vectors", "fields": ["text"]}
    put = {"op": "put", "namespace": ["a"], "key": "k", "value": {"text": "tea"}, "ttl": None, "index": None}
    search = {"op": "search", "namespace": ["a"], "query": "rain"}
    with node_host(node_project, {"notes": "./meaning.ts:graph"}, store={"index": index}) as host:
        (document,) = host.query({"op": "embed", "graph_id": "notes", "ops": [put, search]})
        stored, found = json.loads(document)
        unreadable = put | {"value": {"text": "unreadable"}}
        (refused,) = host.query({"op": "embed", "graph_id": "notes", "ops": [unreadable]})

    assert stored["vectors"] == [["text", [1.01, 0.01, 0.01]]]
    assert found["near"] == [0.01, 0.01, 1.01]
    assert json.loads(refused)["refused"]["message"] == "this cannot be embedded"
