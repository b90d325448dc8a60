"""A platform whose PostgreSQL and Redis are operated by others: silent connections, limits, lost connections.

Its builders are killed midway: the revision reaches an end and nothing is left. So is a replay: it continues, executes
no case twice, and leaves the deployment as it is. These tests need short leases as well.
"""

from __future__ import annotations

import io
import os
import signal
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import psutil
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from cli.client.client import Client
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from cli.machine import embedded
from shared.models import METADATA
from tests.support.broken_link import Link, linked
from tests.support.one_file import write
from tests.support.servers import running
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
OUTCOMES = {200, 503}
CODE = """
import time
from langgraph.graph import START, MessagesState, StateGraph
time.sleep(SECONDS)
graph = StateGraph(MessagesState).add_node("echo", lambda state: {}).add_edge(START, "echo").compile()
"""
BUILD_SECONDS = 90
REPLAYED = 8
TO_REPLAY = {"to": "replay"}
# Rows about a replay itself, and rows that hold no data of runs.
NOT_OF_RUNS = {"replay", "replay_case", "audit_entry", "log_line", "ended_run"}


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitResult]:
    """URL of a Valkey."""
    server = embedded.valkey(tmp_path_factory.mktemp("vk"))
    with running(server):
        yield urlsplit(server.url)


@pytest.fixture(scope="module")
def link(valkey: SplitResult) -> Iterator[Link]:
    """Faulty link between all processes and the Valkey."""
    with linked(Path(valkey.path)) as link:
        yield link


@pytest.fixture(scope="module")
def owner(database: str) -> Iterator[psycopg.Connection]:
    """Connection as the owner of the database server."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE ROLE platform LOGIN")
        owner.execute("CREATE DATABASE platform OWNER platform")
        yield owner
        terminate_all(owner)
        owner.execute("DROP DATABASE platform WITH (FORCE)")
        owner.execute("DROP ROLE platform")


def terminate_all(owner: psycopg.Connection) -> None:
    owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform'")


@pytest.fixture(scope="module")
def stack(link: Link, valkey: SplitResult, database: str, owner: psycopg.Connection) -> Iterator[Stack]:
    host = make_url(database).query["host"]
    env = {
        "DATABASE_URL": f"postgresql://platform@/platform?host={host}",
        "REDIS_URL": f"redis://:{valkey.password}@127.0.0.1:{link.port}/0",
        "RUNYARD_LEASE_SECONDS": "3",
    }
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def test_connections_to_redis_that_fall_silent_are_replaced(stack: Stack, link: Link) -> None:
    sdk = stack.sdk("kitchen")
    thread_id = sdk.threads.create()["thread_id"]

    link.fall_silent()
    parts = list(sdk.runs.stream(thread_id, "counts", input={"n": 3, "seconds": 0.1}, stream_mode="custom"))

    assert [part.data["step"] for part in parts if part.event == "custom"] == [0, 1, 2]
    assert sdk.runs.wait(thread_id, "counts", input={"n": 1, "seconds": 0.1})["log"][-1] == 3


def test_few_connections_to_the_database_make_a_platform_wait_and_no_more(
    stack: Stack, owner: psycopg.Connection
) -> None:
    sdk = stack.sdk("kitchen")
    thread_ids = [sdk.threads.create()["thread_id"] for _ in range(10)]
    owner.execute("ALTER ROLE platform CONNECTION LIMIT 5")
    try:
        terminate_all(owner)
        made = [create_at_last(stack, thread_id) for thread_id in thread_ids]
    finally:
        owner.execute("ALTER ROLE platform CONNECTION LIMIT -1")

    for thread_id, run_id in zip(thread_ids, made, strict=True):
        wait_until(lambda t=thread_id, r=run_id: status(stack, t, r) == "success", 60)


def create_at_last(stack: Stack, thread_id: str) -> str:
    """Create a run, with retries while the platform is unavailable."""

    def ask() -> str | None:
        answer = stack.client.post(
            f"/d/kitchen/threads/{thread_id}/runs",
            json={"assistant_id": "counts", "input": {"n": 2, "seconds": 0.1}},
        )
        assert answer.status_code in OUTCOMES, answer.text
        return answer.json()["run_id"] if answer.is_success else None

    return wait_until(ask, 60)


def status(stack: Stack, thread_id: str, run_id: str) -> str | None:
    answer = stack.client.get(f"/d/kitchen/threads/{thread_id}/runs/{run_id}")
    assert answer.status_code in OUTCOMES, answer.text
    return answer.json()["status"] if answer.is_success else None


# Builders


def project(folder: Path, seconds: float = 0) -> Path:
    return write(folder, CODE.replace("SECONDS", str(seconds)))


def newest(stack: Stack, name: str) -> tuple[str, dict[str, Any]]:
    """Return the deployment's id and its newest revision. Returns an empty id while the web process is unavailable."""
    try:
        return stack.record(name)["id"], stack.revisions(name)[0]
    except (httpx.HTTPError, ValueError, KeyError):
        return "", {"status": None}


