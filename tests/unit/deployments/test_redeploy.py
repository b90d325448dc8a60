"""Redeploying an older revision: inherited columns, the initial status, and refusals."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.deployments import deployments, revisions, secrets
from shared.deployments.deployments import DeploymentRef
from shared.deployments.revisions import Transition
from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db", "own_key")

DIGEST = "0" * 64
BUILT = {"requirements": "langgraph==1.2.22\n", "python_version": "3.11", "manifest": {"graphs": {}}}
CONFIG = {"langgraph_config_path": "langgraph.json", "tracked_packages": ["a:1"]}


def old(deployment: DeploymentRef, **columns: Any) -> UUID:
    """Insert a later revision of the deployment, with its archive stored."""
    keep_archive()
    values = {"requirements": None, "archive_digest": DIGEST, "source_revision_config": CONFIG, **columns}
    with connection() as conn:
        last = conn.execute(text("SELECT max(number) FROM revision")).scalar_one()
    return factories.revision(deployment.id, number=last + 1, **values)


def keep_archive() -> None:
    with connection() as conn:
        conn.execute(text("INSERT INTO archive VALUES (:d, 1) ON CONFLICT DO NOTHING"), {"d": DIGEST})
        conn.execute(
            text("INSERT INTO archive_chunk VALUES (:d, 0, '') ON CONFLICT DO NOTHING"), {"d": DIGEST}
        )


def redeploy(deployment: DeploymentRef, revision_id: UUID) -> tuple[UUID, list[Transition]]:
    with connection() as conn:
        return deployments.redeploy(conn, deployment.organization_id, deployment.id, revision_id)


def row(deployment: DeploymentRef, revision_id: UUID) -> dict[str, Any]:
    with connection() as conn:
        return dict(revisions.get(conn, deployment.id, revision_id))


def test_it_is_a_new_revision_with_everything_of_the_old_one(deployment: DeploymentRef) -> None:
    first = old(deployment, **BUILT)
    with connection() as conn:
        secrets.replace(conn, first, [{"name": "A", "value": "1"}])
    later = old(deployment, **BUILT)
    with connection() as conn:
        secrets.replace(conn, later, [{"name": "A", "value": "2"}])

    again, moved = redeploy(deployment, first)

    assert [(move.revision_id, move.status) for move in moved] == [(again, "AWAITING_DEPLOY")]
    taken = ("source", "source_revision_config", "archive_digest", *BUILT)
    assert {name: row(deployment, again)[name] for name in taken} == {
        name: row(deployment, first)[name] for name in taken
    }
    with connection() as conn:
        assert secrets.secrets_of(conn, again) == {"A": "1"}
        shown = deployments.get(conn, deployment.organization_id, deployment.id)
    assert shown["latest_revision_id"] == again
    assert shown["active_revision_id"] == deployment.active_revision_id  # until it is healthy


def test_a_repository_that_was_never_read_is_read_now_and_one_without_source_refused(
    deployment: DeploymentRef,
) -> None:
    again, _ = redeploy(
        deployment,
        old(deployment, source="github", archive_digest=None, status=RevisionStatus.INTERRUPTED),
    )

    assert row(deployment, again)["status"] == "AWAITING_BUILD"

    placeholder = old(deployment, archive_digest=None, status=RevisionStatus.CREATING)

    with pytest.raises(Invalid) as caught:
        redeploy(deployment, placeholder)
    assert caught.value.status == 400


def test_one_that_was_never_built_and_whose_archive_is_gone_is_refused(deployment: DeploymentRef) -> None:
    built, failed = (old(deployment, **BUILT), old(deployment, status=RevisionStatus.BUILD_FAILED))
    with connection() as conn:
        conn.execute(text("DELETE FROM archive"))

    with pytest.raises(Invalid) as caught:
        redeploy(deployment, failed)
    assert caught.value.status == 400

    again, _ = redeploy(deployment, built)
    assert row(deployment, again)["status"] == "AWAITING_DEPLOY"
