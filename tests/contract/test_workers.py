"""Workers and pools as operators see them, and as an organization sees them."""

from __future__ import annotations

from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from rich.console import Console
from sqlalchemy import text

import tests.support.factories as make
from cli.operating import workers as command
from shared import fleet
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.fleet import Heartbeat
from shared.infra import broker
from shared.infra.postgres import connection
from shared.models import RunStatus
from tests.contract.conftest import caller, new_key
from tests.contract.statements import execute


@pytest.fixture
def foreign_client(app: Flask) -> FlaskClient:
    """Client with an admin key of another organization."""
    return caller(app, new_key(organization_id=make.organization()))


def host(revision_id: UUID | None, pid: int = 7, **fields: Any) -> dict[str, Any]:
    said = {"pid": pid, "runs": 2, "memory_mb": 80, "memory_limit_mb": 512, "age_seconds": 9.5}
    return {"revision_id": str(revision_id), **said, "idle_seconds": 0.0, "is_healthy": True, **fields}


def heartbeat(id: str = "box:1:a", **fields: Any) -> None:
    values: dict[str, Any] = {
        "kind": "runner",
        "pool": "default",
        "host_name": "box",
        "pid": 1,
        "version": "1.0",
        "isolation": 2,
        "slots": 100,
        **fields,
    }
    with connection() as conn:
        fleet.record_heartbeat(conn, Heartbeat(id=id, **values))


def seen(client: FlaskClient) -> Any:
    response = client.get("/v2/workers")
    assert response.status_code == 200, response.text
    return response.json


def test_a_worker_is_shown_with_its_hosts(client: FlaskClient) -> None:
    own = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    heartbeat(running=2, ended_a_minute=30, heard_seconds=1.5, hosts=[host(own.active_revision_id)])
    heartbeat("box:2:b", kind="builder", pool=None, pid=2, slots=8, state="draining")

    runner, builder = seen(client)["workers"]

    assert runner.pop("started_at") == runner.pop("seen_at")
    assert 0 <= runner.pop("silent_seconds") < 60
    assert runner.pop("hosts") == [
        {
            **host(own.active_revision_id),
            "deployment_id": str(own.id),
            "deployment": "chat",
            "revision_number": 1,
        }
    ]
    assert runner == {
        "id": "box:1:a",
        "kind": "runner",
        "pool": "default",
        "host_name": "box",
        "pid": 1,
        "version": "1.0",
        "isolation": 2,
        "bounds_tasks": False,
        "bounds_memory": False,
        "state": "ready",
        "slots": 100,
        "running": 2,
        "ended_a_minute": 30,
        "heard_seconds": 1.5,
        "host_count": 1,
    }
    assert (builder["kind"], builder["pool"], builder["state"]) == ("builder", None, "draining")


def test_a_worker_says_anew_what_it_does_and_goes(client: FlaskClient) -> None:
    heartbeat(running=1)
    started_at = seen(client)["workers"][0]["started_at"]
    heartbeat(running=5, state="draining")
    (row,) = seen(client)["workers"]
    assert (row["running"], row["state"], row["started_at"]) == (5, "draining", started_at)

    with connection() as conn:
        fleet.leave(conn, "box:1:a")
    assert seen(client)["workers"] == []


def test_one_that_is_drained_or_resumed_is_shown_so_at_once(
    client: FlaskClient, foreign_client: FlaskClient
) -> None:
    heartbeat()
    heartbeat("other")

    for _ in range(2):
        assert client.post("/v2/workers/box:1:a/drain").status_code == 202
    heartbeat(running=3)  # the worker has not noticed yet

    states = {row["id"]: (row["state"], row["running"]) for row in seen(client)["workers"]}
    assert states == {"box:1:a": ("draining", 3), "other": ("ready", 0)}
    assert seen(client)["pools"][0]["slots"] == 100

    assert client.post("/v2/workers/box:1:a/resume").status_code == 202
    assert {row["state"] for row in seen(client)["workers"]} == {"ready"}
    assert seen(client)["pools"][0]["slots"] == 200
    heartbeat("other", state="draining")  # its process shuts down
    stopping = client.post("/v2/workers/other/resume")
    assert (stopping.status_code, stopping.json) == (
        409,
        {"detail": "Worker other shuts down and cannot be resumed."},
    )
    client.post("/v2/workers/box:1:a/drain")
    heartbeat(state="draining")  # a drained worker that shuts down, too
    assert client.post("/v2/workers/box:1:a/resume").status_code == 409
    for action in ("drain", "resume"):
        missing = client.post(f"/v2/workers/nobody/{action}")
        assert (missing.status_code, missing.json) == (404, {"detail": "Worker nobody not found."})
        assert foreign_client.post(f"/v2/workers/other/{action}").status_code == 403


