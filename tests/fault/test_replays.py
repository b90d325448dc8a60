"""A replay on the whole platform: it survives kills, no case runs twice, and the deployment's own rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from shared.models import METADATA
from tests.conftest import OUTSIDE
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
RUNS = 30
# Rows about the replay itself, and rows that hold no data of runs.
NOT_OF_RUNS = {"replay", "replay_case", "audit_entry", "log_line", "ended_run"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(env={"RUNYARD_LEASE_SECONDS": "3", **OUTSIDE}) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def rows_of(stack: Stack, deployment_id: str) -> dict[str, Any]:
    """Return a checksum over the rows of a deployment in each table."""
    with psycopg.connect(stack.database_url) as conn:
        return {
            table.name: conn.execute(
                sql.SQL(
                    "SELECT count(*), md5(string_agg(CAST(t AS text), ' ' ORDER BY CAST(t AS text)))"
                    " FROM {} t WHERE {} = %s {}"
                ).format(
                    sql.Identifier(table.name),
                    sql.Identifier("id" if table.name == "deployment" else "deployment_id"),
                    sql.SQL("AND key_id <> 'replay'" if table.name == "daily_usage" else ""),
                ),
                (deployment_id,),
            ).fetchone()
            for table in METADATA.sorted_tables
            if table.name not in NOT_OF_RUNS and ("deployment_id" in table.c or table.name == "deployment")
        }


def count(stack: Stack, statement: str, *values: Any) -> int:
    with psycopg.connect(stack.database_url) as conn:
        row = conn.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]


def past_runs(stack: Stack) -> None:
    """Execute runs on one thread each, two runs of one thread, and a run that answers an interrupt."""
    sdk = stack.sdk("kitchen")

    def execute(_: int) -> None:
        sdk.runs.wait(sdk.threads.create()["thread_id"], "sleeps", input={"seconds": 0.5})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(execute, range(RUNS)))
    thread_id = sdk.threads.create()["thread_id"]
    for _ in range(2):
        sdk.runs.wait(thread_id, "echo", input={"steps": ["in"]})
    thread_id = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread_id, "asks", input={"steps": ["in"]})
    sdk.runs.wait(thread_id, "asks", command={"resume": "yes"})


def test_a_replay_survives_kills_and_leaves_the_deployment_as_it_is(stack: Stack) -> None:
    deployment_id = stack.record("kitchen")["id"]
    replays = f"/v2/deployments/{deployment_id}/replays"
    past_runs(stack)
    unfolded = "SELECT count(*) FROM ended_run WHERE deployment_id = %s"
    wait_until(lambda: count(stack, unfolded, deployment_id) == 0, 60, what="the figures")
    before = rows_of(stack, deployment_id)
    body = {"concurrency": 4, "fail_on": "changed>0, errors>0, diverged>0"}
    replay = stack.client.post(replays, json=body).raise_for_status().json()

    def current() -> dict[str, Any]:
        return stack.client.get(f"{replays}/{replay['id']}").raise_for_status().json()

    for victim in ("runner", "builder", "runner"):  # both lead upkeep in turn
        ended = current()["counts"]["same"]
        wait_until(lambda least=ended + 3: current()["counts"]["same"] >= least, 60)
        stack.kill(victim)
    done = wait_until(lambda: (found := current())["ended_at"] and found, 120)
    assert (done["status"], done["verdict"]) == ("done", "passed"), done
    assert done["counts"] == {
        **dict.fromkeys(done["counts"], 0),
        "total": RUNS + 4,
        "same": RUNS + 4,
    }
    bench_id = count(stack, "SELECT bench_id FROM replay WHERE id = %s", replay["id"])
    assert count(stack, "SELECT count(*) FROM run WHERE deployment_id = %s", bench_id) == RUNS + 4
    assert rows_of(stack, deployment_id) == before

    stack.client.delete(f"{replays}/{replay['id']}").raise_for_status()
    left = "SELECT count(*) FROM deployment WHERE id = %s"
    wait_until(lambda: count(stack, left, bench_id) == 0, 60, what="the removal of the bench")
    assert set(rows_of(stack, str(bench_id)).values()) <= {(0, None)}
    assert rows_of(stack, deployment_id) == before
