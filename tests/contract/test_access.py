"""Organizations, API keys and roles over HTTP. Every route of the app must be in the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from shared import __version__
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, ROLES
from shared.figures import budgets
from shared.infra.postgres import connection
from tests.contract.conftest import ADMIN_KEY, Api, ControlPlane, MakeApp, caller, new_key
from tests.support.routes import CALLS
from web.schemas import operations


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


def routes(app: Flask) -> Iterator[tuple[str, str]]:
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield method, rule.rule


def path_of(rule: str) -> str:
    return re.sub(r"<[^>]+>", lambda _: str(uuid4()), rule)


def test_every_route_is_in_the_table_and_has_its_role_and_slot(app: Flask) -> None:
    assert get_args(operations.Role) == ("open", *ROLES)
    assert set(routes(app)) == set(CALLS), "say in the table which role a new route needs"
    for rule in app.url_map.iter_rules():
        stated = operations.of_view(app.view_functions[rule.endpoint])
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            call = CALLS[method, rule.rule]
            assert (method, rule.rule, stated.role, stated.long) == (method, rule.rule, call.role, call.slot)
        assert stated.long is True or not stated.sse, rule.rule


def test_every_route_but_the_open_ones_needs_a_key(app: Flask, anonymous: FlaskClient) -> None:
    missing = {"detail": "Missing API key: send it as the header X-Api-Key"}
    unknown = caller(app, "ryd_12345678_" + "A" * 43)
    for (method, rule), call in CALLS.items():
        response = anonymous.open(path_of(rule), method=method)
        if call.role == "open":
            assert response.status_code != 401, (method, rule)
            continue
        assert (method, rule, response.status_code, response.json) == (method, rule, 401, missing)
        assert unknown.open(path_of(rule), method=method).status_code in (401, 429), (method, rule)


def test_a_key_may_do_what_its_role_may_and_no_more(app: Flask) -> None:
    """The lowest role of each route may call it, and the next lower role may not. Roles include those before them."""
    keys = {role: caller(app, new_key(role)) for role in ROLES}
    for key in keys.values():
        key.environ_base["HTTP_CONTENT_TYPE"] = "application/json"
    for (method, rule), call in CALLS.items():
        if call.role != "open":
            lowest = ROLES.index(call.role)
            for role in ROLES[max(lowest - 1, 0) : lowest + 1]:
                status = keys[role].open(path_of(rule), method=method).status_code
                assert (status != 403) is (role == call.role), (role, method, rule, status)
                assert status not in (401, 429), (role, method, rule, status)


def test_roles_are_ordered(app: Flask) -> None:
    for role in ROLES:
        key = caller(app, new_key(role))
        statuses = [key.get(path).status_code for path in ("/v2/me", "/v2/keys")]
        assert (role, statuses) == (role, [200, 200 if role in ("admin", "operator") else 403])
        created = key.post("/v2/organizations", json={"name": "acme"}).status_code
        assert (role, created) == (role, 201 if role == "operator" else 403)


def me(client: FlaskClient, **more: Any) -> Any:
    response = client.get("/v2/me", **more)
    assert response.status_code == 200, response.text
    return response.json


def test_a_key_learns_its_name_role_and_organization(app: Flask) -> None:
    acme = make.organization("acme")
    for role in ROLES:
        id, name = (DEFAULT_ORGANIZATION_ID, "default") if role == "operator" else (acme, "acme")
        key = new_key(role, id, name="ci")
        assert me(caller(app, key)) == {
            "role": role,
            "organization": {"id": str(id), "name": name},
            "key": {"id": key.split("_")[1], "name": "ci"},
            "user": None,
            "version": __version__,
            "dev": False,
        }


def test_an_operator_learns_in_which_organization_they_act(client: FlaskClient) -> None:
    acme = make.organization("acme")
    found = me(client, headers={"X-Tenant-Id": "acme"})
    assert found["organization"] == {"id": str(acme), "name": "acme"}
    assert found["key"] == {"id": "bootstrap", "name": "bootstrap"}


def test_a_developer_at_their_machine_is_somebody_without_a_key(app_with: MakeApp) -> None:
    found = me(app_with(dev_deployment="chat").test_client())
    assert (found["dev"], found["key"], found["role"]) == (True, None, "run")


DEFAULT = str(DEFAULT_ORGANIZATION_ID)
KEY_FIELDS = {
    "id", "name", "role", "created_at", "created_by", "expires_at", "last_used_at", "revoked_at", "max_concurrent_runs",
    *budgets.NAMES_OF_KEY,
}  # fmt: skip


@pytest.fixture
def operator(client: FlaskClient) -> ControlPlane:
    return ControlPlane(client)


def with_role(app: Flask, role: str, organization_id: Any = DEFAULT_ORGANIZATION_ID) -> ControlPlane:
    return ControlPlane(caller(app, new_key(role, organization_id)))


def test_an_organization_is_made_read_renamed_and_deleted(operator: ControlPlane) -> None:
    made = operator.post("/v2/organizations", {"name": "acme"})
    assert made.status_code == 201, made.text
    record: Any = made.json
    assert set(record) == {"id", "name", "created_at"}
    path = f"/v2/organizations/{record['id']}"
    assert operator.get(path).json == record
    assert operator.get("/v2/organizations").json["resources"][1:] == [record]  # type: ignore[index]

    renamed = operator.call("PATCH", path, {"name": "acme-2"})
    assert (renamed.status_code, renamed.json) == (200, {**record, "name": "acme-2"})

    assert operator.call("DELETE", path).status_code == 204
    gone = operator.get(path)
    assert (gone.status_code, gone.json) == (404, {"detail": f"Organization ID {record['id']} not found."})
    assert operator.call("DELETE", path).status_code == 404
    assert [row["name"] for row in operator.get("/v2/organizations").json["resources"]] == ["default"]  # type: ignore[index]


def test_it_refuses(operator: ControlPlane, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("POST", "/v2/organizations", {"name": "default"}, 409),
        ("POST", "/v2/organizations", {"name": str(uuid4())}, 422),
        ("POST", "/v2/organizations", {"name": "two words"}, 422),
        ("PATCH", f"/v2/organizations/{DEFAULT}", {"name": "mine"}, 400),
        ("DELETE", f"/v2/organizations/{DEFAULT}", None, 400),
        ("DELETE", f"/v2/organizations/{UUID(int=1)}", None, 404),
        ("POST", "/v2/keys", {"name": "x", "role": "read", "expires_at": "2020-01-01T00:00:00Z"}, 422),
        (
            "POST",
            "/v2/keys",
            {"name": "x", "role": "read", "expires_at": "2120-01-01", "lifetime_days": 1},
            422,
        ),
        ("GET", "/v2/keys/12345678", None, 404),
        ("PATCH", "/v2/keys/12345678", {"name": "x"}, 404),
        ("PATCH", "/v2/keys/12345678", {}, 422),
        ("PATCH", "/v2/keys/12345678", {"name": None, "max_concurrent_runs": None}, 422),
        ("DELETE", "/v2/keys/far-too-long-for-an-id", None, 404),
    ]
    for method, path, body, status in rows:
        with subtests.test(method=method, path=path, body=body, status=status):
            assert operator.call(method, path, body).status_code == status


def test_a_key_is_shown_once_and_never_again(app: Flask, operator: ControlPlane) -> None:
    made = operator.post("/v2/keys", {"name": "ci", "role": "deploy", "lifetime_days": 30})
    assert made.status_code == 201, made.text
    record: Any = made.json
    text = record.pop("key")
    assert text.startswith(f"ryd_{record['id']}_")
    assert set(record) == KEY_FIELDS
    assert (record["name"], record["role"], record["revoked_at"]) == ("ci", "deploy", None)
    lifetime = datetime.fromisoformat(record["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=29) < lifetime < timedelta(days=31)

    friend = ControlPlane(caller(app, text))
    assert friend.get("/v2/deployments").status_code == 200
    secret = text.split("_", 2)[2]
    for path in ("/v2/keys", f"/v2/keys/{record['id']}"):
        answer = operator.get(path)
        assert answer.status_code == 200
        assert secret not in answer.text
    seen: Any = operator.get(f"/v2/keys/{record['id']}").json
    assert seen.pop("last_used_at") is not None
    assert seen == {name: value for name, value in record.items() if name != "last_used_at"}


def test_a_key_is_given_another_role_and_expiry_but_not_by_itself(app: Flask, operator: ControlPlane) -> None:
    admin = with_role(app, "admin")
    mine: Any = admin.get("/v2/me").json
    made: Any = admin.post("/v2/keys", {"name": "ci", "role": "deploy", "lifetime_days": 1}).json
    path = f"/v2/keys/{made['id']}"
    ci = ControlPlane(caller(app, made["key"]))
    assert ci.get("/v2/keys").status_code == 403

    changed: Any = admin.call("PATCH", path, {"role": "admin", "lifetime_days": 0}).json
    assert (changed["role"], changed["expires_at"], changed["name"]) == ("admin", None, "ci")
    assert ci.get("/v2/keys").status_code == 200
    changed = admin.call("PATCH", path, {"role": "run", "expires_at": "2999-01-01T00:00:00Z"}).json
    assert (changed["role"], changed["expires_at"][:4]) == ("run", "2999")
    assert ci.get("/v2/keys").status_code == 403

    above: Any = operator.post("/v2/keys", {"name": "ops", "role": "operator"}).json
    own = "A key cannot change its own role or expiry. Make the change with another key."
    for key_id, body, status, detail in (
        (mine["key"]["id"], {"role": "read"}, 409, own),
        (mine["key"]["id"], {"lifetime_days": 1}, 409, own),
        (
            made["id"],
            {"role": "operator"},
            403,
            "A key with the role admin cannot change one with the role operator",
        ),
        (
            above["id"],
            {"role": "read"},
            403,
            "A key with the role admin cannot change one with the role operator",
        ),
        (
            above["id"],
            {"max_run_tokens": 1},
            403,
            "A key with the role admin cannot change one with the role operator",
        ),
    ):
        refused: Any = admin.call("PATCH", f"/v2/keys/{key_id}", body)
        assert (refused.status_code, refused.json) == (status, {"detail": detail}), body
    for body in (
        {"role": "boss"},
        {"lifetime_days": 1, "expires_at": "2999-01-01T00:00:00Z"},
        {"expires_at": "2000-01-01T00:00:00Z"},
    ):
        assert admin.call("PATCH", path, body).status_code == 422, body
    assert admin.call("PATCH", f"/v2/keys/{mine['key']['id']}", {"name": "me"}).status_code == 200

    assert admin.call("DELETE", path).status_code == 204
    refused = admin.call("PATCH", path, {"lifetime_days": 1})
    assert (refused.status_code, refused.json) == (
        409,
        {"detail": f"API key {made['id']} is revoked. Create another one."},
    )


def test_an_operator_acts_for_the_organization_it_names(operator: ControlPlane) -> None:
    made: Any = operator.post("/v2/organizations", {"name": "acme"}).json
    for tenant in ("acme", made["id"]):
        answer = operator.call("GET", "/v2/keys", headers={"X-Tenant-Id": tenant})
        assert (answer.status_code, answer.json) == (200, {"resources": [], "offset": 0})
    body = {"name": "theirs", "role": "admin"}
    key: Any = operator.call("POST", "/v2/keys", body, headers={"X-Tenant-Id": "acme"}).json
    theirs = ControlPlane(caller(operator.client.application, key["key"]))
    assert [row["id"] for row in theirs.get("/v2/organizations").json["resources"]] == [made["id"]]  # type: ignore[index]
    assert operator.get("/v2/keys").json == {"resources": [], "offset": 0}

    unknown = operator.call("GET", "/v2/keys", headers={"X-Tenant-Id": "nobody"})
    assert unknown.status_code == 403
    above = operator.call("POST", "/v2/keys", {**body, "role": "operator"}, headers={"X-Tenant-Id": "acme"})
    assert above.status_code == 422


def test_a_key_is_given_a_limit_of_runs_that_run_at_once(operator: ControlPlane) -> None:
    def made(**body: Any) -> Any:
        return operator.post("/v2/keys", {"name": "ci", "role": "run", **body}).json

    key = made(max_concurrent_runs=3)
    path = f"/v2/keys/{key['id']}"
    assert key["max_concurrent_runs"] == 3
    assert made()["max_concurrent_runs"] is None

    def changed(**body: Any) -> Any:
        return operator.call("PATCH", path, body).json

    assert changed(name="other")["max_concurrent_runs"] == 3
    assert changed(max_concurrent_runs=5) == {**changed(max_concurrent_runs=5), "name": "other"}
    assert changed(max_concurrent_runs=0)["max_concurrent_runs"] is None
    assert operator.get(path).json["max_concurrent_runs"] is None  # type: ignore[index]

    config = operator.client.application.config
    config["SETTINGS"] = replace(config["SETTINGS"], max_concurrent_runs_per_key=7)
    assert made()["max_concurrent_runs"] == 7
    assert made(max_concurrent_runs=2)["max_concurrent_runs"] == 2
    assert made(max_concurrent_runs=0)["max_concurrent_runs"] is None
