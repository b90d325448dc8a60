"""A platform with every scaling option: transaction pooler, read replica, Redis split by role, three event servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from redis import Redis
from redis.exceptions import RedisError

from cli.machine import embedded
from shared.infra import redis as shared_redis
from tests.support import replication
from tests.support.counting import KITCHEN
from tests.support.pooler import TransactionPooler
from tests.support.protocol_reading import ProtocolReading
from tests.support.reading import Reading
from tests.support.servers import running, valkey_url
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SHARDS = ("one", "two", "three")


class World:
    """A platform and its servers."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.folder, self._cleanup = folder, cleanup
        for name in ("all", "broker", *SHARDS):
            self.start(name)
        self.primary = cleanup.enter_context(replication.primary(folder / "primary", "max_connections=40"))
        self.standby = cleanup.enter_context(replication.standby(self.primary, folder / "standby"))
        self.pooler = cleanup.enter_context(TransactionPooler(self.primary, servers=12))
        self.events_urls = [valkey_url(folder / name) for name in SHARDS]
        self.stack = cleanup.enter_context(
            Stack(
                env={
                    "DATABASE_URL": self.pooler.url,
                    "DATABASE_READ_URL": self.standby,
                    "RUNYARD_DATABASE_POOLER": "transaction",
                    "REDIS_URL": valkey_url(folder / "all"),
                    "REDIS_BROKER_URL": valkey_url(folder / "broker"),
                    "REDIS_EVENTS_URL": ",".join(self.events_urls),
                }
            )
        )

    def start(self, name: str) -> None:
        """Start a Valkey, also after it was killed."""
        self.servers: dict[str, Any] = getattr(self, "servers", {})
        server = embedded.valkey(self.folder / name)
        self.servers[name] = self._cleanup.enter_context(running(server))

    def kill(self, name: str) -> None:
        self.servers[name].kill()
        self.servers[name].wait()

    def names(self, name: str) -> set[str]:
        """Return the kinds of keys on a server."""
        with Redis.from_url(valkey_url(self.folder / name)) as redis:
            keys = [key.decode().removeprefix("runyard:") for key in redis.scan_iter("*", count=1000)]
        return {key.rpartition(":")[2] if key.startswith("{") else key.split(":")[0] for key in keys}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as cleanup:
        own = World(tmp_path_factory.mktemp("levers"), cleanup)
        own.stack.deploy(KITCHEN, name="kitchen")
        yield own


@pytest.fixture
def sdk(world: World) -> SyncLangGraphClient:
    return world.stack.sdk("kitchen")


def shard_of(world: World, id: str) -> str:
    """Return the name of the server that holds this id's events."""
    shared_redis.connect(world.events_urls[0], events_urls=world.events_urls)
    found = shared_redis.events(UUID(id))
    return SHARDS[shared_redis.event_servers().index(found)]


def test_runs_streams_and_all_else_work_as_on_one_server(world: World, sdk: SyncLangGraphClient) -> None:
    shards = set()
    for number in range(60):  # a run's id is random, and so is its server
        if number >= 12 and shards == set(SHARDS):
            break
        thread_id = sdk.threads.create(metadata={"number": number})["thread_id"]
        made = list(
            sdk.runs.stream(
                thread_id,
                "counts",
                input={"n": 3, "seconds": 0.05},
                stream_mode="custom",
                stream_resumable=True,
            )
        )
        run_id = made[0].data["run_id"]
        shards.add(shard_of(world, run_id))
        assert [part.data["step"] for part in made if part.event == "custom"] == [0, 1, 2]
        again = list(sdk.runs.join_stream(thread_id, run_id, last_event_id=made[1].id))
        assert [part.id for part in again] == [part.id for part in made[2:]]
        assert sdk.threads.get_state(thread_id)["values"]["log"] == [0, 1, 2]
    assert shards == set(SHARDS)

    thread_id = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread_id, "echo", input={"text": "before"})
    sdk.threads.update_state(thread_id, {"log": ["by hand"]})  # a query to a graph host
    assert sdk.threads.get_state(thread_id)["values"]["log"] == ["before", "by hand"]

    run = sdk.runs.create(thread_id, "counts", input={"n": 1000, "seconds": 0.1})
    wait_until(lambda: sdk.runs.get(thread_id, run["run_id"])["status"] == "running")
    sdk.runs.cancel(thread_id, run["run_id"], wait=True)
    assert sdk.runs.get(thread_id, run["run_id"])["status"] == "interrupted"

    assert world.pooler.transactions > 100
    held = {name: world.names(name) for name in ("all", "broker", *SHARDS)}
    assert not any("log" in held[name] for name in ("all", "broker"))
    assert held["broker"] <= {"celery"}
    assert "celery" not in set().union(*(held[name] for name in ("all", *SHARDS)))
    assert all(held[name] == {"log", "meta"} for name in SHARDS)


