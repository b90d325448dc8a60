"""Revisions over HTTP: the changes that create one, and when it is built, redeployed and interrupted."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from flask import Flask

from shared.deployments import secrets
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane, Notifications, caller, new_key
from tests.contract.statements import execute
from tests.support.refusals import place
from tests.support.revisions import set_serving, set_status


def test_source_fills_the_revision_that_waits_for_it(
    control: ControlPlane, notifications: Notifications
) -> None:
    made = control.create()
    deployed = control.deploy(made, revision_source="internal_source", tracked_packages=["google-adk:1"])
    assert deployed["latest_revision_id"] == made["latest_revision_id"]
    revision = control.revision(deployed)
    assert revision["status"] == "AWAITING_BUILD"
    assert revision["source_revision_config"]["langgraph_config_path"] == "langgraph.json"
    assert revision["source_revision_config"]["tracked_packages"] == ["google-adk:1"]
    assert notifications.heard == [("builds", revision["id"])]


def test_a_revision_says_who_asked_for_it_and_what_it_changed(app: Flask, control: ControlPlane) -> None:
    key = new_key("deploy", name="ci")
    ci = ControlPlane(caller(app, key))
    variables = [{"name": name, "value": name.lower()} for name in ("A", "B", "C")]
    made = control.create(secrets=variables)
    deployed = control.deploy(made, secrets=[])
    replaced = [{"name": "B", "value": "b"}, {"name": "C", "value": "changed"}, {"name": "D", "value": "new"}]
    ci.change(made, secrets=replaced)
    ci.change(made, secret_changes=[{"name": "B", "value": None}, {"name": "E", "value": "e"}])
    path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/redeploy"
    assert ci.post(path).status_code == 200
    execute("DELETE FROM api_key WHERE name = 'ci'")

    found = control.revisions(made)[::-1]

    changes = [revision["changes"] for revision in found]
    assert [(each["variables_set"], each["variables_unset"]) for each in changes] == [
        (["A", "B", "C"], []),
        (["C", "D"], ["A"]),
        (["E"], ["B"]),
        (["A", "B", "C"], ["D", "E"]),
    ]
    assert [each["redeployed_number"] for each in changes] == [None, None, None, 1]
    assert {each["source"]["archive_digest"] for each in changes} == {sha256(b"an archive").hexdigest()}
    assert [revision["created_by"] for revision in found] == [
        {"key_id": "bootstrap", "name": "bootstrap"},
        *[{"key_id": key.split("_")[1], "name": "ci"}] * 3,
    ]
    assert control.revision(deployed) == found[0]
    assert "changed" not in str(found)
    execute("UPDATE revision SET created_by = NULL, changes = NULL")  # as in older rows
    old = control.revision(deployed)
    assert (old["created_by"], old["changes"]["variables_set"]) == (None, None)


def test_the_same_values_again_are_a_new_revision(control: ControlPlane) -> None:
    made = control.create()
    deployed = control.deploy(made)
    config = deployed["source_revision_config"]
    changed = control.change(
        made, source_config={"build_on_push": True}, source_revision_config={**config, "repo_ref": "main"}
    )
    assert changed["latest_revision_id"] != deployed["latest_revision_id"]
    assert changed["source_config"]["build_on_push"] is True
    assert control.revisions(made, limit=1)[0]["id"] == changed["latest_revision_id"]


def test_revisions_are_listed_by_status_and_page(control: ControlPlane) -> None:
    made = control.create()
    ids = [control.deploy(made)["latest_revision_id"] for _ in range(4)]
    assert [row["id"] for row in control.revisions(made)] == ids[::-1]
    assert [row["id"] for row in control.revisions(made, limit=1, offset=1)] == [ids[2]]
    assert [row["id"] for row in control.revisions(made, status="SKIPPED,QUEUED")] == ids[:0:-1]
    assert [row["number"] for row in control.revisions(made, limit=5000)] == [4, 3, 2, 1]
    bad = control.get(f"/v2/deployments/{made['id']}/revisions", status="NEW")
    assert place(bad) == (["query", "status", 0], "literal_error")


def test_a_revision_can_be_asked_for_and_brings_its_source_config(control: ControlPlane) -> None:
    made = control.create()
    first = control.deploy(made)["latest_revision_id"]
    response = control.post(f"/v2/deployments/{made['id']}/revisions", {})
    assert response.status_code == 201
    created: Any = response.json
    assert created["id"] != first
    assert created["status"] == "QUEUED"
    assert control.revisions(made, limit=1)[0] == created

    sent = {"resource_spec": {"cpu": 2}, "build_on_push": False}
    response = control.post(f"/v2/deployments/{made['id']}/revisions", {"source_config": sent})
    assert response.status_code == 201
    kept: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert {name: kept["source_config"][name] for name in sent} == sent


def test_a_built_revision_is_deployed_again_without_building(
    control: ControlPlane, notifications: Notifications
) -> None:
    made = control.create(secrets=[{"name": "A", "value": "1"}])
    first = control.deploy(made)["latest_revision_id"]
    execute("UPDATE revision SET requirements = 'langgraph==1', manifest = '{}'")
    set_serving(made, first)
    control.change(made, secrets=[{"name": "A", "value": "2"}])
    set_status(control.revisions(made)[0]["id"], "DEPLOYED")
    response = control.post(f"/v2/deployments/{made['id']}/revisions/{first}/redeploy")
    assert response.status_code == 200
    shown: Any = response.json
    latest = shown["latest_revision_id"]
    assert latest not in (first, None)
    assert control.revision(shown)["status"] == "AWAITING_DEPLOY"
    assert ("builds", latest) in notifications.heard
    with connection() as conn:
        assert secrets.secrets_of(conn, latest) == {"A": "1"}


def test_an_interrupted_revision_lets_the_next_one_go(control: ControlPlane) -> None:
    for root in ("/v1/projects", "/v2/deployments"):
        made = control.create(root.replace("/", "-").strip("-"))
        first = control.deploy(made)["latest_revision_id"]
        second = control.deploy(made)["latest_revision_id"]
        path = f"{root}/{made['id']}/revisions/{first}/interrupt"
        response = control.post(path)
        ended = control.revision(made, first)
        assert (root, response.status_code, response.json) == (root, 200, ended)
        assert (ended["status"], ended["status_message"]) == ("INTERRUPTED", "interrupted by a user")
        assert control.revision(made, second)["status"] == "AWAITING_BUILD"
        assert control.post(path).json == response.json
