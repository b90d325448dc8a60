"""Processes whose wall clocks are a day off work together as ever: stored times are the database's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
DAY = 86_400


@pytest.mark.parametrize("ahead", ["web", "runner"])
def test_runs_are_built_for_created_streamed_and_taken_over(ahead: str) -> None:
    offsets = {name: DAY if name == ahead else -DAY for name in ("web", "runner", "builder")}
    env = {
        "TEST_CLOCKS": " ".join(f"{name}={seconds}" for name, seconds in offsets.items()),
        "RUNYARD_LEASE_SECONDS": "3",
    }
    with Stack(env=env, program="tests.clocks") as stack:
        sdk = stack.sdk(stack.deploy(KITCHEN))
        thread_id = sdk.threads.create()["thread_id"]
        run = sdk.runs.create(thread_id, "counts", input={"n": 8, "seconds": 0.3}, durability="sync")
        wait_until(lambda: len(sdk.threads.get_state(thread_id)["values"].get("log", [])) >= 2, 30)

        stack.kill("runner")

        sdk.runs.join(thread_id, run["run_id"])
        assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(8))
        parts = list(sdk.runs.stream(thread_id, "echo", input={"text": "x"}))
        assert parts[-1].event == "values"
