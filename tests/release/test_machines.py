"""Several machines under load, one broken at a time: nothing is lost or done twice, and every resource is released.

Their clocks are a day apart throughout.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import LiteralString

import pytest

from cli.client.client import Client
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from shared.runs.claims import HANDED_OVER
from tests.conftest import OUTSIDE
from tests.support import counting
from tests.support.counting import KITCHEN
from tests.support.machines.fleet import Fleet, Place
from tests.support.machines.load import under_load
from tests.support.protocol_reading import ProtocolReading
from tests.support.reading import Reading
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.alone  # the network between the machines is simulated by this process

LEASE_SECONDS = 10.0  # with less, a busy machine loses runs to its own load
DRAIN_SECONDS = 2
DAY = 86_400


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    places = [
        Place("early", ["web", "runner"], clock=DAY),
        Place("right", ["web", "runner", "builder", "beat"]),
        Place("late", ["runner:gpu", "builder"], clock=-DAY),
    ]
    env = {
        "RUNYARD_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "RUNYARD_MAX_ATTEMPTS": "20",  # a run may be on several broken machines in a row
        **OUTSIDE,
    }
    with Fleet(places, env) as own:
        own.deploy(KITCHEN, name="kitchen-default")
        yield own


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def lasting(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)


def test_a_machine_that_freezes_and_one_that_dies(fleet: Fleet, receiver: Receiver) -> None:
    early = fleet["early"]
    with under_load(fleet, receiver) as load:
        load.await_work_of(early)
        with early.frozen():
            lasting(1.2 * LEASE_SECONDS)
        load.await_more(5)
        load.await_work_of(early)
        early.kill()
        load.await_more(10)
        early.start_again()
        wait_until(fleet.is_complete, 60)
        load.await_work_of(early)


def test_a_machine_that_is_cut_off(fleet: Fleet, receiver: Receiver) -> None:
    early = fleet["early"]
    with under_load(fleet, receiver) as load:
        for servers in (("redis",), ("database",), ("redis", "database")):
            for silently in (False, True):
                load.await_work_of(early)
                with early.cut_off(*servers, silently=silently):
                    lasting(1.2 * LEASE_SECONDS)
                    load.await_more(3)
                wait_until(fleet.is_complete, 60)


def test_a_build_outlives_its_builder_and_its_pool_grows_and_shrinks(
    fleet: Fleet, receiver: Receiver
) -> None:
    with Client(fleet.url, fleet.api_key) as client:
        found = deploy_project(client, Project.read(KITCHEN), "kitchen-gpu", print, wait=False)
    fleet.client.patch(f"/v2/deployments/{found['id']}", json={"pool": "gpu"}).raise_for_status()
    (builder,) = wait_until(lambda: fleet.rows(BUILDING), 60, what="a builder to begin")
    for process in fleet.processes("builder"):
        if process.popen.pid == builder[0]:
            process.popen.kill()
            process.popen.wait()
    wait_until(lambda: fleet.rows(REVISIONS_OF, name="kitchen-gpu") == [("DEPLOYED", 2)], 120)
    for machine in fleet.machines.values():
        machine.start_again()

    with under_load(fleet, receiver, pool="gpu") as load:
        load.await_work_of(fleet["late"])
        more = [machine.start("runner:gpu") for machine in fleet.machines.values()]
        wait_until(fleet.is_complete, 60)
        wait_until(lambda: len(fleet.rows(OWNERS, pool="gpu")) == 4, 60, what="all four to have runs")
        left = [worker for (worker,) in fleet.rows(RUNNERS, pids=[runner.popen.pid for runner in more])]
        assert len(left) == len(more)
        for runner in more:
            runner.popen.send_signal(signal.SIGTERM)
        assert [runner.popen.wait(180) for runner in more] == [0, 0, 0]
        assert fleet.rows(HELD, workers=left) == [], "a runner that ends keeps no run"
        load.await_more(5)
    lost = fleet.rows(ATTEMPTS, workers=left)
    assert {attempt["reason"] for _, attempt in lost} <= {HANDED_OVER}, lost


BUILDING = """
SELECT w.pid FROM revision r JOIN worker w ON w.id = r.owner WHERE r.status = 'BUILDING'
"""
REVISIONS_OF = """
SELECT r.status, r.attempt FROM revision r JOIN deployment d ON d.id = r.deployment_id WHERE d.name = %(name)s
"""
RUNNERS = "SELECT id FROM worker WHERE pid = ANY(%(pids)s)"
HELD = "SELECT run_id, status FROM run WHERE status = 'running' AND owner = ANY(%(workers)s)"
ATTEMPTS = """
SELECT run_id, lost FROM run, jsonb_array_elements(attempts) AS lost WHERE lost ->> 'worker' = ANY(%(workers)s)
"""
OWNERS = "SELECT DISTINCT owner FROM run WHERE status = 'running' AND pool = %(pool)s"


def test_readers_come_back_through_the_balancer_when_a_web_dies(fleet: Fleet, receiver: Receiver) -> None:
    (thread_id,) = [fleet.sdk("kitchen-default").threads.create()["thread_id"]]
    path = f"/d/kitchen-default/threads/{thread_id}"
    protocol = ProtocolReading(fleet.client, f"{path}/stream/events", ["lifecycle", "custom"])
    with under_load(fleet, receiver) as load:
        asked = counting.body(thread_id, 40, 0.4, stream_mode=["custom", "values"], stream_resumable=True)
        run_id = fleet.client.post(f"{path}/runs", json=asked).raise_for_status().json()["run_id"]
        readings = [Reading(fleet.client, f"{path}/runs/{run_id}/stream") for _ in range(6)]
        for name in ("early", "right"):
            seen = len(readings[0].parts)
            wait_until(lambda seen=seen: all(len(reading.parts) > seen + 4 for reading in readings), 30)
            (web,) = [process for process in fleet[name].processes if process.kind == "web"]
            web.popen.kill()
            web.popen.wait()
            fleet[name].start_again()
            wait_until(lambda: len(fleet.balancer.well) == 2, 60, what=f"web of {name} to be back")
        load.await_more(5)
        for reading in readings:
            reading.join(240)

    assert sum(reading.cuts for reading in readings) >= len(readings)
    for reading in readings:
        assert [part.data["step"] for part in reading.parts if part.event == "custom"] == list(range(40))
        assert reading.parts == readings[0].parts
    wait_until(lambda: protocol.lifecycle() == [(run_id, "running"), (run_id, "completed")], 30)
    protocol.close()
    assert [item["step"] for item in protocol.written()] == list(range(40))


STAMPS: dict[LiteralString, LiteralString] = {
    "run": "created_at, updated_at, started_at, ended_at",
    "thread": "created_at, updated_at, state_updated_at",
    "revision": "created_at, updated_at",
    "worker": "seen_at",
}


def test_stored_times_are_those_of_the_database(fleet: Fleet, receiver: Receiver) -> None:
    """Only ids carry the clock of the machine that created them, which proves that a clock is wrong."""
    with under_load(fleet, receiver) as load:
        load.await_more(5)

    of_early = "uuid_extract_timestamp(run_id) - created_at > interval '23 hours'"
    (made,) = fleet.rows(f"SELECT count(*) FILTER (WHERE {of_early}), count(*) FROM run")
    assert 0 < made[0] < made[1], "runs that early created, and that another web created"
    for table, columns in STAMPS.items():
        off = f"greatest({columns}) > now() + interval '12 hours' OR least({columns}) < now() - interval '12 hours'"
        assert fleet.rows(f"SELECT * FROM {table} WHERE {off}") == [], table
