"""State machine test of a deployment's revisions: the invariants hold for any sequence of operations.

One deployment at a time is exercised by two builders that may die, by users who push, interrupt, roll back and
delete, and by upkeep, which removes old revisions. Every past claim of a builder is used again, as a builder that
lost its lease would.
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

from shared.deployments import deployments, revisions
from shared.deployments.revisions import IN_PROGRESS, ClaimedRevision, Transition
from shared.errors import Fenced, NotFound
from shared.infra.postgres import connection
from shared.models import REVISION_ENDS, RevisionStatus
from shared.removal import deletion, history
from tests.support import factories

DIGEST = "0" * 64
KEPT = 2


class Revisions(RuleBasedStateMachine):
    ids = Bundle("ids")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        with connection() as conn:
            conn.execute(text("INSERT INTO archive VALUES (:d, 1) ON CONFLICT DO NOTHING"), {"d": DIGEST})
            conn.execute(
                text("INSERT INTO archive_chunk VALUES (:d, 0, '') ON CONFLICT DO NOTHING"), {"d": DIGEST}
            )
        self.organization_id = factories.organization()
        self.begin()

    def begin(self) -> None:
        """Start over with an empty deployment. Revisions of earlier deployments count as missing."""
        found = factories.deployment(organization_id=self.organization_id, serving=False)
        self.deployment_id = found.id
        self.held: dict[UUID, ClaimedRevision] = {}  # the current claim of each revision
        self.ended: dict[UUID, str] = {}
        self.builds: dict[UUID, UUID] = {}  # existing revisions, each with the revision whose build it uses
        self.active: UUID | None = None
        self.seen: dict[UUID, list[tuple[int, int]]] = {}  # announced (attempt, event number) pairs

    def teardown(self) -> None:
        with connection() as conn:
            conn.execute(text("DELETE FROM deployment"))

    def note(self, moved: list[Transition]) -> None:
        for move in moved:
            self.held.pop(move.revision_id, None)
            self.seen.setdefault(move.revision_id, []).append((move.attempt, move.seq))

    # Operations of callers

    @rule(target=ids)
    def push(self) -> UUID:
        with connection() as conn:
            revisions.lock_deployment(conn, self.deployment_id)
            id = revisions.create(
                conn, self.deployment_id, source="internal_source", config={}, digest=DIGEST
            )
            moved = revisions.start(conn, self.deployment_id, id)
        self.note(moved)
        self.builds[id] = id
        return id

    @rule(target=ids, id=ids)
    def redeploy(self, id: UUID) -> Any:
        with connection() as conn:
            if id not in self.builds:
                with pytest.raises(NotFound):
                    deployments.redeploy(conn, self.organization_id, self.deployment_id, id)
                return multiple()
            new_id, moved = deployments.redeploy(conn, self.organization_id, self.deployment_id, id)
            old, new = (revisions.get(conn, self.deployment_id, each) for each in (id, new_id))
        self.note(moved)
        is_built = old["requirements"] is not None
        assert (new["requirements"], new["manifest"]) == (old["requirements"], old["manifest"])
        self.builds[new_id] = self.builds[id] if is_built else new_id
        assert (new["build_id"] or new_id) == self.builds[new_id]
        assert new["status"] in ("QUEUED", "AWAITING_DEPLOY" if is_built else "AWAITING_BUILD")
        return new_id

    @rule(id=ids)
    def interrupt(self, id: UUID) -> None:
        with connection() as conn:
            if id not in self.builds:
                with pytest.raises(NotFound):
                    deployments.interrupt(conn, self.organization_id, self.deployment_id, id)
                return
            moved = deployments.interrupt(conn, self.organization_id, self.deployment_id, id)
        assert (id in {move.revision_id for move in moved}) == (id not in self.ended)
        self.note(moved)

    @rule()
    def delete(self) -> None:
        with connection() as conn:
            moved = deletion.delete(conn, self.organization_id, self.deployment_id)
        assert {move.revision_id for move in moved} == self.builds.keys() - self.ended.keys()
        with connection() as conn:
            for id in self.builds:
                assert revisions.claim(conn, id, owner="late", lease_seconds=300) is None
            with pytest.raises(NotFound):
                deletion.delete(conn, self.organization_id, self.deployment_id)
        while self.purge():
            pass
        self.begin()

    def purge(self) -> int:
        with connection() as conn:
            return deletion.purge(conn)

    # Operations of builders

    @rule(target=claims, id=ids, owner=st.sampled_from(["a", "b"]))
    def claim(self, id: UUID, owner: str) -> Any:
        with connection() as conn:
            held = revisions.claim(conn, id, owner=owner, lease_seconds=300)
        if held is None:
            return multiple()
        assert id not in self.held, "a revision has one builder"
        assert id not in self.ended
        assert all(attempt < held.attempt * 2 and seq <= held.floor for attempt, seq in self.seen.get(id, []))
        assert held.build_id == self.builds[id]
        self.held[id] = held
        return held

    @rule(held=claims)
    def build(self, held: ClaimedRevision) -> None:
        def store() -> None:
            with connection() as conn:
                revisions.keep_artifact(conn, held, requirements="x==1", python_version="3.11", manifest={})
                revisions.advance(conn, held, RevisionStatus.AWAITING_DEPLOY)
                revisions.advance(conn, held, RevisionStatus.DEPLOYING)

        self.only_the_holder(held, store)

    @rule(held=claims, status=st.sampled_from(["DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED"]))
    def end(self, held: ClaimedRevision, status: str) -> None:
        def finish() -> None:
            with connection() as conn:
                revisions.lock_deployment(conn, self.deployment_id)
                moved = revisions.end(conn, held, RevisionStatus(status), None)
                if status == "DEPLOYED":
                    self.serve(conn, held.revision_id)
            self.note(moved)

        self.only_the_holder(held, finish)
        if self.held.get(held.revision_id) == held:
            del self.held[held.revision_id]

    def serve(self, conn: Any, revision_id: UUID) -> None:
        self.active = revision_id
        query = text("UPDATE deployment SET active_revision_id = :rid WHERE id = :id")
        conn.execute(query, {"rid": revision_id, "id": self.deployment_id})

    @rule(held=claims)
    def renew(self, held: ClaimedRevision) -> None:
        with connection() as conn:
            assert revisions.renew(conn, held, lease_seconds=300) == (self.held.get(held.revision_id) == held)

    @rule(held=claims)
    def stop(self, held: ClaimedRevision) -> None:
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

    def only_the_holder(self, held: ClaimedRevision, act: Any) -> None:
        if self.held.get(held.revision_id) == held:
            act()
        else:
            with pytest.raises(Fenced):
                act()

    # Operations of upkeep

    @rule()
    def remove_old(self) -> None:
        newest = sorted(self.builds)[-KEPT:]  # ids increase with time
        with connection() as conn:
            history.remove_old_revisions(conn, kept=KEPT)
            left = set(conn.execute(text("SELECT id FROM revision")).scalars())
        gone = self.builds.keys() - left
        assert gone <= self.ended.keys() - {self.active, *newest}
        for id in gone:
            del self.builds[id]

    # Invariants

    @invariant()
    def one_at_a_time_and_the_newest_waits(self) -> None:
        with connection() as conn:
            rows = conn.execute(text("SELECT id, status, owner, number FROM revision ORDER BY number")).all()
            active = conn.execute(text("SELECT active_revision_id FROM deployment")).scalar_one()
        going = [row for row in rows if row.status in IN_PROGRESS]
        queued = [row for row in rows if row.status == "QUEUED"]
        assert len(going) <= 1
        assert len(queued) <= 1
        assert not queued or going, "nothing waits for nothing"
        assert {row.id for row in rows} == self.builds.keys()
        assert {row.id for row in rows if row.owner} == set(self.held)
        assert active == self.active
        assert active == next((row.id for row in reversed(rows) if row.status == "DEPLOYED"), None)
        for row in rows:
            assert self.ended.get(row.id, row.status) == row.status, "an end is final"
            if row.status in REVISION_ENDS:
                self.ended[row.id] = row.status


@pytest.mark.usefixtures("db")
def test_whatever_happens_the_promises_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SETTLED_SECONDS", 0)
    run_state_machine_as_test(
        Revisions,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
