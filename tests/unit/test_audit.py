"""The audit log: ends of revisions by a trigger, search, refused changes of entries, and retention."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text
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


def test_an_entry_cannot_be_changed_or_deleted_and_outlives_its_organization(
    deployment: DeploymentRef,
) -> None:
    add(deployment.organization_id)

    for change in (
        "UPDATE audit_entry SET subject = 'other'",
        "DELETE FROM audit_entry",
        "TRUNCATE audit_entry",
    ):
        with pytest.raises(DBAPIError, match="cannot be changed or deleted"), connection() as conn:
            conn.execute(text(change))
    with connection() as conn:
        conn.execute(text("DELETE FROM deployment WHERE id = :id"), {"id": deployment.id})
        conn.execute(text("DELETE FROM organization WHERE id = :id"), {"id": deployment.organization_id})
    assert [row["subject"] for row in newest(deployment.organization_id)] == ["chat"]


def test_pages_stay_the_same_while_entries_are_added(deployment: DeploymentRef) -> None:
    other = factories.organization("other")
    for subject in "abcd":
        add(deployment.organization_id, subject)
        add(other)
    first = newest(deployment.organization_id, limit=2)
    add(deployment.organization_id, "late")

    second = newest(deployment.organization_id, limit=2, before=first[-1]["id"])
    of_key = newest(deployment.organization_id, before=first[-1]["id"], action="key", key_id="aaaa")

    assert [row["subject"] for row in first + second] == ["d", "c", "b", "a"]
    assert [row["subject"] for row in of_key] == ["b", "a"]
    assert newest(other, before=first[-1]["id"]) == []


def test_each_filter_reads_an_index_in_the_order_of_the_result(deployment: DeploymentRef) -> None:
    """A filter that few of many entries match must not read all of them."""
    columns = "organization_id, action, subject, actor, at"
    with connection() as conn:
        conn.execute(
            text(
                f"INSERT INTO audit_entry ({columns}) SELECT :id, 'key.created', 'k', CAST(:actor AS jsonb),"
                " now() - make_interval(secs => n) FROM generate_series(1, 5000) AS n"
            ),
            {"id": deployment.organization_id, "actor": '{"key_id": "many", "name": "ci"}'},
        )
        conn.execute(text("ANALYZE audit_entry"))
    old = newest(deployment.organization_id, offset=4000)[0]["at"]
    searches: list[dict[str, Any]] = [
        {},
        {"action": "traffic"},
        {"deployment_id": deployment.id},
        {"key_id": "rare"},
        {"until": old},
    ]
    with connection() as conn:
        for filters in searches:
            before = _entries_read(conn)
            audit.search(conn, deployment.organization_id, limit=20, offset=0, **filters)
            assert _entries_read(conn) - before < 100, filters


def _entries_read(conn: Connection) -> int:
    """Return how many entries this transaction has read, by indexes and by scans of the table."""
    reads = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'audit_entry'"
    return conn.execute(text(reads)).scalar_one()


def test_old_entries_and_the_oldest_of_too_many_are_removed(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST", 2)
    other = factories.organization("other")
    for subject in ("too many", "old", "new"):
        add(deployment.organization_id, subject)
    add(other)

    with connection() as conn:
        assert audit.remove_old(conn, days=14.0) == 1
    assert [row["subject"] for row in newest(deployment.organization_id)] == ["new", "old"]
    assert len(newest(other)) == 1, "an organization displaces no entries of another"
    with connection() as conn:
        assert audit.remove_old(conn, days=0) == 3
    assert newest(deployment.organization_id) == []
