"""Health, version and backlog of the service, at the root and at a deployment's address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from cachetools import TTLCache
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url, text

import tests.support.factories as make
from shared import __version__
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.deployments.deployments import DeploymentRef
from shared.infra import database_version, postgres
from shared.models import RunStatus
from shared.settings import Settings
from web.app import create_app
from web.ops import health


@pytest.fixture
def chat(anonymous: FlaskClient) -> DeploymentRef:
    return make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)


@pytest.mark.usefixtures("chat")
def test_it_is_up(anonymous: FlaskClient) -> None:
    for path in ("/ok", "/", "/d/chat/ok", "/d/chat/", "/d/chat", "/ok?check_db=1"):
        response = anonymous.get(path)
        assert (path, response.status_code, response.json) == (path, 200, {"ok": True, "services": {}})


def test_it_says_when_the_database_is_away(anonymous: FlaskClient) -> None:
    postgres.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    assert anonymous.get("/ok").status_code == 200
    response = anonymous.get("/ok?check_db=1")
    assert (response.status_code, response.json) == (503, {"detail": "The database is unavailable."})
    assert response.headers["Retry-After"] == "2"


def test_it_is_ready_once_the_database_has_the_tables_of_this_release(
    anonymous: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anonymous.get("/ok?ready=1").json == {"ok": True, "services": {}}

    monkeypatch.setattr(database_version, "needed", lambda: "9999")
    response = anonymous.get("/ok?ready=1")
    assert response.status_code == 503
    assert "run its migrations" in response.json["detail"]

    postgres.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    assert anonymous.get("/ok?ready=1").status_code == 503


@pytest.fixture
def read_only(database: str) -> Iterator[None]:
    """Connect to a database that rejects every write, as some databases do when their disk is nearly full."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE ROLE reader SUPERUSER LOGIN")
        conn.execute("ALTER ROLE reader SET default_transaction_read_only = on")
        postgres.connect(make_url(database).set(username="reader").render_as_string(hide_password=False))
        yield
        postgres.engine().dispose()
        conn.execute("DROP ROLE reader")


@pytest.mark.usefixtures("read_only")
def test_it_is_not_ready_while_the_database_refuses_writes(settings: Settings) -> None:
    client = create_app(settings).test_client()  # a new app has no cached result

    response = client.get("/ok?ready=1")

    assert (response.status_code, response.json) == (503, {"detail": "the database is read-only"})
    assert response.headers["Retry-After"] == "2"
    assert client.get("/ok?check_db=1").status_code == 200


def test_it_works_without_any_connection(settings: Settings) -> None:
    assert create_app(settings).test_client().get("/ok").status_code == 200


@pytest.mark.usefixtures("chat")
def test_a_stranger_learns_the_version_and_no_more(anonymous: FlaskClient) -> None:
    flags = ("assistants", "crons", "store", "strict_resume", "stream_namespaces")
    for path in ("/info", "/d/chat/info"):
        assert anonymous.get(path).json == {
            "version": __version__,
            "langgraph_py_version": None,
            "langgraph_js_version": None,
            "flags": dict.fromkeys(flags, True),
            "host": {"kind": "self-hosted"},
            "metadata": {"kind": "self-hosted"},
        }, path


def test_a_javascript_deployment_has_the_version_of_its_own_library(
    client: FlaskClient, chat: DeploymentRef
) -> None:
    manifest = {"language": "javascript", "langgraph_version": "1.4.13"}
    change = text("UPDATE revision SET requirements = '{}', manifest = CAST(:manifest AS json)")
    with postgres.connection() as conn:
        conn.execute(change, {"manifest": postgres.dumps(manifest)})

    info: Any = client.get("/d/chat/info").json

    assert (info["langgraph_js_version"], info["langgraph_py_version"]) == ("1.4.13", None)


def test_its_owner_learns_what_a_deployment_runs(client: FlaskClient, chat: DeploymentRef) -> None:
    info: Any = client.get("/d/chat/info").json
    assert info["langgraph_py_version"] == "1.2.22"
    assert info["host"] == {
        "kind": "self-hosted",
        "isolation": None,  # no worker has reported
        "project_id": str(chat.id),
        "tenant_id": str(DEFAULT_ORGANIZATION_ID),
        "revision_id": str(chat.active_revision_id),
        "host_revision_id": str(chat.active_revision_id),
    }


def test_at_the_address_of_no_deployment_nothing_is_up(
    client: FlaskClient, anonymous: FlaskClient, chat: DeploymentRef
) -> None:
    make.deployment("theirs")
    assert client.get("/d/theirs/ok").status_code == 200, "that of another organization is up"
    assert client.get("/d/theirs/info").status_code == 404, "and shows nothing"
    with postgres.connection() as conn:
        conn.execute(text("UPDATE deployment SET deleted_at = now() WHERE name = 'chat'"))
    for path in ("ok", "", "info", "metrics"):
        for caller in (client, anonymous):
            response = caller.get(f"/d/nope/{path}")
            assert (path, response.status_code, response.json) == (path, 404, {"detail": "Not Found"})
        assert (path, anonymous.get(f"/d/chat/{path}").status_code) == (path, 404)


