"""Access by keys: tenants, roles, public paths."""

from __future__ import annotations

from uuid import uuid4

from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import connection
from tests.contract.conftest import ADMIN_KEY, Api, caller, new_key


def test_a_key_opens(anonymous: FlaskClient) -> None:
    for headers in ({"X-Api-Key": ADMIN_KEY}, {"Authorization": f"Bearer {ADMIN_KEY}"}):
        assert anonymous.get("/v2/nothing", headers=headers).status_code == 404, headers
    assert anonymous.post("/ok").status_code == 401, "only a GET is open"
    for path in ("/v2/nothing/../../ok", "/static/../app.py", "/d/chat/static/../../x"):
        assert anonymous.get(path).status_code in (401, 404), path


def test_a_made_key_opens_until_it_is_revoked(app: Flask) -> None:
    made = new_key("admin")
    friend = caller(app, made)
    assert friend.get("/v2/nothing").status_code == 404
    with connection() as conn:
        api_keys.revoke(conn, DEFAULT_ORGANIZATION_ID, made.split("_")[1])
    response = friend.get("/v2/nothing")
    assert (response.status_code, response.json) == (401, {"detail": "Unknown API key"})
    assert response.headers["WWW-Authenticate"] == "Bearer"

    foreign = caller(app, "lsv2_pt_x").get("/v2/nothing")
    assert "Unknown API key: keys of this service begin with ryd_. The LangGraph SDKs send" in foreign.text


def test_a_tenant_must_be_the_keys_own(client: FlaskClient) -> None:
    for tenant, status in ((str(DEFAULT_ORGANIZATION_ID), 404), ("default", 404), (str(uuid4()), 403)):
        response = client.get("/v2/nothing", headers={"X-Tenant-Id": tenant})
        assert (tenant, response.status_code) == (tenant, status)


def test_every_key_gets_404_for_a_route_that_does_not_exist_and_may_ask_for_methods(app: Flask) -> None:
    reader = caller(app, new_key("read"))
    for method in ("GET", "POST", "DELETE"):
        assert app.test_client().open("/v2/nothing", method=method).status_code == 401, method
        assert reader.open("/v2/nothing", method=method).status_code == 404, method
    asked = reader.open("/v2/keys", method="OPTIONS")
    assert asked.status_code == 200
    assert "POST" in asked.headers["Allow"]


def test_a_reader_cannot_cancel_a_run_by_leaving(app: Flask, api: Api) -> None:
    reader = Api(caller(app, new_key("read")), api.deployment)
    run_id = make.run(api.deployment, kwargs={"resumable": False})
    for path in (f"/runs/{run_id}/stream", f"/runs/{run_id}/join"):
        refused = reader.get(path, query_string={"cancel_on_disconnect": "true"})
        assert (refused.status_code, refused.json) == (
            403,
            {"detail": "cancel_on_disconnect needs the role run"},
        )
        looked = reader.get(path, query_string={"cancel_on_disconnect": "false"})
        assert looked.status_code == 200
        looked.close()


def test_failing_often_is_answered_with_429_and_a_valid_key_passes_all_the_same(
    app: Flask, client: FlaskClient
) -> None:
    stranger = caller(app, "wrong")
    statuses = [stranger.get("/v2/nothing").status_code for _ in range(21)]
    assert statuses == [401] * 20 + [429]
    assert stranger.get("/v2/nothing").headers["Retry-After"] == "60"
    assert client.get("/v2/nothing").status_code == 404
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}  # the test client's address is that of a trusted proxy
    assert stranger.get("/v2/nothing", headers=elsewhere).status_code == 401
