"""Records of a traced run's model and tool calls. Both hosts send the same ones for the same graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosted import HOSTED
from tests.support.hosts import HostProcess, Run, graph_host
from tests.support.node_hosts import node_host

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SECRET = "s3cret-token"
USAGE = {
    "input_tokens": 5,
    "output_tokens": 7,
    "total_tokens": 12,
    "input_token_details": {"cache_read": 2, "cache_creation": 1},
    "output_token_details": {"reasoning": 3},
}
Started = Callable[..., AbstractContextManager[HostProcess]]


@pytest.fixture(scope="module", params=["python", "javascript"])
def started(request: pytest.FixtureRequest) -> Started:
    """Start a host of the graphs with the given variables."""
    if request.param == "python":
        return lambda **given: graph_host(HOSTED, {name: f"./calls.py:{name}" for name in NAMES}, **given)
    folder: Path = request.getfixturevalue("node_project")
    return lambda **given: node_host(folder, {name: f"./calls.ts:{name}" for name in NAMES}, **given)


NAMES = ("calls", "below")


@pytest.fixture(scope="module")
def plain(started: Started) -> Iterator[HostProcess]:
    with started() as host:
        yield host


@pytest.fixture(scope="module")
def open_hearted(started: Started) -> Iterator[HostProcess]:
    """A host of a deployment that asks for content in its traces."""
    with started(variables={CONTENT: "true", "TOKEN": SECRET}, secrets=["TOKEN", CONTENT]) as host:
        yield host


def traced(host: HostProcess, how: str, graph: str = "calls", **spec: Any) -> Run:
    return host.run(graph, {"how": how}, traced=True, **spec)


def node_of(run: Run, name: str) -> str:
    return next(node["id"] for node in run.nodes if node["name"] == name)


def test_a_model_call_has_its_model_settings_usage_and_no_content(plain: HostProcess) -> None:
    run = traced(plain, "asks")

    (call,) = run.calls
    assert call.pop("until") >= call.pop("from")
    assert call.pop("id")
    assert call == {
        "operation": "chat",
        "within": node_of(run, "act"),
        "name": "model-1",
        "model": "model-1",
        "provider": "model",
        "settings": {"temperature": 0.5, "top_p": 0.9},
        "stop": ["END"],
        "response_model": "model-1-0613",
        "response": "response-1",
        "finish": ["stop"],
        "usage": USAGE,
    }


def test_parallel_and_streamed_calls_are_within_their_node(plain: HostProcess) -> None:
    run = traced(plain, "beside")
    assert [call["within"] for call in run.calls] == [node_of(run, "act")] * 3
    assert len({call["id"] for call in run.calls}) == 3

    (call,) = traced(plain, "streams").calls
    assert call["from"] <= call["first"] <= call["until"]
    assert call["usage"] == USAGE


def test_calls_within_a_tool_are_the_tools(plain: HostProcess) -> None:
    run = traced(plain, "tool")

    in_chain, with_callbacks, look = run.calls
    assert (in_chain["operation"], in_chain["within"]) == ("chat", look["id"])
    # LangChain for JavaScript does not tell a handler which tool makes a call with callbacks of its own.
    assert with_callbacks["within"] == look["within" if "node" in plain.ready["versions"] else "id"]
    assert (look["operation"], look["name"], look["tool_call"]) == ("execute_tool", "look", "call-1")
    assert look["within"] == node_of(run, "act")
    assert "arguments" not in look
    assert "result" not in look


def test_a_call_is_within_the_innermost_node_that_has_a_span(plain: HostProcess) -> None:
    for spec, name in (({"subgraphs": True}, "act"), ({}, "inner")):
        run = traced(plain, "beside", "below", **spec)
        assert {call["within"] for call in run.calls} == {node_of(run, name)}
    run = traced(plain, "beside", stream_mode=["events"])
    assert [call["within"] for call in run.calls] == [None] * 3


def test_a_failed_call_has_its_error_and_a_question_is_none(plain: HostProcess) -> None:
    for how, message in (("fails", "no answer"), ("tool fails", "no such word")):
        (call,) = traced(plain, how).calls
        assert call["error"] in ("ValueError", "TypeError")
        assert call["message"] == message
    (call,) = traced(plain, "tool asks").calls
    assert call["interrupted"]
    assert "error" not in call
    (call,) = traced(plain, "tool refuses").calls
    assert call["error"] in ("tool_error", "TypeError")


def test_a_cancelled_call_ends_with_its_run(plain: HostProcess) -> None:
    run = plain.start("calls", {"how": "waits"}, traced=True, stream_mode=["custom"])
    plain.read_until(lambda: bool(run.events))
    plain.cancel(run)
    plain.wait_done(run)

    (call,) = run.calls
    assert call["error"] in ("cancelled", "CancelledError")


def test_calls_above_the_limit_are_counted_and_dropped(plain: HostProcess) -> None:
    run = traced(plain, "many")

    assert len(run.calls) == 1_001
    assert run.calls[-1] == {"dropped": 20}


def test_a_run_that_is_not_traced_has_no_records(plain: HostProcess) -> None:
    for temporary in (True, False):
        run = plain.run("calls", {"how": "tool"}, temporary=temporary)
        assert (run.calls, run.nodes) == ([], [])


def test_content_is_cut_and_has_no_secrets(open_hearted: HostProcess) -> None:
    (call,) = traced(open_hearted, "asks").calls

    assert json.loads(call["system"]) == [{"type": "text", "content": "Be brief."}]
    history = json.loads(call["input"])
    assert history[-1] == {"role": "user", "parts": [{"type": "text", "content": "What is the sea? ***"}]}
    assert [message["parts"][0]["content"][:10] for message in history[:-1]] == [
        "Question 6",
        "Question 7",
        "Question 8",
    ]
    assert {len(message["parts"][0]["content"]) for message in history[:-1]} == {4_096}
    assert call["cut"]
    (answer,) = json.loads(call["output"])
    assert answer == {
        "role": "assistant",
        "finish_reason": "stop",
        "parts": [
            {"type": "text", "content": "It is water."},
            {"type": "tool_call", "id": "call-1", "name": "look", "arguments": {"word": "sea"}},
        ],
    }
    assert SECRET not in json.dumps(call)


def test_a_text_model_has_its_prompt_and_its_answer(open_hearted: HostProcess) -> None:
    (call,) = traced(open_hearted, "completes").calls

    assert call["operation"] == "text_completion"
    (prompt,), (answer,) = json.loads(call["input"]), json.loads(call["output"])
    assert prompt == {"role": "user", "parts": [{"type": "text", "content": "water?"}]}
    assert (answer["role"], answer["parts"]) == ("assistant", [{"type": "text", "content": "sea"}])


def test_content_of_a_tool_call_is_its_arguments_and_result(open_hearted: HostProcess) -> None:
    look = traced(open_hearted, "tool").calls[-1]

    assert json.loads(look["arguments"]) == {"word": "sea"}
    assert look["result"] == "sea means something"
    assert "cut" not in look


def test_an_unknown_choice_of_content_is_reported_and_means_none(started: Started) -> None:
    with started(variables={CONTENT: "yes"}) as host:
        run = traced(host, "asks")
        host.read_until(lambda: any(CONTENT in line["message"] for line in (*run.logs, *host.logs)))
        assert "input" not in run.calls[0]
