"""Rules of deployments on a real database: names, secrets, and the removal of deleted deployments."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.deployments import deployments, revisions, secrets, sources
from shared.deployments.next_revision import Change
from shared.errors import NotFound
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.removal import deletion
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db", "own_key")


@pytest.fixture
def organization_id() -> UUID:
    return factories.organization()


def create(organization_id: UUID, name: str | None = "app", **values: Any) -> UUID:
    content = {"source_config": {}, "revision_config": {}, "secrets": [], **values}
    with connection() as conn:
        return deployments.create(conn, organization_id, name=name, source="internal_source", **content)


def upload(deployment_id: UUID, folder: Path, data: bytes) -> str:
    """Upload an archive for the deployment. Returns its object path."""
    path = folder / "archive"
    path.write_bytes(data)
    with connection() as conn:
        place = sources.open_upload(conn, deployment_id)
        sources.store_upload(conn, place.object_path, path, hashlib.sha256(data).hexdigest())
    return place.object_path


def push(organization_id: UUID, id: UUID, object_path: str, **change: Any) -> UUID:
    wanted = Change(revision_config={"source_tarball_path": object_path}, **change)
    with connection() as conn:
        revision_id, _ = deployments.change(conn, organization_id, id, wanted)
    assert revision_id is not None
    return revision_id


def count(table: str) -> int:
    with connection() as conn:
        return int(conn.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one())


def purge() -> None:
    """Purge until nothing is left to remove."""
    while True:
        with connection() as conn:
            if not deletion.purge(conn):
                return


def test_what_is_not_named_carries_over_to_the_next_revision(organization_id: UUID, tmp_path: Path) -> None:
    id = create(organization_id, secrets=[{"name": "TOKEN", "value": "one"}])
    path = upload(id, tmp_path, b"first")
    first = push(organization_id, id, path)
    with connection() as conn:
        second, _ = deployments.add_revision(conn, organization_id, id, Change())
        rows = [revisions.get(conn, id, revision_id) for revision_id in (first, second)]

        assert second != first
        assert rows[0]["archive_digest"] == rows[1]["archive_digest"]
        assert rows[1]["source_revision_config"]["source_tarball_path"] == path
        assert secrets.secrets_of(conn, second) == {"TOKEN": "one"}


def test_secrets_are_a_revisions_own(organization_id: UUID, tmp_path: Path) -> None:
    id = create(organization_id, secrets=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    first = push(organization_id, id, upload(id, tmp_path, b"x"))
    with connection() as conn:
        second, _ = deployments.change(
            conn, organization_id, id, Change(secrets=[{"name": "A", "value": "9"}])
        )
        assert second is not None
        assert secrets.secrets_of(conn, first) == {"A": "1", "B": "2"}
        assert secrets.secrets_of(conn, second) == {"A": "9"}

    id = create(organization_id, "twice", secrets=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])

    with connection() as conn:
        latest = deployments.get(conn, organization_id, id)["latest_revision_id"]
        assert secrets.secrets_of(conn, latest) == {"A": "2"}


def test_a_deleted_deployment_stops_its_work(organization_id: UUID, tmp_path: Path) -> None:
    deployment = factories.deployment(organization_id=organization_id)
    pending = factories.run(deployment)
    running = factories.run(deployment, status=RunStatus.RUNNING)
    with connection() as conn:
        building = revisions.create(conn, deployment.id, source="internal_source", config={}, digest="0" * 64)
        revisions.start(conn, deployment.id, building)

        moved = deletion.delete(conn, organization_id, deployment.id)
        stopped = deletion.stop_runs(conn, deployment.id)

        assert {move.revision_id: move.status for move in moved} == {building: "INTERRUPTED"}
        assert {run.run_id for run in stopped} == {pending, running}
        assert deletion.stop_runs(conn, deployment.id) == []
        rows = conn.execute(text("SELECT run_id, status, cancel_requested FROM run")).all()
    found = {row.run_id: (row.status, row.cancel_requested) for row in rows}
    assert found == {pending: ("interrupted", None), running: ("running", "interrupt")}


def test_a_deletion_waits_for_no_run(organization_id: UUID) -> None:
    deployment = factories.deployment(organization_id=organization_id)
    for _ in range(2):
        factories.run(deployment)
    with connection() as conn:
        held = conn.execute(text("SELECT run_id FROM run LIMIT 1 FOR UPDATE")).scalar_one()
        with connection() as other:
            deletion.delete(other, organization_id, deployment.id)
            stopped = deletion.stop_runs(other, deployment.id)
        assert len(stopped) == 1

    with connection() as conn:
        assert deletion.purge(conn) > 0  # also stops the run that was locked
    assert {run.run_id for run in stopped} != {held}
    purge()
    assert count("run") == 0


def test_nothing_is_left_of_a_deleted_deployment(organization_id: UUID, tmp_path: Path) -> None:
    kept = factories.deployment("kept", organization_id=organization_id)
    factories.thread(kept.id)
    gone = factories.deployment("gone", organization_id=organization_id)
    for _ in range(3):
        factories.run(gone, status=RunStatus.SUCCESS)
    upload(gone.id, tmp_path, b"x")
    with connection() as conn:
        deletion.delete(conn, organization_id, gone.id)

    purge()

    with connection() as conn:
        with pytest.raises(NotFound):
            deployments.get(conn, organization_id, gone.id)
        assert deployments.resolve(conn, organization_id, "kept") is not None
    tables = ("deployment", "revision", "thread", "run", "upload")
    assert [count(table) for table in tables] == [1, 1, 1, 0, 0]


def test_it_stays_while_one_of_its_runs_still_stops_but_not_for_ever(organization_id: UUID) -> None:
    deployment = factories.deployment(organization_id=organization_id)
    factories.run(deployment, status=RunStatus.RUNNING)
    with connection() as conn:
        deletion.delete(conn, organization_id, deployment.id)

    purge()
    assert count("deployment") == 1

    with connection() as conn:
        conn.execute(text("UPDATE run SET status = 'interrupted'"))
    purge()
    assert count("deployment") == 0

    deployment = factories.deployment(organization_id=organization_id)
    factories.run(deployment, status=RunStatus.RUNNING)
    with connection() as conn:
        deletion.delete(conn, organization_id, deployment.id)
        conn.execute(text("UPDATE deployment SET deleted_at = now() - interval '1 day'"))

    purge()

    assert count("deployment") == 0


def later(table: str) -> None:
    """Age the rows of a table by one day."""
    with connection() as conn:
        conn.execute(text(f"UPDATE {table} SET created_at = created_at - interval '1 day'"))
        if table == "upload":
            conn.execute(text("UPDATE upload SET expires_at = expires_at - interval '1 day'"))


def remove_unused() -> int:
    with connection() as conn:
        return sources.remove_unused_archives(conn)


def test_an_archive_lives_as_long_as_something_refers_to_it(organization_id: UUID, tmp_path: Path) -> None:
    id = create(organization_id)
    path = upload(id, tmp_path, b"x")
    later("archive")
    assert remove_unused() == 0  # the upload has not expired

    push(organization_id, id, path)
    later("upload")
    assert remove_unused() == 0  # a revision uses it
    assert count("upload") == 0

    with connection() as conn:
        deletion.delete(conn, organization_id, id)
    purge()
    assert remove_unused() == 1
    assert count("archive_chunk") == 0


def test_an_archive_put_again_is_not_removed_under_way(organization_id: UUID, tmp_path: Path) -> None:
    id = create(organization_id)
    upload(id, tmp_path, b"x")
    later("archive")
    later("upload")
    upload(id, tmp_path, b"x")  # no revision uses it yet

    assert remove_unused() == 0
