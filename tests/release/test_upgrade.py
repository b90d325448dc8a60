"""A rolling upgrade: this release works beside a later one on its database, and each continues the other's runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shared.infra import database_version
from tests.support import counting, next_release
from tests.support.counting import KITCHEN, check_whole, rows
from tests.support.reading import Reading
from tests.support.stack import Stack
from tests.support.waiting import wait_until

DRAIN_SECONDS = 1
STEPS, STEP_SECONDS = 12, 0.4


@pytest.fixture(scope="module")
def old() -> Iterator[Stack]:
    """Platform of this release."""
    env = {"RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS), "RUNYARD_LEASE_SECONDS": "60"}
    with Stack(env=env) as stack:
        stack.deploy(KITCHEN, name="kitchen")
        yield stack


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source tree of a later release."""
    return next_release.tree(tmp_path_factory.mktemp("later"))


@contextmanager
def without_its_runner(old: Stack) -> Iterator[None]:
    """Let the old release's runner hand over, and keep it stopped while the block runs. Restarts it afterwards."""
    (leaver, *_) = map(psutil.Process, old.pids("runner"))
    os.kill(old.up_pid, signal.SIGSTOP)  # otherwise it would start a successor at once
    try:
        leaver.terminate()
        wait_until(lambda: not leaver.is_running() or leaver.status() == psutil.STATUS_ZOMBIE, 40)
        yield
    finally:
        os.kill(old.up_pid, signal.SIGCONT)
    wait_until(lambda: set(old.pids("runner")) - {leaver.pid}, 60, what="the old release's runner")


def begun(stack: Stack, threads: list[str]) -> bool:
    return len(rows(stack, "thread_id = ANY(%(t)s) AND status = 'running'", t=threads)) == len(threads)


def read(stack: Stack, threads: list[str]) -> list[Reading]:
    return [Reading(stack.client, f"/d/kitchen/threads/{thread_id}/stream") for thread_id in threads]


def check_read(readings: list[Reading], stack: Stack) -> None:
    """Each thread's stream has reported the end of its run, with ids in order."""
    for reading in readings:
        wait_until(reading.runs_done, 30, what="the end of the run in its stream")
        assert reading.is_in_order()
        reading.close()


def check_cancelled(canceller: Stack, creator: Stack) -> None:
    """Cancel a run through one release that the other release's web process created, on any runner."""
    (thread_id,) = counting.start(creator, 1, 1000, STEP_SECONDS)
    wait_until(lambda: begun(creator, [thread_id]), 60)
    runs = canceller.sdk("kitchen").runs
    (run,) = runs.list(thread_id)
    runs.cancel(thread_id, run["run_id"], wait=True)
    assert runs.get(thread_id, run["run_id"])["status"] == "interrupted"


def test_both_releases_are_alive_on_one_database(old: Stack, later: Path) -> None:
    threads = counting.start(old, 4, STEPS, STEP_SECONDS)
    readings = read(old, threads[:2])
    wait_until(lambda: begun(old, threads), 60, what="runs to be under way while the database is migrated")
    next_release.migrate(old, later)
    assert database_version.applied(old.database_url) == next_release.NUMBER
    assert database_version.is_enough(database_version.applied(old.database_url))
    check_whole(old, threads, STEPS)
    check_read(readings, old)

    with next_release.web_beside(old, later) as new:
        made_by_new = counting.start(new, 3, STEPS, STEP_SECONDS)  # executed by the old runner
        readings = read(old, made_by_new[:1]) + read(new, made_by_new[:1])
        assert {run["attempt"] for run in check_whole(old, made_by_new, STEPS)} == {1}
        check_read(readings, old)

        with next_release.runner_beside(old, later) as runner:
            taken = counting.start(old, 3, STEPS, STEP_SECONDS) + counting.start(new, 3, STEPS, STEP_SECONDS)
            readings = read(new, taken[:2]) + read(old, taken[3:5])
            wait_until(lambda: begun(old, taken), 60)
            with without_its_runner(old):
                alone = counting.start(old, 3, STEPS, STEP_SECONDS)  # for the new runner
                check_whole(new, taken, STEPS)
                check_whole(new, alone, STEPS)
                check_read(readings, old)
                check_cancelled(old, creator=new)
                back = counting.start(new, 3, 3 * STEPS, STEP_SECONDS)
                wait_until(lambda: begun(old, back), 60)
            runner.terminate()
            assert runner.wait(180) == 0
        check_whole(old, back, 3 * STEPS)  # begun by the new runner, ended by the old
        check_cancelled(new, creator=old)
        assert old.cli("list", "--json").returncode == 0

        old.deploy(KITCHEN, name="kitchen")  # old builder, old web
        again = counting.start(new, 2, 3, 0)
        check_whole(old, again, 3)
