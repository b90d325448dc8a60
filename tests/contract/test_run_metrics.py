"""Prometheus metrics of runs and builds. The dashboard and the alert rules query only existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from sqlalchemy import func, insert, update

import tests.support.factories as make
from shared import fleet
from shared.figures import folding
from shared.fleet import Heartbeat, record_heartbeat
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import LAST_BACKUP, RUN, WEBHOOK_DELIVERY
from tests.contract.conftest import Api
from tests.support.acting import act
from tests.support.servers import free_port

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
OURS = {"organization": "default", "deployment": "chat"}
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def run_once(api: Api) -> None:
    thread = api.post("/threads", {}).json
    run = api.post(f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"a": 1}, usage={"m": {"input_tokens": 3, "output_tokens": 4}})


@pytest.fixture
def busy(api: Api) -> Api:
    """Deployment with ended runs, folded and not, a pending run, a build, and workers."""
    run_once(api)
    with connection() as conn:
        folding.fold(conn)
        folding.record_build(conn, "DEPLOYED", 3.0)
        folding.record_build(conn, "DEPLOYED", 40.0)
        fleet.claim_leadership(conn.connection.driver_connection, fleet.UPKEEP, "runner")
        conn.execute(insert(LAST_BACKUP).values(is_last=True, bytes=1))
        for kind in ("runner", "builder"):
            record_heartbeat(
                conn,
                Heartbeat(id=kind, kind=kind, pool="default", host_name="h", pid=1, version="1", isolation=2),
            )
    run_once(api)
    api.post("/runs", {"assistant_id": "agent"})
    return api


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


def shown(api: Api, path: str = "/metrics") -> str:
    answer = api.client.get(path)
    assert answer.status_code == 200
    return answer.text


def test_what_ended_is_counted_by_deployment_and_status(busy: Api) -> None:
    text = shown(busy)

    assert value(text, "runyard_runs_ended_total", **OURS, status="success") == 2
    assert value(text, "runyard_runs_ended_total", **OURS, status="timeout") == 0
    assert value(text, "runyard_deployment_runs", **OURS, status="pending") == 1
    assert value(text, "runyard_tokens_total", **OURS, kind="output") == 8
    assert value(text, "runyard_run_wait_seconds_count", **OURS) == 2
    assert value(text, "runyard_run_duration_seconds_bucket", **OURS, le="+Inf") == 2
    assert value(text, "runyard_run_first_token_seconds_count", **OURS) == 0
    assert value(text, "runyard_build_seconds_count", status="DEPLOYED") == 2
    assert value(text, "runyard_build_seconds_sum", status="DEPLOYED") == 43.0
    assert value(text, "runyard_queue_age_seconds_bucket", pool="default", le="+Inf") == 1


def test_an_operator_sees_what_the_service_leans_on(busy: Api) -> None:
    waiting = make.webhook_delivery(busy.deployment, make.run(busy.deployment))
    with connection() as conn:
        failed = update(WEBHOOK_DELIVERY).where(WEBHOOK_DELIVERY.c.delivery_id == waiting)
        conn.execute(failed.values(failure="500", attempt=1))
        expired = {"status": "running", "owner": "dead", "lease_until": func.now() - timedelta(minutes=1)}
        conn.execute(update(RUN).where(RUN.c.status == "pending").values(**expired))
    text = shown(busy)

    assert value(text, "runyard_webhooks_waiting") == value(text, "runyard_webhooks_failing") == 1
    assert value(text, "runyard_webhooks_given_up") == 0
    assert value(text, "runyard_expired_leases") == 2
    assert 0 <= value(text, "runyard_upkeep_silent_seconds") < 3600
    assert 0 <= value(text, "runyard_backup_age_seconds") < 3600
    assert 1 <= value(text, "runyard_database_connections") < value(text, "runyard_database_max_connections")
    assert value(text, "runyard_redis_up", role="main") == 1
    assert value(text, "runyard_redis_memory_bytes", role="main") > 0


def test_without_redis_the_figures_say_so(busy: Api) -> None:
    with nothing_there() as gone:
        before, redis._client = redis._client, gone
        try:
            text = shown(busy)
        finally:
            redis._client = before
    assert value(text, "runyard_redis_up", role="main") == 0
    assert "runyard_redis_memory_bytes" not in text


def test_each_role_of_redis_has_figures_of_its_own(busy: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_there() as gone:
        monkeypatch.setattr(redis, "_broker", gone)
        monkeypatch.setattr(redis, "_events", ((b"a", redis.client()), (b"b", gone)))
        found = samples(shown(busy))
    roles = {dict(labels)["role"]: up for (name, labels), up in found.items() if name == "runyard_redis_up"}
    assert roles == {"main": 1, "broker": 0, "events-1": 1, "events-2": 0}
    told = {dict(labels)["role"] for name, labels in found if name == "runyard_redis_evicted_keys_total"}
    assert told == {"main", "events-1"}


@contextmanager
def nothing_there() -> Iterator[Redis]:
    """Yield a client of a Redis that does not answer."""
    client = redis.make_client(f"redis://127.0.0.1:{free_port()}", connections=1)
    yield client
    client.close()


def test_each_caller_sees_the_figures_of_their_own(app: Flask, busy: Api, neighbour: Api) -> None:
    text = app.test_client().get("/metrics").text

    assert "chat" not in text
    assert "runyard_database" not in text
    assert "runyard_backup" not in text
    assert value(text, "runyard_build_seconds_count", status="DEPLOYED") == 2

    named = {
        (dict(labels)["organization"], dict(labels)["deployment"])
        for (name, labels) in samples(shown(neighbour))
        if name == "runyard_runs_ended_total"
    }
    assert {deployment for _, deployment in named} == {"chat"}
    assert "default" not in {organization for organization, _ in named}

    make.deployment("other", organization_id=busy.deployment.organization_id)
    text = shown(busy, "/d/chat/metrics")

    assert value(text, "runyard_runs_ended_total", **OURS, status="success") == 2
    assert "other" not in text


# Dashboard and alert rules


def queries() -> Iterator[tuple[str, str]]:
    board = json.loads((GRAFANA / "runyard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def known(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, labels in samples(text):
        found.setdefault(name, set()).update(dict(labels))
    return found


def test_every_query_asks_for_figures_and_labels_that_there_are(busy: Api) -> None:
    exported = known(shown(busy)) | {"": set()}
    asked: list[Any] = list(queries())
    assert len(asked) > 20
    for title, query in asked:
        names = [word for word in WORD.findall(re.sub(r'"[^"]*"', "", query)) if word.startswith("runyard_")]
        assert names, title
        assert set(names) <= set(exported), title
        labels = set().union(*(exported[name] for name in names))
        for name, matchers in re.findall(r"(runyard_\w+)\{([^}]*)\}", query):
            wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert wanted <= exported[name], (title, name)
        for group in re.findall(r"(?:by|on) \(([^)]*)\)", query):
            assert {label.strip() for label in group.split(",")} <= labels, title