def test_streams_of_a_thread_see_runs_whose_events_are_elsewhere(
    world: World, sdk: SyncLangGraphClient
) -> None:
    client, thread_id = world.stack.client, sdk.threads.create()["thread_id"]
    path = f"/d/kitchen/threads/{thread_id}"
    of_thread = Reading(client, f"{path}/stream")
    of_protocol = ProtocolReading(client, f"{path}/stream/events", ["lifecycle", "custom"])
    told: list[tuple[str, str]] = []

    while len({shard_of(world, run_id) for run_id, _ in told} | {shard_of(world, thread_id)}) < len(SHARDS):
        asked = {"assistant_id": "counts", "input": {"n": len(told) + 2, "seconds": 0.05}}
        command = {"id": 1, "method": "run.start", "params": asked}
        answer = client.post(f"{path}/commands", json=command).raise_for_status().json()
        told = [*told, *((answer["result"]["run_id"], word) for word in ("running", "completed"))]
        wait_until(lambda told=told: of_protocol.lifecycle() == told, 30)

    runs = list(dict.fromkeys(run_id for run_id, _ in told))
    wait_until(lambda: of_thread.runs_done() == runs, 30)
    of_thread.close()
    of_protocol.close()
    assert [item["step"] for item in of_protocol.written()] == list(range(len(told)))


def test_searches_read_the_replica_and_the_primary_where_it_lags(
    world: World, sdk: SyncLangGraphClient
) -> None:
    """The standby is paused, then asked for a later row, which only the primary can have."""
    thread_id = sdk.threads.create(metadata={"seen": "by both"})["thread_id"]

    def found(metadata: dict[str, str]) -> list[str]:
        return [thread["thread_id"] for thread in sdk.threads.search(metadata=metadata)]

    def is_read_there() -> bool:
        return found({"seen": "by both"}) == [thread_id] and scans(world.standby) > 0

    wait_until(is_read_there, 30, what="the standby to be read")
    with psycopg.connect(world.standby, autocommit=True) as standby:
        standby.execute("SELECT pg_wal_replay_pause()")
        later = sdk.threads.create(metadata={"seen": "by one"})["thread_id"]
        assert sdk.threads.get(later)["metadata"] == {
            "seen": "by one"
        }  # a read by id uses the primary, which has the thread
        wait_until(lambda: found({"seen": "by one"}) == [later], 30)
        standby.execute("SELECT pg_wal_replay_resume()")
    assert found({"seen": "by both"}) == [thread_id]


def scans(url: str) -> int:
    """Return how often a server has scanned its table of threads."""
    with psycopg.connect(url) as conn:
        row = conn.execute(
            "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'thread'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_event_logs_that_are_away_harm_their_runs_alone(world: World, sdk: SyncLangGraphClient) -> None:
    """Other runs are not delayed. Affected runs end in their rows, and stream again once the server is back."""
    begun: dict[str, tuple[str, str]] = {}
    while set(begun) != set(SHARDS):
        thread_id = sdk.threads.create()["thread_id"]
        asked = {"input": {"n": 20, "seconds": 0.2}, "stream_mode": "custom", "stream_resumable": True}
        run_id = sdk.runs.create(thread_id, "counts", **asked)["run_id"]  # type: ignore[call-overload]
        if shard_of(world, run_id) in begun:
            sdk.runs.cancel(thread_id, run_id)
        else:
            begun[shard_of(world, run_id)] = thread_id, run_id

    world.kill("one")

    for shard in ("two", "three"):
        steps = [
            part.data["step"]
            for part in sdk.runs.join_stream(*begun[shard], last_event_id="0")
            if part.event == "custom"
        ]
        assert steps == list(range(20))
        assert is_away(world.events_urls[0])
    wait_until(lambda: sdk.runs.get(*begun["one"])["status"] == "success", 60)

    world.start("one")

    for _ in range(6):  # on any server
        thread_id = sdk.threads.create()["thread_id"]
        parts = list(sdk.runs.stream(thread_id, "counts", input={"n": 2}, stream_mode="custom"))
        assert [part.data["step"] for part in parts if part.event == "custom"] == [0, 1]
    again = [
        part.data["step"]
        for part in sdk.runs.join_stream(*begun["one"], last_event_id="0")
        if part.event == "custom"
    ]
    assert again == list(range(20))


def is_away(url: str) -> bool:
    try:
        with Redis.from_url(url) as redis:
            return not redis.ping()
    except RedisError:
        return True
