"""A deployment that is redeployed under a hundred runs, and one that is deleted under fifty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg

from tests.e2e.test_revisions import App, at_work
from tests.support.stack import Stack
from tests.support.waiting import wait_until

GRAPH = """
import asyncio, operator
from typing import Annotated, TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    seconds: float
    said: Annotated[list[str], operator.add]

async def step(state):
    await asyncio.sleep(state.get("seconds", 0) / 4)
    return {"said": [VERSION]}

builder = StateGraph(State)
for n in range(4):
    builder.add_node(f"step{n}", step)
    builder.add_edge(f"step{n - 1}" if n else "__start__", f"step{n}")
graph = builder.compile()
"""
CONFIG = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
LIVE = ("pending", "running")
GONE_SECONDS = 60


def version(name: str) -> dict[str, str]:
    return {"langgraph.json": json.dumps(CONFIG), "agent.py": f"VERSION = {name!r}\n{GRAPH}"}


def start(sdk: Any, count: int, seconds: float) -> list[Any]:
    threads = [sdk.threads.create()["thread_id"] for _ in range(count)]
    return [sdk.runs.create(thread, "agent", input={"seconds": seconds}) for thread in threads]


def statuses(stack: Stack, app: App) -> dict[str, int]:
    with psycopg.connect(stack.database_url) as conn:
        query = "SELECT status, count(*) FROM run WHERE deployment_id = %s GROUP BY 1"
        return dict(conn.execute(query, (app.id,)).fetchall())


def test_a_hundred_runs_end_where_they_began(stack: Stack) -> None:
    app = App(stack)
    app.deployed(version("v1"))
    sdk = stack.sdk(app.name)
    old = start(sdk, 100, 20)
    wait_until(lambda: statuses(stack, app).get("running", 0) >= 50, 60, what="runs to be under way")

    app.deployed(version("v2"))
    assert any(status in LIVE for status in statuses(stack, app)), "they were under way when it changed hands"
    new = start(sdk, 20, 1)

    wait_until(lambda: set(statuses(stack, app)) == {"success"}, 120, what="all of them to succeed")
    for runs, name in ((old, "v1"), (new, "v2")):
        for run in runs:
            assert sdk.threads.get(run["thread_id"])["values"]["said"] == [name] * 4


def test_a_deployment_goes_with_fifty_runs_and_a_build(stack: Stack) -> None:
    app = App(stack)
    serving = app.deployed(version("v1"))
    sdk = stack.sdk(app.name)
    start(sdk, 50, 300)
    wait_until(lambda: statuses(stack, app).get("running", 0) >= 50, 60, what="runs to be under way")
    building = app.push({**version("v2"), "agent.py": "import time; time.sleep(600)"})
    wait_until(lambda: "loading" in app.build_log(building), 60, what="the graphs to be loaded")
    folders = [stack.data_dir / "revisions" / id for id in (serving, building)]
    folders.append(stack.data_dir / "caches" / app.id)
    assert all(folder.exists() for folder in folders)

    app.call("DELETE", f"/v2/deployments/{app.id}")

    def is_gone() -> bool:
        left = [folder for folder in folders if Path(folder).exists() or at_work(folder)]
        return not left and stack.client.get(f"/v2/deployments/{app.id}").status_code == 404

    wait_until(is_gone, GONE_SECONDS, what="all of it to be gone")
    with psycopg.connect(stack.database_url) as conn:
        for table in (
            "run",
            "thread",
            "revision",
            "assistant",
            "log_line",
            "webhook_delivery",
            "cron",
            "upload",
        ):
            query = f"SELECT count(*) FROM {table} WHERE deployment_id = %s"
            assert conn.execute(query, (app.id,)).fetchone() == (0,), table