def test_what_is_flagged_is_served(client: FlaskClient) -> None:
    flags: Any = client.get("/info").json
    paths: Any = client.get("/d/chat/openapi.json").json
    served = {
        "assistants": "/assistants",
        "crons": "/runs/crons",
        "store": "/store/items",
    }
    found = {name: path in paths["paths"] for name, path in served.items()}
    found["strict_resume"] = "strict_resume" in paths["components"]["schemas"]["RunCreate"]["properties"]
    asked = paths["paths"]["/threads/{thread_id}/runs/stream"]["post"]["parameters"]
    found["stream_namespaces"] = "namespace" in [each["name"] for each in asked if "name" in each]
    assert found == flags["flags"]


def test_its_figures_are_for_prometheus(anonymous: FlaskClient) -> None:
    response = anonymous.get("/metrics")
    assert response.content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["runyard_runs"].type == "gauge"
    assert families["runyard_http_requests"].type == "counter"
    assert families["runyard_http_request_seconds"].type == "histogram"
    assert anonymous.get("/metrics?format=prometheus").content_type.startswith("text/plain")
    assert anonymous.get("/metrics?format=xml").status_code == 422


def queue_of(client: FlaskClient, path: str = "/metrics") -> Any:
    answer: Any = client.get(f"{path}?format=json").json
    return answer["queue"]


def age(run_id: UUID, **ages: float) -> None:
    """Set the age in seconds of a run's timestamps."""
    with postgres.connection() as conn:
        for column, seconds in ages.items():
            conn.execute(
                text(f"UPDATE run SET {column} = now() - make_interval(secs => :age) WHERE run_id = :run_id"),
                {"age": seconds, "run_id": run_id},
            )


@pytest.mark.usefixtures("redis")
def test_its_figures_are_not_looked_up_for_every_caller(
    client: FlaskClient,
) -> None:
    known = client.application.extensions["runyard_figures"] = TTLCache(10, ttl=3600)
    assert queue_of(client)["n_pending"] == 0
    make.run(make.deployment())
    assert queue_of(client)["n_pending"] == 0
    known.clear()
    assert queue_of(client)["n_pending"] == 1


@pytest.mark.usefixtures("redis")
def test_its_figures_count_what_waits(client: FlaskClient) -> None:
    assert set(queue_of(client).values()) == {0}
    health.start(client.application)  # drop cached figures
    deployment = make.deployment(pool="gpu")
    thread = make.thread(deployment.id)
    age(make.run(deployment, thread), created_at=100)
    age(make.run(deployment, thread), created_at=300)
    age(make.run(deployment), created_at=200)
    age(make.run(deployment), created_at=900, not_before=-900)  # not due, so not waiting

    queue = queue_of(client)
    lines = client.get("/metrics").text

    assert (queue["n_pending"], queue["n_running"]) == (4, 0)
    assert queue["pending_runs_wait_time_max_secs"] // 100 == 3
    assert queue["pending_runs_wait_time_med_secs"] // 100 == 2
    assert queue["pending_unblocked_runs_wait_time_max_secs"] // 100 == 2
    assert 'runyard_runs{pool="gpu",status="pending"} 4.0' in lines


@pytest.mark.usefixtures("redis")
def test_its_figures_count_what_runs(client: FlaskClient) -> None:
    run = make.run(make.deployment(), status=RunStatus.RUNNING, owner="somebody")
    age(run, started_at=100)
    assert (queue_of(client)["n_pending"], queue_of(client)["n_running"]) == (0, 1)
    assert queue_of(client)["pending_runs_wait_time_max_secs"] == 0
    assert 'runyard_oldest_run_seconds{pool="default",status="running"} 1' in client.get("/metrics").text


@pytest.mark.usefixtures("redis")
def test_its_figures_count_what_was_answered(client: FlaskClient) -> None:
    make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    for path in ("/d/chat/threads/x", "/d/chat/threads/y", "/nowhere/x", "/nowhere/y"):
        client.get(path)
    client.post("/d/chat/threads/search", data=b"{}")

    api: Any = client.get("/metrics?format=json").json
    lines = client.get("/metrics").text.splitlines()

    route = 'method="GET",route="/d/<deployment>/threads/<thread_id>"'
    assert f'runyard_http_requests_total{{{route},status="422"}} 2.0' in lines
    assert 'runyard_http_requests_total{method="GET",route="unknown",status="404"} 2.0' in lines
    assert (api["api"]["n_requests"], api["api"]["n_server_errors"]) == (5, 0)
    assert api["api"]["latency_mean_secs"] > 0
    assert "runyard_http_request_seconds_count 6.0" in lines


def test_its_owner_sees_a_deployments_own_figures(client: FlaskClient) -> None:
    make.run(make.deployment("busy", organization_id=DEFAULT_ORGANIZATION_ID))
    make.deployment("idle", organization_id=DEFAULT_ORGANIZATION_ID)
    for name, pending in (("busy", 1), ("idle", 0)):
        assert queue_of(client, f"/d/{name}/metrics")["n_pending"] == pending
