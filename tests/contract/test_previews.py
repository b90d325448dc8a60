"""Previews: a revision at its own address, beside the serving one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

import tests.support.factories as make
from shared.deployments import deployments, traffic
from shared.infra.postgres import connection
from tests.contract.conftest import Api, ControlPlane, Notifications, caller
from tests.contract.splitting import THREADS, act, newer, on_thread, operator, split
from tests.contract.statements import execute
from web.gate.deployments import forget as forget_deployments

__all__ = ["newer", "operator"]


def preview(control: ControlPlane, deployment: Any, name: Any = "pr-1", **body: Any) -> Any:
    path = control.upload(deployment)
    config = {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"}
    sent = {"preview": name, "source_revision_config": config, **body}
    return control.post(f"/v2/deployments/{deployment['id']}/revisions", sent)


def test_a_previews_address_runs_its_revision_and_no_other_does(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    serving = str(api.deployment.active_revision_id)
    make.preview(api.deployment.id, UUID(newer))
    split(operator, api, (serving, 50), (newer, 50))

    assert {on_thread(api, id, "chat--pr-1") for id in THREADS[:10]} == {newer}
    act(operator, api, "abort")
    assert {on_thread(api, id) for id in THREADS[:10]} == {serving}

    (listed,) = operator.get(f"/v2/deployments/{api.deployment.id}/previews").json["resources"]  # type: ignore[index]
    assert listed["url"].endswith("/d/chat--pr-1")
    assert (listed["revision_id"], listed["revision_number"]) == (newer, 2)
    previewed = Api(api.client, replace(api.deployment, name="chat--pr-1"))
    assert previewed.get("/ok").status_code == 200
    assert previewed.get("/info").json["host"]["revision_id"] == newer
    assert previewed.get(f"/threads/{THREADS[0]}").status_code == 200  # threads belong to the deployment

    forget_deployments()
    path = f"/v2/deployments/{api.deployment.id}/previews/pr-1"
    assert operator.call("DELETE", path).status_code == 204
    assert operator.call("DELETE", path).status_code == 404
    assert previewed.get("/info").status_code == 404
    assert previewed.post("/runs", {"assistant_id": "agent"}).status_code == 404


def test_a_preview_is_at_its_own_host_too_and_others_do_not_reach_it(
    app_with: Any, api: Api, newer: str, neighbour: Api
) -> None:
    make.preview(api.deployment.id, UUID(newer))
    theirs = Api(neighbour.client, replace(neighbour.deployment, name="chat--pr-1"))
    assert theirs.get("/info").status_code == 404
    assert theirs.post("/runs", {"assistant_id": "agent"}).status_code == 404
    client = caller(app_with(app_domain="agents.test"), str(api.client.environ_base["HTTP_X_API_KEY"]))
    found = client.get("/info", headers={"Host": "chat--pr-1.agents.test"})
    assert found.json["host"]["revision_id"] == newer  # type: ignore[index]


def test_a_deployment_has_its_name_before_a_preview(api: Api, newer: str, operator: ControlPlane) -> None:
    make.preview(api.deployment.id, UUID(newer))
    other = make.deployment("chat--pr-1", organization_id=api.deployment.organization_id)
    assert on_thread(api, THREADS[0], "chat--pr-1") == str(other.active_revision_id)
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    assert preview(operator, record).status_code == 409


def test_a_preview_is_built_beside_what_is_to_serve(
    control: ControlPlane, notifications: Notifications
) -> None:
    made = control.create(secrets=[{"name": "A", "value": "1"}])
    record = control.deploy(made)
    latest = record["latest_revision_id"]
    first, second = preview(control, made).json, preview(control, made).json
    other = preview(control, made, "pr-2").json
    assert [first["preview"], first["status"], other["preview"]] == ["pr-1", "QUEUED", "pr-2"]
    assert control.get(f"/v2/deployments/{made['id']}").json["latest_revision_id"] == latest  # type: ignore[index]

    newest = control.deploy(made)["latest_revision_id"]

    def statuses() -> dict[str, str]:
        return {row["id"]: row["status"] for row in control.revisions(made)}

    assert statuses() == {
        latest: "AWAITING_BUILD", first["id"]: "SKIPPED", second["id"]: "QUEUED", other["id"]: "QUEUED",
        newest: "QUEUED",
    }  # fmt: skip
    order = [latest, newest, second["id"], other["id"]]
    for begun in order:
        assert statuses()[begun] == "AWAITING_BUILD"
        control.post(f"/v2/deployments/{made['id']}/revisions/{begun}/interrupt")
    assert [id for _, id in notifications.heard] == order


def test_deleting_a_preview_stops_what_is_built_for_it(control: ControlPlane) -> None:
    made = control.create()
    revision = preview(control, made).json
    assert revision["status"] == "AWAITING_BUILD"
    (listed,) = control.get(f"/v2/deployments/{made['id']}/previews").json["resources"]  # type: ignore[index]
    assert (listed["url"], listed["latest_revision_status"]) == (None, "AWAITING_BUILD")
    assert control.call("DELETE", f"/v2/deployments/{made['id']}/previews/pr-1").status_code == 204
    assert control.revision(made, revision["id"])["status"] == "INTERRUPTED"


def test_a_preview_has_a_name_that_an_address_can_have(
    control: ControlPlane, subtests: pytest.Subtests
) -> None:
    made = control.create()
    for name in ("", "PR", "a--b", "-a", "a-", "a_b", "a/b", "x" * 41, 7):
        with subtests.test(name=name):
            refused = preview(control, made, name)
            if name == "":
                assert refused.status_code == 422
                continue
            assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "preview"])


def test_a_preview_needs_source_and_there_are_not_too_many(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = control.create()
    refused = control.post(f"/v2/deployments/{made['id']}/revisions", {"preview": "pr-1"})
    assert refused.status_code == 400
    monkeypatch.setattr(traffic, "MOST_PREVIEWS", 1)
    assert preview(control, made).status_code == 201
    assert preview(control, made).status_code == 201
    assert preview(control, made, "pr-2").status_code == 409


def test_a_preview_that_is_promoted_is_what_the_next_change_builds_on(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    make.preview(api.deployment.id, UUID(newer))
    execute(
        "UPDATE revision SET preview = 'pr-1', archive_digest = repeat('0', 64),"
        """ source_revision_config = '{"langgraph_config_path": "new.json"}' WHERE id = :id""",
        id=newer,
    )
    act(operator, api, "promote", revision_id=newer)
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    changed = operator.change(record, secret_changes=[{"name": "A", "value": "1"}])
    latest = operator.revision(changed)
    assert latest["source_revision_config"]["langgraph_config_path"] == "new.json"
    assert operator.revision(changed, newer)["preview"] is None


def test_its_reference_says_which_address_it_was_called_at(api: Api, newer: str) -> None:
    make.preview(api.deployment.id, UUID(newer))
    with connection() as conn:
        found = deployments.resolve(conn, api.deployment.organization_id, "chat--pr-1")
        assert found is not None
        assert (found.name, found.address_name, str(found.active_revision_id)) == (
            "chat",
            "chat--pr-1",
            newer,
        )
        assert deployments.resolve(conn, api.deployment.organization_id, "chat--pr-2") is None
        assert deployments.resolve(conn, api.deployment.organization_id, "--pr-1") is None
