"""Token usage of a run's model calls, summed by model across subgraphs and threads."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from tests.support.hosts import HostProcess, Run
from workers.graph_host.spans import CallTimes

SMALL = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


def usage(run: Run) -> object:
    return run.outcome["usage"]


@pytest.mark.parametrize("mode", ["values", "messages", "events"])
def test_each_message_counts_once_in_subgraphs_and_threads_too(host: HostProcess, mode: str) -> None:
    run = host.run("consumes", {"text": "a"}, stream_mode=[mode])

    assert usage(run) == {
        "small": SMALL,
        "large": {
            "input_tokens": 20,
            "output_tokens": 40,
            "total_tokens": 60,
            "input_token_details": {"cache_read": 8},
        },
        "unknown": {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11},
    }
    assert run.used == [3, 33, 63, 74], "the sum is reported after each call that counts"
    assert run.outcome["node_usage"] == {
        "ask_in_thread": {"small": SMALL},
        "inner": {
            "large": {"input_tokens": 20, "output_tokens": 40, "total_tokens": 60},
            "unknown": {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11},
        },
    }


def test_a_model_that_two_nodes_call_has_one_sum_by_model_and_one_for_each_node() -> None:
    reports: list[tuple[int, Any]] = []
    calls = CallTimes(None, lambda total: reports.append((total, calls.by_model())))
    for node in ("plan", "act", "plan"):
        run_id = uuid4()
        calls.on_chat_model_start(
            {}, [], run_id=run_id, metadata={"langgraph_checkpoint_ns": f"{node}:1|x:2"}
        )
        message = AIMessage("a", usage_metadata=SMALL, response_metadata={"model": "small"})
        calls.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]), run_id=run_id)

    def times(number: int) -> dict[str, Any]:
        return {"small": {name: number * count for name, count in SMALL.items()}}

    assert reports == [(3, times(1)), (6, times(2)), (9, times(3))]
    assert calls.by_node() == {"plan": times(2), "act": times(1)}


def test_a_run_whose_models_report_nothing_has_no_usage(host: HostProcess) -> None:
    assert usage(host.run("speaks", {"messages": "hi"})) is None


def test_runs_that_fail_or_are_cancelled_have_used_what_they_used_each_apart(host: HostProcess) -> None:
    assert usage(host.run("consumes_and_fails", {})) == {"small": SMALL}

    run = host.start("consumes_and_sleeps", {}, stream_mode=["custom"])
    host.read_until(lambda: ("custom", "asleep") in run.events)
    host.cancel(run)

    assert usage(host.wait_done(run)) == {"small": SMALL}

    runs = [host.start("consumes_and_fails", {}) for _ in range(3)]

    assert [usage(host.wait_done(run)) for run in runs] == [{"small": SMALL}] * 3


def test_it_is_known_how_long_ago_a_model_streamed_its_first_token(host: HostProcess) -> None:
    streamed = host.run("speaks", {"messages": "hi"}, stream_mode=["messages"]).outcome
    silent = host.run("consumes", {"text": "a"}, stream_mode=["messages"]).outcome

    assert streamed["first_token_ago"] >= 0
    assert silent["first_token_ago"] is None