def reaches(stack: Stack, name: str, *statuses: str) -> dict[str, Any]:
    wait_until(lambda: newest(stack, name)[1]["status"] in statuses, BUILD_SECONDS, what=f"{statuses}")
    return newest(stack, name)[1]


def start(stack: Stack, folder: Path, name: str) -> None:
    with Client(stack.url, stack.api_key) as client:
        deploy_project(client, Project.read(folder), name, print, wait=False)


def children_of_builder(stack: Stack) -> list[psutil.Process]:
    return [child for pid in stack.pids("builder") for child in psutil.Process(pid).children(recursive=True)]


def log_lines(stack: Stack, name: str) -> list[str]:
    deployment_id, revision = newest(stack, name)
    path = f"/v1/projects/{deployment_id}/revisions/{revision['id']}/build_logs"
    return [line["message"] for line in stack.client.post(path, json={"order": "asc"}).json()["logs"]]


def says(stack: Stack, name: str, line: str) -> None:
    """Wait for a line of a build's log."""

    def is_said() -> bool:
        lines = log_lines(stack, name)
        assert newest(stack, name)[1]["status"] not in ("BUILD_FAILED", "DEPLOY_FAILED"), "\n".join(lines)
        return line in lines

    wait_until(is_said, BUILD_SECONDS, what=line)


def test_a_build_goes_on_when_its_builder_is_killed(stack: Stack, tmp_path: Path) -> None:
    name = "killed"
    start(stack, project(tmp_path, seconds=2), name)
    says(stack, name, "loading 1 graph")
    steps = children_of_builder(stack)

    for pid in stack.pids("builder"):
        os.kill(pid, signal.SIGKILL)

    _, left = psutil.wait_procs(steps, timeout=20)
    assert not [process for process in left if process.is_running()], "what it ran dies with it"
    revision = reaches(stack, name, "DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED")
    assert revision["status"] == "DEPLOYED"
    assert stack.sdk(name).runs.wait(None, "agent", input={"messages": []}) == {"messages": []}
    assert {path.stem for path in (stack.data_dir / "revisions").iterdir()} <= served(stack)


def test_a_build_is_handed_over_when_its_builder_shuts_down(stack: Stack, tmp_path: Path) -> None:
    start(stack, project(tmp_path, seconds=3), "stopped")
    says(stack, "stopped", "loading 1 graph")

    for pid in stack.pids("builder"):
        os.kill(pid, signal.SIGTERM)

    assert reaches(stack, "stopped", "DEPLOYED", "BUILD_FAILED")["status"] == "DEPLOYED"
    assert "this builder stops: another one begins anew" in log_lines(stack, "stopped")


def served(stack: Stack) -> set[str]:
    rows = stack.client.get("/v2/deployments").json()["resources"]
    return {row["active_revision_id"] for row in rows}


def test_a_builder_that_was_frozen_does_not_disturb_its_successor(stack: Stack, tmp_path: Path) -> None:
    start(stack, project(tmp_path, seconds=3), "frozen")
    says(stack, "frozen", "loading 1 graph")
    pids = stack.pids("builder")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: newest(stack, "frozen")[1]["status"] == "AWAITING_BUILD", BUILD_SECONDS)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    assert reaches(stack, "frozen", "DEPLOYED", "BUILD_FAILED")["status"] == "DEPLOYED"


