"""Whether it is up, which version, how much waits: at the root and at a deployment's address."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

import tests.factories as make
from shared import __version__, database
from shared.api_keys import DEFAULT_ORGANIZATION_ID
from shared.settings import Settings
from web.app import create_app


@pytest.mark.parametrize("path", ["/ok", "/", "/d/chat/ok", "/d/chat/", "/d/chat", "/ok?check_db=1"])
def test_it_is_up(anonymous: FlaskClient, path: str) -> None:
    response = anonymous.get(path)
    assert (response.status_code, response.json) == (200, {"ok": True, "services": {}})


def test_it_says_when_the_database_is_away(anonymous: FlaskClient) -> None:
    database.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    assert anonymous.get("/ok").status_code == 200
    response = anonymous.get("/ok?check_db=1")
    assert (response.status_code, response.json) == (503, {"detail": "database unavailable"})
    assert response.headers["Retry-After"] == "2"


def test_it_works_without_any_connection(settings: Settings) -> None:
    assert create_app(settings).test_client().get("/ok").status_code == 200


@pytest.mark.parametrize("path", ["/info", "/d/chat/info"])
def test_a_stranger_learns_the_version_and_no_more(anonymous: FlaskClient, path: str) -> None:
    assert anonymous.get(path).json == {
        "version": __version__,
        "langgraph_py_version": None,
        "flags": {"assistants": True},
        "host": {"kind": "self-hosted"},
        "metadata": {"kind": "self-hosted"},
    }


def test_its_owner_learns_what_a_deployment_runs(client: FlaskClient) -> None:
    deployment = make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID)
    info: Any = client.get("/d/chat/info").json
    assert info["langgraph_py_version"] == "1.2.22"
    assert info["host"] == {
        "kind": "self-hosted",
        "isolation": None,  # no worker has told
        "project_id": str(deployment.id),
        "tenant_id": str(DEFAULT_ORGANIZATION_ID),
        "revision_id": str(deployment.active_revision_id),
        "host_revision_id": str(deployment.active_revision_id),
    }


def test_another_deployment_is_unknown(client: FlaskClient) -> None:
    response = client.get("/d/nope/info")
    assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


def test_its_figures_are_for_prometheus(anonymous: FlaskClient) -> None:
    response = anonymous.get("/metrics")
    assert response.content_type.startswith("text/plain")
    assert "# TYPE runyard_runs gauge" in response.text


def test_its_figures_count_what_waits(client: FlaskClient) -> None:
    make.run(make.deployment(pool="gpu"))
    totals: Any = client.get("/metrics?format=json").json
    assert (totals["queue"]["n_pending"], totals["queue"]["n_running"]) == (1, 0)
    assert 'runyard_runs{pool="gpu",status="pending"} 1.0' in client.get("/metrics").text


def test_its_owner_sees_a_deployments_own_figures(client: FlaskClient) -> None:
    make.run(make.deployment("busy", organization_id=DEFAULT_ORGANIZATION_ID))
    make.deployment("idle", organization_id=DEFAULT_ORGANIZATION_ID)
    for name, pending in (("busy", 1), ("idle", 0)):
        totals: Any = client.get(f"/d/{name}/metrics?format=json").json
        assert totals["queue"]["n_pending"] == pending
