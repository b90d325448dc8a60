"""A platform whose PostgreSQL and Redis are operated by others: silent connections, limits, lost connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import psycopg
import pytest
from sqlalchemy import make_url

from cli.machine import embedded
from tests.support.broken_link import Link, linked
from tests.support.servers import running
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
OUTCOMES = {200, 503}


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
