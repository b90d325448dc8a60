"""Recorded changes: ends of revisions by a trigger, reading by organization and deployment, and retention."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared import changes
from shared.changes import ChangeKind
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db")

KEY = {"key_id": "aaaa", "name": "ci"}


def newest(organization_id: UUID, **filters: Any) -> list[dict[str, Any]]:
    with connection() as conn:
        return changes.newest(conn, organization_id, **{"limit": 20, "offset": 0, **filters})


def add(organization_id: UUID, subject: str = "chat", **fields: Any) -> None:
    with connection() as conn:
        changes.add(conn, organization_id, ChangeKind.KEY_CREATED, subject, **{"by": KEY, **fields})


def move(revision_id: UUID | None, status: RevisionStatus) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE revision SET status = :status WHERE id = :id"), {"status": status, "id": revision_id}
        )


def test_the_end_of_a_revision_is_recorded_once_with_the_key_that_requested_it(
    deployment: DeploymentRef,
) -> None:
    built = factories.revision(
        deployment.id, number=7, status=RevisionStatus.BUILDING, created_by=KEY, preview="pr-1"
    )
    failing = factories.revision(deployment.id, number=8, status=RevisionStatus.BUILDING)
    move(built, RevisionStatus.DEPLOYING)
    for _ in range(2):
        move(built, RevisionStatus.DEPLOYED)
    move(failing, RevisionStatus.BUILD_FAILED)

    failed, deployed = newest(deployment.organization_id)

    assert (deployed["kind"], deployed["subject"]) == (ChangeKind.REVISION_DEPLOYED, deployment.name)
    assert (deployed["deployment_id"], deployed["changed_by"]) == (deployment.id, KEY)
    assert (deployed["detail"]["revision_number"], deployed["detail"]["preview"]) == (7, "pr-1")
    assert (failed["kind"], failed["detail"]["status"]) == (ChangeKind.REVISION_FAILED, "BUILD_FAILED")
    assert failed["changed_by"] is None


def test_changes_are_read_newest_first_and_by_deployment(deployment: DeploymentRef) -> None:
    other = factories.deployment(organization_id=factories.organization("other"))
    add(other.organization_id)
    add(deployment.organization_id, "first", deployment_id=deployment.id)
    add(deployment.organization_id, "second")

    assert [row["subject"] for row in newest(deployment.organization_id)] == ["second", "first"]
    assert [row["subject"] for row in newest(deployment.organization_id, offset=1)] == ["first"]
    of_deployment = newest(deployment.organization_id, deployment_id=deployment.id)
    assert [row["subject"] for row in of_deployment] == ["first"]


def test_old_changes_and_the_oldest_of_too_many_are_removed(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST", 2)
    for subject in ("too many", "old", "new"):
        add(deployment.organization_id, subject)
    with connection() as conn:
        conn.execute(text("UPDATE change SET at = now() - interval '91 days' WHERE subject = 'old'"))

    with connection() as conn:
        assert changes.remove_old(conn) == 2

    assert [row["subject"] for row in newest(deployment.organization_id)] == ["new"]
