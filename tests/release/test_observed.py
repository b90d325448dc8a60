"""Monitoring with an operator's own tools: traces at a collector, workers in Celery's tools and in Flower."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.support.collector import Collector, Seen, collecting
from tests.support.hosted import HOSTED
from tests.support.receiver import Receiver, receiving
from tests.support.stack import Stack, free_port
from tests.support.waiting import wait_until

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GRAPHS = """
from typing import Any, TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    parent: Any
    done: bool

def first(state: State, config: RunnableConfig) -> State:
    return {"parent": config["configurable"].get("__otel_traceparent__")}

def second(state: State) -> State:
    return {"done": True}

graph = StateGraph(State).add_sequence([first, second]).add_edge(START, "first").compile(name="steps")
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def observed(collector: Collector) -> Iterator[Stack]:
    """A platform that exports spans and accepts Celery's remote control."""
    watched = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "RUNYARD_CELERY_CONTROL": "true",
        "RUNYARD_ALLOW_HTTP": "true",
        "RUNYARD_ALLOWED_ADDRESSES": "127.0.0.1",
    }
    with Stack(env=watched) as stack:
        yield stack


@pytest.fixture(scope="module")
def deployed(observed: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("observed")
    (folder / "graphs.py").write_text(GRAPHS)
    shutil.copy(HOSTED / "calls.py", folder)
    described = {
        "dependencies": ["."],
        "graphs": {"steps": "./graphs.py:graph", "calls": "./calls.py:calls"},
        "env": {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"},
    }
    (folder / "langgraph.json").write_text(json.dumps(described))
    return observed.deploy(folder, name="observed")


def test_a_run_is_one_trace_from_the_request_to_its_nodes_and_its_webhook(
    observed: Stack, deployed: str, collector: Collector
) -> None:
    receiver: Receiver
    with receiving() as receiver:
        answer = observed.client.post(
            f"/d/{deployed}/runs/wait",
            json={"assistant_id": "steps", "input": {}, "webhook": receiver.url},
            headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
        )
        assert answer.status_code == 200, answer.text
        call = wait_until(lambda: receiver.calls, 20)[0]
    run_id = call.document["run_id"]

    def spans() -> dict[str, Any]:
        return {span.name: span for span in collector.of_run(run_id)}

    wait_until(lambda: {"run steps", "attempt 1", "node second"} <= spans().keys(), 20)
    found = spans()
    request, run = found["POST /d/<deployment>/runs/wait"], found["run steps"]
    attempt = found["attempt 1"]
    assert {span.trace_id for span in found.values()} == {TRACE}
    assert [span.parent_id for span in (request, run, attempt, found["wait"])] == [
        CALLER,
        request.span_id,
        run.span_id,
        run.span_id,
    ]
    assert {found[name].parent_id for name in ("node first", "node second")} == {attempt.span_id}
    times = [run, found["wait"], attempt, found["node first"], found["node second"]]
    assert [span.started_ns for span in times] == sorted(span.started_ns for span in times)
    assert not any(span.has_failed for span in found.values())
    assert answer.json()["parent"] == f"00-{TRACE}-{attempt.span_id}-01", "the graph's own spans go below"
    assert call.headers["Traceparent"] == f"00-{TRACE}-{run.span_id}-01"
    assert {request.resource["runyard.process"], run.resource["runyard.process"]} == {"web", "worker"}


def test_model_and_tool_calls_are_within_their_nodes(
    observed: Stack, deployed: str, collector: Collector
) -> None:
    run, request = run_of(observed, deployed, "tool"), "POST /d/<deployment>/runs/wait"
    wait_until(lambda: {request, "run calls"} <= {span.name for span in collector.of_run(run)}, 20)

    spans = {span.span_id: span for span in collector.of_run(run)}

    def path(span: Seen) -> str:
        around = spans.get(span.parent_id)
        return f"{path(around)}/{span.name}" if around else span.name

    run_path = f"{request}/run calls"
    tool_path = f"{run_path}/attempt 1/node act/execute_tool look"
    assert sorted(map(path, spans.values())) == [
        request,
        run_path,
        f"{run_path}/attempt 1",
        f"{run_path}/attempt 1/node act",
        tool_path,
        *[f"{tool_path}/chat model-1"] * 2,
        f"{run_path}/wait",
    ]
    (tool,) = [span for span in spans.values() if span.name == "execute_tool look"]
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"word": "sea"}


def test_a_killed_host_loses_only_the_spans_of_calls_in_progress(
    observed: Stack, deployed: str, collector: Collector
) -> None:
    run = run_of(observed, deployed, "dies")
    wait_until(lambda: any(span.name == "run calls" for span in collector.of_run(run)), 20)

    spans = collector.of_run(run)
    attempts = [span.span_id for span in spans if span.name.startswith("attempt")]
    nodes = [span for span in spans if span.name == "node act"]
    assert [node.parent_id for node in nodes] == attempts
    assert [node.has_failed for node in nodes] == [True, False]
    chats = [span.parent_id for span in spans if span.name == "chat model-1"]
    assert chats == [node.span_id for node in nodes]


def run_of(stack: Stack, deployment: str, how: str) -> str:
    """Run the graph of calls and return the run's id."""
    body = {"assistant_id": "calls", "input": {"how": how}}
    answer = stack.client.post(f"/d/{deployment}/runs/wait", json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["Content-Location"].rpartition("/")[2]


def test_celerys_tools_show_the_workers(observed: Stack) -> None:
    for asked in (["status"], ["inspect", "ping"]):
        wait_until(lambda asked=asked: answer_to(observed, *asked), 60)


def test_workers_answer_celerys_tools_again_after_their_connection_for_them_was_lost(observed: Stack) -> None:
    with redis.Redis.from_url(observed.redis_url) as server:
        assert server.client_kill_filter(_type="pubsub") >= 2
    wait_until(lambda: answer_to(observed, "inspect", "ping"), 60)


def test_flower_shows_the_workers(observed: Stack) -> None:
    port = free_port()
    process = subprocess.Popen(
        command("flower", f"--port={port}", "--address=127.0.0.1"),
        cwd=Path(__file__).parents[2],
        env={**tools_environment(observed), "FLOWER_UNAUTHENTICATED_API": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def workers() -> dict[str, Any]:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/api/workers?refresh=1", timeout=20)
            except httpx.HTTPError:
                return {}
            return answer.json() if answer.status_code == 200 else {}

        found = wait_until(lambda: (seen := workers()) and len(seen) >= 2 and seen, 60)
        assert {name.partition("@")[0] for name in found} == {"runner", "builder"}

        def reported() -> set[str]:
            """Return the workers whose events have arrived."""
            answer = httpx.get(f"http://127.0.0.1:{port}/workers?json=1", timeout=20)
            rows = answer.json()["data"] if answer.status_code == 200 else []
            return {row["hostname"].partition("@")[0] for row in rows if row["status"]}

        wait_until(lambda: reported() == {"runner", "builder"}, 30)
    finally:
        process.terminate()
        process.wait(20)


def test_a_builder_that_an_operator_drained_consumes_no_builds_until_it_is_resumed(observed: Stack) -> None:
    def builders() -> list[str]:
        rows = observed.client.get("/v2/workers").json()["workers"]
        return [row["id"] for row in rows if row["kind"] == "builder"]

    def consumes_builds() -> bool:
        return "'name': 'builds'" in celery(observed, "inspect", "active_queues").stdout

    (builder,) = wait_until(builders, 60)
    wait_until(consumes_builds, 60)
    assert observed.runyard("workers", "drain", builder).returncode == 0
    wait_until(lambda: not consumes_builds(), 60)
    assert observed.runyard("workers", "resume", builder).returncode == 0
    wait_until(consumes_builds, 60)


def answer_to(stack: Stack, *arguments: str) -> bool:
    """Whether both workers answer a Celery command."""
    done = celery(stack, *arguments)
    return done.returncode == 0 and {"runner@", "builder@"} <= set(re.findall(r"\w+@", done.stdout))


def celery(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=Path(__file__).parents[2],
        env=tools_environment(stack),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "workers.app", *arguments]


def tools_environment(stack: Stack) -> dict[str, str]:
    return {**os.environ, "REDIS_URL": stack.redis_url, "RUNYARD_CELERY_CONTROL": "true"}
