"""The audit log: ends of revisions by a trigger, search, refused changes of entries, and retention."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from shared import audit
from shared.audit import Action, Actor
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db")

KEY = {"key_id": "aaaa", "name": "ci"}
CI = Actor("aaaa", "ci", "192.0.2.7")


def newest(organization_id: UUID, **filters: Any) -> list[dict[str, Any]]:
    with connection() as conn:
        return audit.search(conn, organization_id, **{"limit": 20, "offset": 0, **filters})


def add(organization_id: UUID, subject: str = "chat", **fields: Any) -> None:
    with connection() as conn:
        audit.add(
            conn, organization_id, **{"action": Action.KEY_CREATED, "subject": subject, "by": CI, **fields}
        )


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

    assert (deployed["action"], deployed["subject"]) == (Action.REVISION_DEPLOYED, deployment.name)
    assert (deployed["deployment_id"], deployed["actor"]) == (deployment.id, KEY)
    assert (deployed["detail"]["revision_number"], deployed["detail"]["preview"]) == (7, "pr-1")
    assert (failed["action"], failed["detail"]["status"]) == (Action.REVISION_FAILED, "BUILD_FAILED")
    assert failed["actor"] is None


def test_entries_are_found_by_every_filter_newest_first(deployment: DeploymentRef) -> None:
    other = factories.deployment(organization_id=factories.organization("other"))
    add(other.organization_id)
    add(deployment.organization_id, "first", deployment_id=deployment.id, action=Action.TRAFFIC_SPLIT)
    add(deployment.organization_id, "second", by=Actor("bbbb", "ann"))
    second_at, first_at = (row["at"] for row in newest(deployment.organization_id))

    def found(**filters: Any) -> list[str]:
        return [row["subject"] for row in newest(deployment.organization_id, **filters)]

    assert found() == ["second", "first"]
    assert found(offset=1) == ["first"]
    assert found(deployment_id=deployment.id) == ["first"]
    assert found(action="traffic") == found(action="traffic.split") == ["first"]
    assert found(action="traf") == []
    assert found(key_id="bbbb") == ["second"]
    assert found(since=second_at) == ["second"]
    assert found(until=second_at) == ["first"]
    assert found(as_admin=False) == ["first"]
    assert first_at < second_at


def test_only_administrators_see_addresses(deployment: DeploymentRef) -> None:
    add(deployment.organization_id, action=Action.DEPLOYMENT_CREATED)

    (entry,) = newest(deployment.organization_id)
    (hidden,) = newest(deployment.organization_id, as_admin=False)

    assert (entry["address"], hidden["address"]) == (CI.address, None)
    assert entry["actor"] == hidden["actor"] == KEY


def test_an_entry_cannot_be_changed(deployment: DeploymentRef) -> None:
    add(deployment.organization_id)

    with pytest.raises(DBAPIError, match="cannot be changed"), connection() as conn:
        conn.execute(text("UPDATE audit_entry SET subject = 'other'"))


def test_old_entries_and_the_oldest_of_too_many_are_removed(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST", 2)
    for subject in ("too many", "old", "new"):
        add(deployment.organization_id, subject)

    with connection() as conn:
        assert audit.remove_old(conn, days=14.0) == 1
    with connection() as conn:
        assert audit.remove_old(conn, days=0) == 2
    assert newest(deployment.organization_id) == []