def upload(stack: Stack, name: str, archive: bytes) -> None:
    """Create a deployment and upload these bytes as its source."""
    with Client(stack.url, stack.api_key) as client:
        found = client.create(
            {
                "name": name,
                "source": "internal_source",
                "source_config": {"deployment_type": "dev"},
                "source_revision_config": {},
                "secrets": [],
            }
        )
        path = client.upload(found["id"], io.BytesIO(archive), len(archive))
        config = {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"}
        client.change(
            found["id"],
            {"revision_source": "internal_source", "source_revision_config": config, "secrets": []},
        )


def test_an_archive_that_wants_to_do_harm_is_refused(stack: Stack) -> None:
    """The builder reports the refusal as its step and leaves no files; tests/unit/builder/test_unpack.py has all kinds."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../a"))
    upload(stack, "escape", made.getvalue())

    revision = reaches(stack, "escape", "BUILD_FAILED", "CREATE_FAILED", "DEPLOYED")

    assert revision["status"] == "BUILD_FAILED"
    reason = "unpack: the source archive is refused: '../../a' leaves the archive"
    assert revision["status_message"].startswith(reason)
    wait_until(lambda: not list((stack.data_dir / "revisions").glob(f"{revision['id']}*")))


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


def number_of(stack: Stack, statement: str, *values: Any) -> int:
    with psycopg.connect(stack.database_url) as conn:
        row = conn.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]


def runs_to_replay(stack: Stack) -> None:
    """Execute runs on one thread each, two runs of one thread, and a run that answers an interrupt."""
    sdk = stack.sdk("kitchen")
    wait = partial(sdk.runs.wait, metadata=TO_REPLAY)

    def execute(_: int) -> None:
        wait(sdk.threads.create()["thread_id"], "sleeps", input={"seconds": 0.5})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(execute, range(REPLAYED - 4)))
    thread_id = sdk.threads.create()["thread_id"]
    for _ in range(2):
        wait(thread_id, "echo", input={"steps": ["in"]})
    thread_id = sdk.threads.create()["thread_id"]
    wait(thread_id, "asks", input={"steps": ["in"]})
    wait(thread_id, "asks", command={"resume": "yes"})


def test_a_replay_survives_kills_and_leaves_the_deployment_as_it_is(stack: Stack) -> None:
    deployment_id = stack.record("kitchen")["id"]
    replays = f"/v2/deployments/{deployment_id}/replays"
    runs_to_replay(stack)
    unfolded = "SELECT count(*) FROM ended_run WHERE deployment_id = %s"
    wait_until(lambda: number_of(stack, unfolded, deployment_id) == 0, 60, what="the figures")
    before = rows_of(stack, deployment_id)
    body = {"where": {"metadata": TO_REPLAY}, "fail_on": "changed>0, errors>0, diverged>0"}
    replay = stack.client.post(replays, json=body).raise_for_status().json()

    def current() -> dict[str, Any]:
        return stack.client.get(f"{replays}/{replay['id']}").raise_for_status().json()

    for victim in ("runner", "builder"):  # both lead upkeep in turn
        ended = current()["counts"]["same"]
        wait_until(lambda least=ended + 1: current()["counts"]["same"] >= least, 60)
        stack.kill(victim)
    done = wait_until(lambda: (found := current())["ended_at"] and found, 120)
    assert (done["status"], done["verdict"]) == ("done", "passed"), done
    assert done["counts"] == {
        **dict.fromkeys(done["counts"], 0),
        "total": REPLAYED,
        "same": REPLAYED,
    }
    bench_id = number_of(stack, "SELECT bench_id FROM replay WHERE id = %s", replay["id"])
    assert number_of(stack, "SELECT count(*) FROM run WHERE deployment_id = %s", bench_id) == REPLAYED
    assert rows_of(stack, deployment_id) == before

    stack.client.delete(f"{replays}/{replay['id']}").raise_for_status()
    left = "SELECT count(*) FROM deployment WHERE id = %s"
    wait_until(lambda: number_of(stack, left, bench_id) == 0, 60, what="the removal of the bench")
    assert set(rows_of(stack, str(bench_id)).values()) <= {(0, None)}
    assert rows_of(stack, deployment_id) == before