def test_one_that_is_silent_is_removed(client: FlaskClient, redis: Any) -> None:
    heartbeat("silent")
    heartbeat("alive")
    execute("UPDATE worker SET seen_at = now() - interval '5 minutes' WHERE id = 'silent'")
    redis.lpush("runyard:celery:canary.silent", "left behind")

    with connection() as conn:
        gone = fleet.sweep(conn)
    for worker in gone:
        broker.forget_worker(worker)

    assert gone == ["silent"]
    assert [row["id"] for row in seen(client)["workers"]] == ["alive"]
    assert redis.keys("runyard:celery:canary*") == []


def fall_silent(worker: str, seconds: float = 13) -> None:
    execute(
        "UPDATE worker SET seen_at = now() - make_interval(secs => :seconds) WHERE id = :id",
        id=worker,
        seconds=seconds,
    )


def test_a_killed_worker_is_silent_after_two_missed_heartbeats_and_counts_no_longer(
    client: FlaskClient,
) -> None:
    own = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    for worker in ("killed", "killed while it drained"):
        heartbeat(worker, slots=100, running=40, ended_a_minute=9, hosts=[host(own.active_revision_id)])
    heartbeat("builder", kind="builder", pool=None, slots=8, running=1)
    client.post("/v2/workers/killed while it drained/drain")
    heartbeat("alive", slots=10, running=3, ended_a_minute=1)
    heartbeat("late", slots=10)
    for worker in ("killed", "killed while it drained", "builder"):
        fall_silent(worker)
    fall_silent("late", 6)

    workers, (pool,) = seen(client)["workers"], seen(client)["pools"]
    metrics: Any = client.get("/metrics?format=json").json
    lines = client.get("/metrics").text

    assert {row["id"]: row["state"] for row in workers} == {
        "killed": "silent", "killed while it drained": "silent", "builder": "silent", "alive": "ready", "late": "ready",
    }  # fmt: skip
    counts = ("runners", "silent", "draining", "slots", "hosts", "ended_a_minute")
    assert [pool[name] for name in counts] == [2, 2, 0, 20, 0, 1]
    assert metrics["workers"] == {"max": 20, "active": 3, "available": 17}
    assert 'runyard_workers{kind="runner",pool="default",state="ready"} 2.0' in lines
    assert 'runyard_workers{kind="runner",pool="default",state="silent"} 2.0' in lines
    assert 'runyard_workers{kind="builder",pool="",state="silent"} 1.0' in lines
    assert 'kind="builder",pool="",state="ready"' not in lines
    for figure in (
        "worker_slots",
        "worker_running",
        "worker_available",
        "graph_hosts",
        "runs_ended_a_minute",
    ):
        assert f'runyard_{figure}{{kind="runner",pool="default",state="silent"}} 0.0' in lines


def test_a_silent_worker_that_comes_back_counts_again(client: FlaskClient) -> None:
    heartbeat(slots=10)
    fall_silent("box:1:a")
    assert seen(client)["pools"][0]["slots"] == 0

    heartbeat(slots=10)

    assert (seen(client)["workers"][0]["state"], seen(client)["pools"][0]["slots"]) == ("ready", 10)


