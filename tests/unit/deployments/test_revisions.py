"""Revisions on a real database, beside the changes of status that `test_revision_states` makes at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text

from shared.deployments import revisions
from shared.deployments.revisions import ClaimedRevision, Transition
from shared.errors import Fenced
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db")

DIGEST = "0" * 64
BUILT = {"requirements": "langgraph==1.2.22\n", "manifest": {"graphs": {}}, "python_version": "3.11"}


@pytest.fixture
def deployment_id(db: Engine) -> UUID:
    return factories.deployment(serving=False).id


def new(deployment_id: UUID, **artifact: Any) -> tuple[UUID, list[Transition]]:
    """Insert a revision with a source and start it. Returns its id and the transitions."""
    with connection() as conn:
        revisions.lock_deployment(conn, deployment_id)
        id = revisions.create(
            conn, deployment_id, source="internal_source", config={}, digest=DIGEST, **artifact
        )
        return id, revisions.start(conn, deployment_id, id)


def claim(id: UUID, owner: str = "builder") -> ClaimedRevision | None:
    with connection() as conn:
        return revisions.claim(conn, id, owner=owner, lease_seconds=30)


def claimed(id: UUID, owner: str = "builder") -> ClaimedRevision:
    got = claim(id, owner)
    assert got is not None
    return got


def end(held: ClaimedRevision, status: RevisionStatus = RevisionStatus.DEPLOYED) -> list[Transition]:
    with connection() as conn:
        revisions.lock_deployment(conn, held.deployment_id)
        return revisions.end(conn, held, status, None)


def expire() -> list[Transition]:
    with connection() as conn:
        return revisions.expire(conn)


def lose_lease(id: UUID) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE revision SET lease_until = now() - interval '1s' WHERE id = :id"), {"id": id}
        )


def status(id: UUID) -> str:
    with connection() as conn:
        return str(conn.execute(text("SELECT status FROM revision WHERE id = :id"), {"id": id}).scalar_one())


def statuses(moved: list[Transition]) -> dict[UUID, str]:
    return {move.revision_id: move.status for move in moved}


def test_the_first_one_waits_for_a_builder_at_once_unless_it_is_built(deployment_id: UUID) -> None:
    id, moved = new(deployment_id)

    assert statuses(moved) == {id: "AWAITING_BUILD"}
    with connection() as conn:
        latest = conn.execute(text("SELECT latest_revision_id FROM deployment")).scalar_one()
    assert latest == id

    another = factories.deployment("another", serving=False).id
    id, moved = new(another, **BUILT)

    assert statuses(moved) == {id: "AWAITING_DEPLOY"}
    assert claimed(id).status == "DEPLOYING"


def test_one_without_source_still_queued_or_of_a_deleted_deployment_is_not_claimed(
    deployment_id: UUID,
) -> None:
    new(deployment_id)
    queued, _ = new(deployment_id)
    with connection() as conn:
        placeholder = revisions.create(conn, deployment_id, source="internal_source", config={}, digest=None)

    assert claim(queued) is None
    assert claim(placeholder) is None

    id, _ = new(deployment_id)
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET deleted_at = now()"))

    assert claim(id) is None


WRITES: dict[str, Callable[[Connection, ClaimedRevision], Any]] = {
    "keep user code": lambda conn, held: revisions.keep_user_code(conn, held, {"auth": None, "app": None}),
    "reserve": lambda conn, held: revisions.reserve(conn, held, 10_000),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_builder_that_lost_its_claim_changes_nothing_beside_its_status(
    deployment_id: UUID, write: str
) -> None:
    id, _ = new(deployment_id)
    zombie = claimed(id, "zombie")
    lose_lease(id)
    expire()
    heir = claimed(id, "heir")

    with connection() as conn:
        assert not revisions.renew(conn, zombie, lease_seconds=30)
        with pytest.raises(Fenced):
            WRITES[write](conn, zombie)

    assert status(id) == "BUILDING"
    with connection() as conn:
        assert revisions.renew(conn, heir, lease_seconds=30)


def test_what_it_brings_beside_its_graphs_is_kept_with_it(deployment_id: UUID) -> None:
    id, _ = new(deployment_id)
    held = claimed(id)
    query = text("SELECT user_code FROM revision WHERE id = :id AND user_code IS NOT NULL")

    with connection() as conn:
        revisions.keep_user_code(conn, held, {"auth": None, "app": {"routes": []}})
        assert conn.execute(query, {"id": id}).scalar_one() == {"auth": None, "app": {"routes": []}}
        revisions.keep_user_code(conn, held, None)
        assert conn.execute(query, {"id": id}).one_or_none() is None


def test_a_builder_that_stops_leaves_it_to_the_next(deployment_id: UUID) -> None:
    id, _ = new(deployment_id)
    with connection() as conn:
        revisions.give_back(conn, claimed(id, "one"))

    assert status(id) == "AWAITING_BUILD"
    assert claimed(id, "two").attempt == 2

    another = factories.deployment("another", serving=False).id
    id, _ = new(another)
    held = claimed(id)
    with connection() as conn:
        revisions.keep_artifact(
            conn, held, requirements="x==1", python_version="3.11", manifest={"graphs": {}}
        )
        revisions.advance(conn, held, RevisionStatus.AWAITING_DEPLOY)
    lose_lease(id)

    assert statuses(expire()) == {id: "AWAITING_DEPLOY"}


@pytest.mark.parametrize(("artifact", "failed"), [({}, "BUILD_FAILED"), (BUILT, "DEPLOY_FAILED")])
def test_it_is_given_up_after_three_attempts(
    deployment_id: UUID, artifact: dict[str, Any], failed: str
) -> None:
    id, _ = new(deployment_id, **artifact)
    next_id, _ = new(deployment_id)
    for _ in range(revisions.MAX_ATTEMPTS):
        claimed(id)
        lose_lease(id)
        moved = expire()

    assert statuses(moved) == {id: failed, next_id: "AWAITING_BUILD"}
    assert "3 attempts" in (moved[0].message or "")


def test_a_notification_nobody_answered_is_sent_again_but_not_at_once(deployment_id: UUID) -> None:
    id, _ = new(deployment_id)
    with connection() as conn:
        assert revisions.due(conn) == []  # its first notification is still pending
        conn.execute(text("UPDATE revision SET notified_at = now() - interval '1 hour'"))
    with connection() as conn:
        assert revisions.due(conn) == [id]
        assert revisions.due(conn) == []

    claimed(id)
    with connection() as conn:
        conn.execute(text("UPDATE revision SET notified_at = now() - interval '1 hour'"))
        assert revisions.due(conn) == []
