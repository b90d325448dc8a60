"""The order of the checks that a request passes before its view. Each order prevents the failure that its test names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from shared.access import api_keys
from shared.access.api_keys import Caller
from shared.deployments import deployments
from shared.errors import Unavailable
from shared.hosts import exchanges
from tests.contract.conftest import ADMIN_KEY, Api, Users, caller, new_key
from tests.contract.test_app import hello
from tests.support import user_code
from tests.support.played_app import Stage, serve
from web.gate import addresses
from web.gate.deployments import forget as forget_deployments

AUTH = {"parameters": ["headers"], "handlers": user_code.EVERYTHING}


@pytest.fixture
def configure(api: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Function that gives the deployment `chat` an app with these routes, and settings."""

    def apply(*routes: str, auth: Any = None, **http: Any) -> Stage:
        stage = Stage(hello)
        monkeypatch.setattr(exchanges, "open_exchange", stage.open_exchange)
        serve(api.deployment, *routes, http=http, auth=auth)
        forget_deployments()
        return stage

    return apply


@pytest.fixture
def broken_lookup(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """No deployment can be looked up."""

    def fail(*args: Any) -> None:
        raise Unavailable("the database does not answer")

    for name in ("resolve", "resolve_for_anybody", "resolve_by_id"):
        monkeypatch.setattr(deployments, name, fail)
    forget_deployments()


def test_a_request_that_fails_in_the_gate_has_an_id(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without an id could not be found in the log."""

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(addresses, "locate", fail)
    request_id = str(uuid4())
    response = app.test_client().get("/ok", headers={"X-Request-Id": request_id})
    assert (response.status_code, response.json) == (
        500,
        {"detail": "internal error", "request_id": request_id},
    )
    assert response.headers["X-Request-Id"] == request_id


def test_a_project_s_route_is_guarded_by_the_project_and_not_by_the_route_that_it_covers(
    anonymous: FlaskClient, configure: Callable[..., Stage], played: user_code.PlayedAuth
) -> None:
    """The role of a covered route would otherwise open a guarded route, or close a public one."""
    stage = configure("GET /info", auth=AUTH, enable_custom_route_auth=True)
    assert anonymous.get("/d/chat/info").status_code == 401
    assert stage.sides == []


def test_a_public_route_of_a_project_may_cover_a_keyed_one(
    anonymous: FlaskClient, configure: Callable[..., Stage]
) -> None:
    configure("POST /threads/search")
    assert anonymous.post("/d/chat/threads/search").data == b"hello"
    assert anonymous.post("/d/chat/assistants/search").status_code == 401


def test_a_disabled_route_is_missing_only_for_callers_with_a_key(
    api: Api, anonymous: FlaskClient, configure: Callable[..., Stage]
) -> None:
    """Callers without a key must not learn which interfaces exist. Public pages never need a key."""
    configure(disable_threads=True, disable_meta=True)
    assert anonymous.post("/d/chat/threads/search").status_code == 401
    assert anonymous.get("/d/chat/info").status_code == 404
    reader = caller(api.client.application, new_key("read"))
    assert reader.post("/d/chat/threads").status_code == 404  # even without the role of the route


def test_redirects_and_paths_outside_the_prefix_need_a_caller(
    api: Api, anonymous: FlaskClient, configure: Callable[..., Stage]
) -> None:
    """Callers without access could otherwise map the routes."""
    configure(mount_prefix="/pre")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    rows: list[tuple[str, dict[str, str], int]] = [
        ("/d/chat/pre/threads/search/", {}, 307),
        ("/d/chat/threads/search", {}, 404),
        ("/d/chat/threads/search", upgrade, 403),
    ]
    for path, headers, status in rows:
        assert anonymous.get(path, headers=headers).status_code == 401, path
        assert api.client.get(path, headers=headers).status_code == status, path


def test_a_failed_lookup_is_a_503_and_does_not_open_the_route(
    api: Api, anonymous: FlaskClient, broken_lookup: None
) -> None:
    for client in (api.client, anonymous):
        for path in ("/threads/search", "/nothing", "/info"):
            assert client.post(f"/d/chat{path}").status_code == 503, path
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert anonymous.open("/d/chat/threads", method="OPTIONS", headers=preflight).status_code == 200


def test_a_deployment_of_another_organization_is_missing_even_if_its_settings_apply(
    app: Flask, api: Api, configure: Callable[..., Stage], neighbour: Api
) -> None:
    """The lookup finds a deployment for callers without a key. Another organization's key must not open it."""
    configure("GET /hello")
    serve(neighbour.deployment, http={"disable_store": True})
    unrelated = caller(app, new_key(organization_id=make.organization()))
    assert unrelated.get("/d/chat/hello").data == b"hello"  # public
    response = unrelated.post("/d/chat/threads/search", data=b"{}")
    assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


def test_a_token_that_is_not_valid_ends_in_a_401_whatever_else_is_sent(api: Api, users: Users) -> None:
    headers = {"X-Runyard-User-Code": "not a token", "X-Auth-Scheme": "langsmith"}
    for client in (api.client, users.ann.client):
        assert client.post("/d/chat/threads/search", data=b"{}", headers=headers).status_code == 401


def test_a_key_is_authenticated_once_and_a_deployment_looked_up_once(
    app: Flask, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lookup may find something else, after the answer of the first has decided about the caller."""
    key, authenticate, resolve = new_key("run"), api_keys.authenticate, deployments.resolve
    lookups: list[str] = []

    def count_key(value: str, *, bootstrap: str | None = None) -> Caller | None:
        lookups.append("key")
        return authenticate(value, bootstrap=bootstrap)

    def count_deployment(conn: Any, organization_id: UUID, name: str) -> Any:
        lookups.append("deployment")
        return resolve(conn, organization_id, name)

    monkeypatch.setattr(api_keys, "authenticate", count_key)
    monkeypatch.setattr(deployments, "resolve", count_deployment)
    forget_deployments()
    assert caller(app, key).post("/d/chat/threads/search", data=b"{}").status_code == 200
    assert sorted(lookups) == ["deployment", "key"]
    lookups.clear()
    assert caller(app, ADMIN_KEY).get("/v2/me").status_code == 200
    assert lookups == ["key"]
