"""`/v2/me`: the caller's own role, organization and key."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from shared import __version__
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, ROLES
from tests.contract.conftest import MakeApp, caller, new_key


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
