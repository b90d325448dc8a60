"""Organizations and API keys over HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from tests.contract.conftest import ControlPlane, caller, new_key

DEFAULT = str(DEFAULT_ORGANIZATION_ID)
KEY_FIELDS = {
    "id", "name", "role", "created_at", "created_by", "expires_at", "last_used_at", "revoked_at", "max_concurrent_runs",
    "max_tokens_per_day", "max_run_tokens",
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


def test_no_key_makes_one_that_may_do_more_than_itself(app: Flask) -> None:
    admin = with_role(app, "admin")
    refused = admin.post("/v2/keys", {"name": "more", "role": "operator"})
    assert refused.status_code == 403
    assert refused.json == {"detail": "A key with the role admin cannot create a key with the role operator"}
    assert admin.post("/v2/keys", {"name": "same", "role": "admin"}).status_code == 201


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
