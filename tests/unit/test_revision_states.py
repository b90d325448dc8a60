"""Random actors on a deployment's revisions: whatever they do in whatever order, the promises hold.

One deployment, two builders that may die, users who push, interrupt and roll back; every claim a builder
ever had is used again, as a zombie would.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from shared import revisions
from shared.database import connection
from shared.errors import Fenced
from shared.models import REVISION_ENDS, RevisionStatus
from shared.revisions import IN_PROGRESS, Claimed, Moved
from tests import factories

DIGEST = "0" * 64


class Revisions(RuleBasedStateMachine):
    ids = Bundle("ids")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.deployment_id = factories.deployment(serving=False).id
        self.held: dict[UUID, Claimed] = {}  # who may move a revision
        self.ended: dict[UUID, str] = {}
        self.seen: dict[UUID, list[tuple[int, int]]] = {}  # attempts and event numbers announced

    def teardown(self) -> None:
        with connection() as conn:
            conn.execute(text("DELETE FROM deployment"))

    def note(self, moved: list[Moved]) -> None:
        for move in moved:
            self.held.pop(move.revision_id, None)
            self.seen.setdefault(move.revision_id, []).append((move.attempt, move.seq))

    # what callers do

    @rule(target=ids, is_built=st.booleans())
    def push(self, is_built: bool) -> UUID:
        artifact: dict[str, Any] = {"requirements": "x==1", "manifest": {}} if is_built else {}
        with connection() as conn:
            revisions.lock_deployment(conn, self.deployment_id)
            id = revisions.create(
                conn, self.deployment_id, source="internal_source", config={}, digest=DIGEST, **artifact
            )
            moved = revisions.start(conn, self.deployment_id, id)
        self.note(moved)
        return id

    @rule(id=ids)
    def interrupt(self, id: UUID) -> None:
        with connection() as conn:
            revisions.lock_deployment(conn, self.deployment_id)
            moved = revisions.interrupt(conn, self.deployment_id, id, reason="stop")
        assert (id in {move.revision_id for move in moved}) == (id not in self.ended)
        self.note(moved)

    # what builders do

    @rule(target=claims, id=ids, owner=st.sampled_from(["a", "b"]))
    def claim(self, id: UUID, owner: str) -> Any:
        with connection() as conn:
            held = revisions.claim(conn, id, owner=owner, lease_seconds=300)
        if held is None:
            return multiple()
        assert id not in self.held, "a revision has one builder"
        assert id not in self.ended
        assert all(attempt < held.attempt * 2 and seq <= held.floor for attempt, seq in self.seen.get(id, []))
        self.held[id] = held
        return held

    @rule(held=claims)
    def build(self, held: Claimed) -> None:
        def store() -> None:
            with connection() as conn:
                revisions.keep_artifact(conn, held, requirements="x==1", python_version="3.11", manifest={})
                revisions.advance(conn, held, RevisionStatus.AWAITING_DEPLOY)
                revisions.advance(conn, held, RevisionStatus.DEPLOYING)

        self.only_the_holder(held, store)

    @rule(held=claims, status=st.sampled_from(["DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED"]))
    def end(self, held: Claimed, status: str) -> None:
        def finish() -> None:
            with connection() as conn:
                revisions.lock_deployment(conn, self.deployment_id)
                moved = revisions.end(conn, held, RevisionStatus(status), None)
            self.note(moved)

        self.only_the_holder(held, finish)
        if self.held.get(held.revision_id) == held:
            del self.held[held.revision_id]

    @rule(held=claims)
    def renew(self, held: Claimed) -> None:
        with connection() as conn:
            assert revisions.renew(conn, held, lease_seconds=300) == (self.held.get(held.revision_id) == held)

    @rule(held=claims)
    def stop(self, held: Claimed) -> None:
        with connection() as conn:
            revisions.give_back(conn, held)
        if self.held.get(held.revision_id) == held:
            del self.held[held.revision_id]

    @rule(id=ids)
    def die(self, id: UUID) -> None:
        with connection() as conn:
            conn.execute(
                text(
                    "UPDATE revision SET lease_until = now() - interval '1s' WHERE id = :id AND owner IS NOT NULL"
                ),
                {"id": id},
            )
        with connection() as conn:
            self.note(revisions.expire(conn))

    def only_the_holder(self, held: Claimed, act: Any) -> None:
        if self.held.get(held.revision_id) == held:
            act()
        else:
            with pytest.raises(Fenced):
                act()

    # what holds always

    @invariant()
    def one_at_a_time_and_the_newest_waits(self) -> None:
        with connection() as conn:
            rows = conn.execute(text("SELECT id, status, owner, number FROM revision ORDER BY number")).all()
        going = [row for row in rows if row.status in IN_PROGRESS]
        queued = [row for row in rows if row.status == "QUEUED"]
        assert len(going) <= 1
        assert len(queued) <= 1
        assert not queued or going, "nothing waits for nothing"
        assert {row.id for row in rows if row.owner} == set(self.held)
        for row in rows:
            assert self.ended.get(row.id, row.status) == row.status, "an end is final"
            if row.status in REVISION_ENDS:
                self.ended[row.id] = row.status


@pytest.mark.usefixtures("db")
def test_whatever_happens_the_promises_hold() -> None:
    run_state_machine_as_test(
        Revisions,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
