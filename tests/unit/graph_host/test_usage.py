"""Token usage of a run's model calls, summed by model across subgraphs and threads."""

from __future__ import annotations

import pytest

from tests.support.hosts import HostProcess, Run

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
