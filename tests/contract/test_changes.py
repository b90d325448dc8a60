"""Recorded changes over HTTP: deployments, traffic and keys, with the key that made each."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.contract.conftest import Api, ControlPlane, caller, new_key
from tests.contract.splitting import newer, operator, split

__all__ = ["newer", "operator"]


def recorded(operator: ControlPlane, **query: Any) -> list[dict[str, Any]]:
    answer: Any = operator.get("/v2/changes", **query).json
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

    assert [row["kind"] for row in reversed(rows)] == [
        "traffic.split",
        "traffic.aborted",
        "traffic.promoted",
        "deployment.changed",
        "deployment.deleted",
    ]
    assert {row["subject"] for row in rows} == {"chat"}
    assert {row["changed_by"]["key_id"] for row in rows} == {"bootstrap"}
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

    assert [(row["kind"], row["subject"]) for row in reversed(rows)] == [
        ("key.created", "ci"),
        ("key.changed", "ci"),
        ("key.revoked", "ci"),
    ]
    assert rows[-1]["detail"] == {"of_key": key["id"], "role": "run"}
    assert key["key"] not in str(rows)
    assert [row["kind"] for row in recorded(operator, limit=1, offset=1)] == ["key.changed"]
    assert neighbour.client.get("/v2/changes").json["resources"] == []
    for role, count in (("deploy", 0), ("admin", 3)):
        answer: Any = caller(neighbour.client.application, new_key(role)).get("/v2/changes").json
        assert len(answer["resources"]) == count, role


def test_a_refused_change_is_not_recorded(api: Api, newer: str, operator: ControlPlane) -> None:
    split(operator, api, (newer, 30))
    operator.call("DELETE", "/v2/keys/unknown1")
    operator.call("PATCH", f"/v2/deployments/{UUID(int=1)}", {"display_name": "Chat"})

    assert recorded(operator) == []
