"""Status of a deployment, and the numbers of its revisions."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.deployments import limits
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane
from tests.contract.statements import execute


def listed(control: ControlPlane, **filters: str) -> list[str]:
    """Return the names of the matching deployments."""
    page: Any = control.get("/v2/deployments", **filters).json
    return [row["name"] for row in page["resources"]]


def ended(control: ControlPlane, deployment: dict[str, Any], status: str) -> dict[str, Any]:
    """End the newest revision with this status. Returns the deployment's record."""
    execute(
        "UPDATE revision SET status = :status WHERE id = :id",
        status=status,
        id=deployment["latest_revision_id"],
    )
    return control.get(f"/v2/deployments/{deployment['id']}").json


def test_a_deployment_that_serves_nothing_and_builds_nothing_is_not_ready(control: ControlPlane) -> None:
    made = control.create("app")
    assert control.deploy(made)["status"] == "READY", "it is on its way"

    failed = ended(control, made, "BUILD_FAILED")
    assert (failed["status"], failed["latest_revision_status"]) == ("UNUSED", "BUILD_FAILED")
    assert [listed(control, status=status) for status in ("UNUSED", "READY")] == [["app"], []]

    again = control.deploy(made)
    assert (again["status"], again["latest_revision_number"]) == ("READY", 2)
    execute("UPDATE deployment SET active_revision_id = latest_revision_id")
    serving = ended(control, again, "DEPLOYED")
    assert (serving["status"], serving["active_revision_number"]) == ("READY", 2)
    assert ended(control, control.deploy(made), "BUILD_FAILED")["status"] == "READY", "the old one serves"


@pytest.mark.parametrize(
    ("auth", "role"),
    [
        (None, "read"),
        ({"parameters": [], "handlers": []}, "run"),
        ({"parameters": [], "handlers": [], "disable_studio_auth": True}, None),
    ],
)
def test_a_deployment_names_the_least_role_of_a_key_that_it_accepts(
    control: ControlPlane, auth: dict[str, Any] | None, role: str | None
) -> None:
    made = control.create("app")
    assert control.deploy(made)["least_key_role"] is None, "no revision serves"
    execute("UPDATE revision SET user_code = CAST(:code AS json)", code=json.dumps({"auth": auth}))
    execute("UPDATE deployment SET active_revision_id = latest_revision_id")
    serving: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert serving["least_key_role"] == role


def test_the_hosts_of_a_revision_know_when_another_one_serves(control: ControlPlane) -> None:
    made = control.create("app")
    first = control.deploy(made)["latest_revision_id"]
    second = control.deploy(made)["latest_revision_id"]
    ids = [UUID(first), UUID(second)]
    with connection() as conn:
        assert not any(found.is_replaced for found in limits.of_hosts(conn, ids).values()), "none serves"
        conn.execute(text("UPDATE deployment SET active_revision_id = latest_revision_id"))
        assert [limits.of_hosts(conn, ids)[id].is_replaced for id in ids] == [True, False]
