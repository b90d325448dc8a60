"""Other addresses of a deployment: in a domain of its own, and at the root of a developer's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.settings import Settings
from tests.contract.conftest import ADMIN_KEY, Api, MakeApp, caller
from web.gate.addresses import deployment_address


@pytest.fixture
def app_with(api: Api, app_with: MakeApp) -> MakeApp:
    """The app with changed settings. The deployment `chat` exists."""
    return app_with


# Domain for deployments


def test_a_deployment_is_at_its_name_in_the_domain(app_with: MakeApp) -> None:
    client = caller(app_with(app_domain="apps.example.com", url="https://yard.example"), ADMIN_KEY)
    for host in ("chat.apps.example.com", "CHAT.apps.example.com:8443"):
        made = client.post("/threads", json={}, headers={"Host": host})
        assert made.status_code == 200, made.text
        found = client.get(f"/d/chat/threads/{made.json['thread_id']}", headers={"Host": "example.com"})
        assert found.status_code == 200, host
        document = client.get("/openapi.json", headers={"Host": host}).json
        assert document["servers"] == [{"url": "/"}], host
        assert "/threads" in document["paths"], host
    (record,) = client.get("/v2/deployments?name=chat").json["resources"]
    assert record["source_config"]["custom_url"] == "https://chat.apps.example.com"


def test_nothing_else_is_in_the_domain_and_another_host_is_the_service_itself(app_with: MakeApp) -> None:
    client = caller(app_with(app_domain="apps.example.com"), ADMIN_KEY)
    for path in ("/v2/deployments", "/api-host/v2/deployments", "/d/chat/threads", "/../d/chat"):
        response = client.get(path, headers={"Host": "chat.apps.example.com"})
        assert (path, response.status_code) == (path, 404)
    for host in ("apps.example.com", "a.chat.apps.example.com", "-.apps.example.com", "evil.com"):
        response = client.get("/v2/deployments", headers={"Host": host})
        assert (host, response.status_code) == (host, 200)


def test_a_name_in_the_domain_is_one_of_the_callers_organization(
    app_with: MakeApp, neighbour: Api, api: Api
) -> None:
    app = app_with(app_domain="apps.example.com")
    key = neighbour.client.environ_base["HTTP_X_API_KEY"]
    host = {"Host": "chat.apps.example.com"}
    made = caller(app, key).post("/threads", json={}, headers=host).json
    assert neighbour.get(f"/threads/{made['thread_id']}").status_code == 200
    assert api.get(f"/threads/{made['thread_id']}").status_code == 404
    assert app.test_client().post("/threads", json={}, headers=host).status_code == 401


def test_an_address_is_the_one_to_give_to_clients(settings: Settings, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("https://yard.example", "chat", {}, "https://yard.example/d/chat"),
        ("https://yard.example", "chat", {"app_domain": "apps.example"}, "https://chat.apps.example"),
        ("http://localhost:8123", "chat", {"app_domain": "a.localhost:8123"}, "http://chat.a.localhost:8123"),
        ("https://yard.example", "My_chat", {"app_domain": "apps.example"}, "https://yard.example/d/My_chat"),
        ("http://127.0.0.1:2024", "chat", {"dev_deployment": "chat"}, "http://127.0.0.1:2024"),
        ("http://127.0.0.1:2024", "other", {"dev_deployment": "chat"}, "http://127.0.0.1:2024/d/other"),
    ]
    for url, name, changes, address in rows:
        with subtests.test(url=url, name=name, changes=changes, address=address):
            assert deployment_address(replace(settings, **changes), url, name) == address


# Root address without a key


@pytest.fixture
def local(app_with: MakeApp) -> FlaskClient:
    """Client without a key, of a service that serves `chat` at its root."""
    return app_with(dev_deployment="chat").test_client()


def test_the_developers_deployment_is_at_the_root_and_needs_no_key(local: FlaskClient) -> None:
    made = local.post("/threads", json={})
    assert made.status_code == 200, made.text
    assert local.get(f"/d/chat/threads/{made.json['thread_id']}").status_code == 200
    assert local.get("/ok").json["ok"] is True
    assert "/threads/{thread_id}/runs/stream" in local.get("/openapi.json").json["paths"]
    assert local.get("/docs").status_code == 200


@pytest.mark.parametrize("key", ["lsv2_pt_x", f"ryd_12345678_{'A' * 43}"])
def test_a_developer_s_unknown_key_counts_as_none(local: FlaskClient, key: str) -> None:
    """The SDKs send LANGSMITH_API_KEY from the environment without being configured to."""
    for headers in ({"X-Api-Key": key}, {"Authorization": f"Bearer {key}"}):
        assert local.post("/threads", json={}, headers=headers).status_code == 200
        for elsewhere in ({"Host": "evil.com"}, {"Origin": "https://evil.com"}, {"Via": "1.1 proxy"}):
            assert local.post("/threads", json={}, headers=headers | elsewhere).status_code == 401


def test_the_control_plane_keeps_its_address_and_lets_a_developer_look(
    local: FlaskClient, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ("GET", "/v2/deployments", 200),
        ("GET", "/api-host/v2/workers", 200),
        ("GET", "/v2/auth/tokens", 200),
        ("POST", "/v2/deployments", 401),
        ("GET", "/api-host/v2/keys", 401),
        ("POST", "/v2/auth/authenticate", 401),
        ("GET", "/v2/nothing", 401),
    ]
    for method, path, status in rows:
        with subtests.test(method=method, path=path, status=status):
            for headers in ({}, {"X-Api-Key": "lsv2_pt_x"}, {"X-Api-Key": f"ryd_12345678_{'A' * 43}"}):
                answer = local.open(path, method=method, headers=headers)
                assert answer.status_code == status, answer.text
            keyed = local.open(path, method=method, headers={"X-Api-Key": ADMIN_KEY})
            assert keyed.status_code != 401


def test_only_this_machine_s_user_needs_no_key(local: FlaskClient, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"Host": "localhost:2024"}, 200),
        ({"Host": "[::1]:2024"}, 200),
        ({"Host": "127.0.0.1:2024", "Origin": "http://localhost:3000"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "rebound.example:2024"}, 403),
        ({"Host": "127.0.0.1.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"X-Forwarded-For": "127.0.0.1"}, 401),
        ({"Forwarded": "for=127.0.0.1"}, 401),
    ]
    for headers, status in rows:
        with subtests.test(headers=headers, status=status):
            assert local.post("/threads", json={}, headers=headers).status_code == status
            if status != 200:  # the control plane refuses it as well
                assert local.get("/v2/deployments", headers=headers).status_code == 401
    for address in ("192.168.1.7", "10.0.0.1", "2001:db8::1", ""):
        far = {"REMOTE_ADDR": address}
        assert (address, local.post("/threads", json={}, environ_overrides=far).status_code) == (address, 401)
        assert (address, local.get("/v2/deployments", environ_overrides=far).status_code) == (address, 401)


STUDIO = "https://studio.example"


def test_the_pages_of_one_site_may_be_allowed(app_with: MakeApp, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (STUDIO, "/threads", 200),
        (STUDIO, "/v2/deployments", 401),
        ("https://evil.example", "/threads", 403),
        ("https://studio.example.evil", "/threads", 403),
        ("http://studio.example", "/threads", 403),
    ]
    for origin, path, status in rows:
        with subtests.test(origin=origin, path=path, status=status):
            opened = app_with(dev_deployment="chat", dev_origin=STUDIO).test_client()
            answer = opened.post(path, json={}, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
            assert answer.status_code == status
            assert opened.get("/v2/deployments", headers={"Origin": origin}).status_code == 401
            far = {"REMOTE_ADDR": "192.168.1.7"}
            assert (
                opened.post(path, json={}, headers={"Origin": origin}, environ_overrides=far).status_code
                == 401
            )


def test_without_the_setting_nobody_passes_without_a_key(app_with: MakeApp) -> None:
    anonymous = app_with().test_client()
    assert anonymous.post("/d/chat/threads", json={}).status_code == 401
    assert anonymous.post("/threads", json={}).status_code in (401, 404)
