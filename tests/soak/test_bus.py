"""Repeated restarts of Redis under load: runners claim new runs soon after each restart, and no run is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.counting import KITCHEN
from tests.support.stack import Stack
from tests.support.waiting import wait_until

RESTARTS = 20
LONG_RUNS = 20
CREATORS = 4
SOON_SECONDS = 15

Made = list[tuple[str, str]]  # thread and run


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


@contextmanager
def load(stack: Stack) -> Iterator[Made]:
    """Create short runs from CREATORS concurrent callers while the block runs. Yields the list of created runs."""
    made: Made = []
    stopped = threading.Event()

    def create() -> None:
        sdk = stack.sdk("kitchen")
        while not stopped.is_set():
            made.append(start(sdk, n=2, seconds=0.2))
            stopped.wait(0.2)

    callers = [threading.Thread(target=create) for _ in range(CREATORS)]
    for caller in callers:
        caller.start()
    try:
        yield made
    finally:
        stopped.set()
        for caller in callers:
            caller.join()


def start(sdk: SyncLangGraphClient, **input: float) -> tuple[str, str]:
    thread_id = sdk.threads.create()["thread_id"]
    return thread_id, sdk.runs.create(thread_id, "counts", input=input, durability="sync")["run_id"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_runners_take_new_work_after_each_restart(stack: Stack, how: signal.Signals) -> None:
    sdk = stack.sdk("kitchen")
    long = [start(sdk, n=100, seconds=1) for _ in range(LONG_RUNS)]
    with load(stack) as made:
        for _ in range(RESTARTS):
            old = stack.kill("valkey", how)
            wait_until(lambda old=old: set(stack.pids("valkey")) - set(old), 30)
            new = start(sdk, n=1, seconds=0)
            wait_until(lambda new=new: sdk.runs.get(*new)["status"] == "success", SOON_SECONDS)

    for run in [*made, *long]:
        wait_until(lambda run=run: sdk.runs.get(*run)["status"] == "success", 240)
    for thread_id, _ in long:
        assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(100))