def test_pools_show_what_waits(client: FlaskClient) -> None:
    heartbeat(running=1, ended_a_minute=4)
    heartbeat("second", state="draining", running=1, ended_a_minute=2)
    gpu = make.deployment("gpu-app", pool="gpu")
    waiting = make.run(gpu)
    later = make.run(gpu)
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET created_at = now() - interval '90 seconds' WHERE run_id = :id"),
            {"id": waiting},
        )
        conn.execute(
            text("UPDATE run SET not_before = now() + interval '1 hour' WHERE run_id = :id"),
            {"id": later},
        )

    default, other = seen(client)["pools"]

    assert default == {
        "name": "default",
        "runners": 2,
        "draining": 1,
        "silent": 0,
        "slots": 100,
        "hosts": 0,
        "running": 0,
        "pending": 0,
        "oldest_wait_seconds": 0.0,
        "ended_a_minute": 6,
    }
    assert (other["name"], other["runners"], other["pending"]) == ("gpu", 0, 1)
    assert 89 < other["oldest_wait_seconds"] < 600


def test_an_organization_sees_the_hosts_of_its_own_deployments_alone(
    client: FlaskClient, foreign_client: FlaskClient
) -> None:
    own = make.deployment("secret-project", organization_id=DEFAULT_ORGANIZATION_ID)
    heartbeat(hosts=[host(own.active_revision_id), host(uuid4(), pid=8)])

    (row,) = seen(foreign_client)["workers"]

    assert (row["hosts"], row["host_count"]) == ([], 2)
    assert "secret-project" not in foreign_client.get("/v2/workers").text
    assert [found["deployment"] for found in seen(client)["workers"][0]["hosts"]] == ["secret-project"]


def test_nested_runs_take_none_of_the_slots_that_metrics_count(client: FlaskClient) -> None:
    heartbeat("a", running=4, slots=3)
    deployment = make.deployment()
    for depth in (0, 1, 1, 2):
        make.run(deployment, status=RunStatus.RUNNING, owner="a", depth=depth)

    metrics: Any = client.get("/metrics?format=json").json
    assert metrics["workers"] == {"max": 3, "active": 4, "available": 2}


def test_metrics_count_workers_and_what_they_can_do(client: FlaskClient) -> None:
    heartbeat(running=3, slots=10, hosts=[host(uuid4())])
    heartbeat("b", state="draining", running=1, slots=10)
    heartbeat("c", kind="builder", pool=None, slots=8, running=1)

    metrics: Any = client.get("/metrics?format=json").json
    lines = client.get("/metrics").text

    assert metrics["workers"] == {"max": 10, "active": 4, "available": 7}
    assert metrics["api"]["open_streams"] == 0
    assert 'runyard_workers{kind="runner",pool="default",state="ready"} 1.0' in lines
    assert 'runyard_worker_running{kind="builder",pool="",state="ready"} 1.0' in lines
    assert 'runyard_worker_available{kind="runner",pool="default",state="ready"} 7.0' in lines
    assert 'runyard_worker_available{kind="runner",pool="default",state="draining"} 0.0' in lines
    assert 'runyard_graph_hosts{kind="runner",pool="default",state="ready"} 1.0' in lines


def test_info_shows_the_weakest_isolation_to_who_has_a_key(
    client: FlaskClient, anonymous: FlaskClient
) -> None:
    heartbeat(isolation=2, bounds_tasks=True)
    told: Any = client.get("/info").json
    limits = {"memory": "counted", "home": "counted"}
    assert told["host"]["limits"] == {**limits, "processes": "kernel", "temporary": "kernel"}
    assert told["host"]["home_mb"] == 1024

    heartbeat("b", isolation=1)
    told = client.get("/info").json
    assert told["host"]["isolation"] == 1
    assert told["host"]["limits"] == {**limits, "processes": "counted", "temporary": "none"}
    assert "isolation" not in anonymous.get("/info").text


def test_the_command_draws_it(client: FlaskClient) -> None:
    own = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    heartbeat(running=2, hosts=[host(own.active_revision_id), host(own.active_revision_id, is_healthy=False)])
    heartbeat("b", kind="builder", pool=None, state="draining", isolation=0)
    heartbeat("c")
    fall_silent("c", 20)
    out = Console(width=160, file=StringIO())

    out.print(command.draw(seen(client)))

    assert isinstance(out.file, StringIO)
    drawn = out.file.getvalue()
    for word in (
        "default",
        "runner",
        "builder",
        "draining",
        "sandbox",
        "chat",
        "80/512 MiB",
        "blocked",
        "1 + 1 silent",
    ):
        assert word in drawn, drawn
    assert "silent for 20 s" in drawn
