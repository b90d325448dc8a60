"""The audit log over HTTP: what each operation records, who sees it, and that no secret is in it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask.testing import FlaskClient

from shared.access import api_keys
from tests.contract.conftest import Api, ControlPlane, caller, new_key
from tests.contract.splitting import newer, operator, split
from tests.contract.statements import execute, one
from tests.support.asking import ask

__all__ = ["newer", "operator"]

PROVIDER = {
    "provider_id": "hub",
    "name": "Hub",
    "client_id": "runyard",
    "client_secret": "secret",
    "auth_url": "https://hub.example/authorize",
    "token_url": "https://hub.example/token",
}


def recorded(operator: ControlPlane, **query: Any) -> list[dict[str, Any]]:
    answer: Any = operator.get("/v2/audit", **query).json
    return answer["resources"]


def test_changes_of_traffic_settings_and_deployments_are_listed(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    path = f"/v2/deployments/{api.deployment.id}"
    split(operator, api, (newer, 30), (str(api.deployment.active_revision_id), 70))
    for _ in range(2):  # the second one changes nothing
        operator.post(f"{path}/traffic/abort", {})
    operator.post(f"{path}/traffic/promote", {"revision_id": newer})
    operator.call("PATCH", path, {"display_name": "Chat"})
    operator.call("DELETE", path)

    rows = recorded(operator, deployment_id=str(api.deployment.id))

    assert [row["action"] for row in reversed(rows)] == [
        "traffic.split",
        "traffic.aborted",
        "traffic.promoted",
        "deployment.changed",
        "deployment.deleted",
    ]
    assert {row["subject"] for row in rows} == {"chat"}
    assert {row["actor"]["key_id"] for row in rows} == {"bootstrap"}
    shares = rows[-1]["detail"]["traffic"]
    assert [(share["revision_number"], share["percent"]) for share in shares] == [(1, 70), (2, 30)]
    assert rows[-3]["detail"] == {"revision_number": 2}
    assert rows[1]["detail"] == {"fields": ["display_name"]}


def test_changes_of_keys_are_listed_without_their_secrets(operator: ControlPlane, neighbour: Api) -> None:
    key: Any = operator.post("/v2/keys", {"name": "ci", "role": "run"}).json
    operator.call("PATCH", f"/v2/keys/{key['id']}", {"role": "read"})
    for _ in range(2):  # the second one changes nothing
        operator.call("DELETE", f"/v2/keys/{key['id']}")

    rows = recorded(operator)

    assert [(row["action"], row["subject"]) for row in reversed(rows)] == [
        ("key.created", "ci"),
        ("key.changed", "ci"),
        ("key.revoked", "ci"),
    ]
    assert rows[-1]["detail"] == {"of_key": key["id"], "role": "run"}
    assert key["key"] not in str(rows)
    assert [row["action"] for row in recorded(operator, limit=1, offset=1)] == ["key.changed"]
    assert neighbour.client.get("/v2/audit").json["resources"] == []
    for role, count in (("deploy", 0), ("admin", 3)):
        answer: Any = caller(neighbour.client.application, new_key(role)).get("/v2/audit").json
        assert len(answer["resources"]) == count, role


def test_a_refused_key_is_recorded_once_an_hour(operator: ControlPlane, neighbour: Api) -> None:
    application = neighbour.client.application
    revoked: Any = operator.post("/v2/keys", {"name": "old", "role": "run"}).json
    operator.call("DELETE", f"/v2/keys/{revoked['id']}")
    expired: Any = operator.post("/v2/keys", {"name": "late", "role": "run"}).json
    execute("UPDATE api_key SET expires_at = now() WHERE id = :id", id=expired["id"])
    guessed: Any = operator.post("/v2/keys", {"name": "ci", "role": "run"}).json
    wrong = guessed["key"][:-3] + "AAA"
    unknown = f"{revoked['key'][:4]}{'z' * 10}_{wrong[-43:]}"
    for key in (revoked["key"], expired["key"], wrong, unknown, "no key", revoked["key"], wrong):
        api_keys.forget()  # another process
        assert caller(application, key).get("/v2/deployments").status_code == 401

    rows = recorded(operator, action="key.refused")

    assert [(row["subject"], row["detail"]["reason"]) for row in reversed(rows)] == [
        ("old", "revoked"),
        ("late", "expired"),
        ("ci", "wrong secret"),
    ]
    assert {(row["actor"], row["address"]) for row in rows} == {(None, "127.0.0.1")}
    assert wrong not in str(rows)


def test_secrets_are_recorded_by_name(api: Api, operator: ControlPlane) -> None:
    path = f"/v2/deployments/{api.deployment.id}"
    secrets = [{"name": "TOKEN", "value": "very-secret"}]
    operator.call("PATCH", path, {"secrets": secrets})

    (entry,) = recorded(operator, action="secrets")

    detail = {"revision_number": 2, "variables_set": ["TOKEN"], "variables_unset": []}
    assert (entry["subject"], entry["detail"], entry["address"]) == ("chat", detail, "127.0.0.1")
    assert "very-secret" not in str(recorded(operator))


def test_organizations_and_providers_are_recorded(operator: ControlPlane) -> None:
    organization: Any = operator.post("/v2/organizations", {"name": "Acme"}).json
    operator.call("PATCH", f"/v2/organizations/{organization['id']}", {"name": "Umbrella"})
    operator.call("DELETE", f"/v2/organizations/{organization['id']}")
    operator.post("/v2/auth/providers", PROVIDER)
    operator.call("PATCH", "/v2/auth/providers/hub", {"name": "Hub 2"})
    operator.call("DELETE", "/v2/auth/providers/hub")

    rows = [(row["action"], row["subject"], row["detail"]) for row in reversed(recorded(operator))]

    assert rows == [
        ("organization.created", "Acme", {"of_organization": organization["id"]}),
        ("organization.renamed", "Umbrella", {"before": "Acme"}),
        ("organization.deleted", "Umbrella", {"of_organization": organization["id"]}),
        ("provider.created", "hub", {}),
        ("provider.changed", "hub", {"fields": ["name"]}),
        ("provider.deleted", "hub", {}),
    ]


def test_operators_read_the_entries_of_a_deleted_organization(operator: ControlPlane, neighbour: Api) -> None:
    app, organization_id = neighbour.client.application, str(neighbour.deployment.organization_id)
    neighbour.client.post("/v2/keys", json={"name": "ci", "role": "run"})
    admin = ControlPlane(caller(app, new_key("admin")))
    assert admin.get("/v2/audit", organization_id=organization_id).status_code == 404
    operator.call("DELETE", f"/v2/organizations/{organization_id}")

    (entry,) = recorded(operator, organization_id=organization_id)

    assert (entry["action"], entry["subject"]) == ("key.created", "ci")


def test_answers_and_links_of_questions_are_recorded_without_what_was_said(
    api: Api, operator: ControlPlane, anonymous: FlaskClient
) -> None:
    by_key, by_link = ask(api.deployment), ask(api.deployment)
    api.client.post(f"/v2/inbox/{by_key}/answer", json={"answer": "my-secret-answer"})
    link: Any = api.client.post(f"/v2/inbox/{by_link}/link", json={"label": "Ann"}).json
    token = link["url"].rpartition("#")[2]
    anonymous.post("/v2/inbox/link/answer", json={"token": token, "answer": "my-secret-answer"})
    for _ in range(2):  # the second one changes nothing
        operator.call("DELETE", f"/v2/inbox/links/{link['id']}")

    rows = recorded(operator, action="question")

    of_link = {"question_id": str(by_link), "link_id": link["id"]}
    assert [(row["action"], row["actor"]["name"], row["detail"]) for row in reversed(rows)] == [
        ("question.answered", "bootstrap", {**answered(by_key)}),
        ("question.link_created", "bootstrap", {**of_link, "label": "Ann"}),
        ("question.answered", f"link:{link['id']} (Ann)", {**answered(by_link)}),
        ("question.link_revoked", "bootstrap", of_link),
    ]
    assert rows[1]["actor"]["key_id"] == f"link:{link['id']}"
    assert {(row["subject"], row["address"]) for row in rows} == {("chat", "127.0.0.1")}
    for secret in ("my-secret-answer", token, "May I?"):
        assert secret not in str(rows)


def answered(question_id: UUID) -> dict[str, str]:
    thread_id, run_id = one(
        "SELECT thread_id, answer_run_id FROM question WHERE question_id = :id", id=question_id
    )
    return {"question_id": str(question_id), "thread_id": str(thread_id), "run_id": str(run_id)}


def test_an_upload_url_is_recorded_without_its_token(api: Api, operator: ControlPlane) -> None:
    place: Any = operator.post(f"/v2/deployments/{api.deployment.id}/upload-url").json

    (entry,) = recorded(operator, action="upload.opened")

    assert (entry["subject"], entry["deployment_id"]) == ("chat", str(api.deployment.id))
    assert place["upload_url"].rpartition("/")[2] not in str(entry)


def test_a_refused_change_is_not_recorded(api: Api, newer: str, operator: ControlPlane) -> None:
    split(operator, api, (newer, 30))
    operator.call("DELETE", "/v2/keys/unknown1")
    operator.call("PATCH", f"/v2/deployments/{UUID(int=1)}", {"display_name": "Chat"})

    assert recorded(operator) == []
