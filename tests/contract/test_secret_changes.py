"""Secrets set or removed one by one, by callers who do not know the values of the others."""

from __future__ import annotations

from typing import Any

from shared.deployments import secrets
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane

TWO = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]


def kept(deployment: Any) -> dict[str, str]:
    with connection() as conn:
        return secrets.secrets_of(conn, deployment["latest_revision_id"])


def test_some_secrets_change_and_the_rest_stays(control: ControlPlane) -> None:
    made = control.create(secrets=TWO)
    deployed = control.deploy(made)
    changes = [{"name": "B", "value": None}, {"name": "C", "value": "3"}, {"name": "none", "value": None}]

    changed = control.change(made, secret_changes=changes)

    assert changed["latest_revision_number"] == 2
    assert (kept(deployed), kept(changed)) == ({"A": "1", "B": "2"}, {"A": "1", "C": "3"})
    gone = control.change(made, secret_changes=[{"name": name, "value": None} for name in "AC"])
    assert (gone["secrets"], kept(gone)) == ([], {}), "the last ones too"


def test_a_new_set_comes_before_its_changes_and_no_change_makes_no_revision(control: ControlPlane) -> None:
    made = control.create(secrets=TWO)
    control.deploy(made)
    change = control.change(made, secrets=TWO[:1], secret_changes=[{"name": "A", "value": "9"}])
    assert kept(change) == {"A": "9"}

    made = control.deploy(control.create("unchanged"))
    for changes in ([], None):
        assert control.change(made, secret_changes=changes)["latest_revision_number"] == 1, changes


def test_a_name_that_is_the_service_s_own_is_refused(control: ControlPlane) -> None:
    made = control.deploy(control.create(secrets=TWO))
    path = f"/v2/deployments/{made['id']}"
    body = {"secret_changes": [{"name": "DATABASE_URI", "value": "x"}]}
    refused = control.call("PATCH", path, body)
    assert (refused.status_code, "DATABASE_URI" in refused.text) == (400, True)
    assert len(control.revisions(made)) == 1
    body = {"secret_changes": [{"name": f"N{n}", "value": "x"} for n in range(499)]}
    assert control.call("PATCH", path, body).status_code == 400, "501 in all"
