"""Runs of the kitchen's counting graph: each step adds its number to the state and to a file of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parents[1] / "projects" / "kitchen"
LIVE = ("pending", "running")


def body(thread_id: str, steps: int, seconds: float, **more: Any) -> dict[str, Any]:
    """Return the request body of a run with this many steps."""
    return {
        "assistant_id": "counts",
        "input": {"n": steps, "seconds": seconds, "file": f"notes-{thread_id}"},
        "durability": "sync",
        **more,
    }


def start(stack: Stack, count: int, steps: int, seconds: float) -> list[str]:
    """Start runs, each on a new thread. Returns the thread ids."""
    threads = new_threads(stack, count)
    start_on(stack, threads, steps, seconds)
    return threads


def new_threads(stack: Stack, count: int) -> list[str]:
    sdk = stack.sdk("kitchen")
    return [sdk.threads.create()["thread_id"] for _ in range(count)]


def start_on(stack: Stack, threads: list[str], steps: int, seconds: float) -> None:
    """Start a run on each of these threads."""
    for thread_id in threads:
        path = f"/d/kitchen/threads/{thread_id}/runs"
        stack.client.post(path, json=body(thread_id, steps, seconds)).raise_for_status()


def rows(stack: Stack, where: str = "true", **values: Any) -> list[dict[str, Any]]:
    """Return rows of `run` as dicts, ordered by id."""
    with psycopg.connect(stack.database_url, row_factory=dict_row) as conn:
        return conn.execute(f"SELECT * FROM run WHERE {where} ORDER BY run_id", values).fetchall()


def ended(stack: Stack, threads: list[str], timeout: float) -> list[dict[str, Any]]:
    """Wait until all runs of these threads have ended. Returns their rows."""

    def found() -> list[dict[str, Any]]:
        runs = rows(stack, "thread_id = ANY(%(threads)s)", threads=threads)
        return runs if all(run["status"] not in LIVE for run in runs) else []

    return wait_until(found, timeout, what="all runs to end")


def check_whole(
    stack: Stack, threads: list[str], steps: int, *, deaths: int = 0, timeout: float = 60
) -> list[dict[str, Any]]:
    """Check that each thread's run succeeds, has every step in its state once, and lost at most `deaths` attempts.

    Returns the runs' rows.
    """
    runs = ended(stack, threads, timeout)
    assert [run["status"] for run in runs] == ["success"] * len(threads)
    assert max(run["deaths"] for run in runs) <= deaths
    sdk = stack.sdk("kitchen")
    for thread_id in threads:
        assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(steps))
    return runs


def noted(stack: Stack, thread_id: str) -> list[int]:
    """Return the step numbers that the graph wrote to a thread's file."""
    (home,) = stack.data_dir.glob("revisions/*/home")
    return [int(line) for line in (home / f"notes-{thread_id}").read_text().split()]
