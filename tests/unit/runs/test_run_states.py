"""A stateful property test of the run state machine: the invariants hold after any sequence of actions.

Two owners act on three threads and use every transition: create (each multitask strategy), claim, renew, expire, take
over, cancel, roll back, finish, hand back and delete. Claims that an owner has lost are used again, as by a zombie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from psycopg.errors import UniqueViolation
from sqlalchemy import text

from shared.errors import Conflict, Fenced, NotFound
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import backlog, cancel, claims, finish
from shared.runs.claims import Claimed, Terms
from shared.runs.drafts import RunRequest
from shared.runs.finish import Finish
from shared.threads import records
from tests.support import factories
from tests.support.creating import insert_run

ENDS = {
    RunStatus.SUCCESS: ThreadStatus.IDLE,
    RunStatus.ERROR: ThreadStatus.ERROR,
    RunStatus.TIMEOUT: ThreadStatus.ERROR,
    RunStatus.INTERRUPTED: ThreadStatus.INTERRUPTED,
}
MAX_ATTEMPTS = 3


@dataclass
class Expected:
    """The expected state of a run."""

    thread_id: UUID
    created: int
    status: str = "pending"
    holder: tuple[str, int] | None = None
    attempt: int = 0
    deaths: int = 0
    cancelled: str | None = None

    @property
    def is_live(self) -> bool:
        return self.status in ("pending", "running")


class Runs(RuleBasedStateMachine):
    ids = Bundle("ids")
    handles = Bundle("handles")
    owners = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.deployment = factories.deployment()
        self.threads = [uuid4() for _ in range(3)]
        self.model: dict[UUID, Expected] = {}
        self.rest: dict[UUID, str] = {}  # thread status after its last ended run
        self.created = 0

    def teardown(self) -> None:
        with connection() as conn:
            conn.execute(text("DELETE FROM run"))

    # actions of callers

    @rule(
        target=ids,
        thread=st.integers(0, 2),
        strategy=st.sampled_from(["enqueue"] * 5 + ["reject", "interrupt", "rollback"]),
    )
    def create(self, thread: int, strategy: str) -> Any:
        thread_id, run_id = self.threads[thread], uuid4()
        request = RunRequest(assistant_id="agent", multitask_strategy=strategy, if_not_exists="create")
        live = self.live_of(thread_id)
        try:
            with connection() as conn:
                insert_run(conn, self.deployment, request, thread_id=thread_id, run_id=run_id)
        except Conflict:
            assert strategy == "reject"
            assert live
            return multiple()
        assert strategy != "reject" or not live
        if strategy in ("interrupt", "rollback"):
            for other in live:
                self.stop(other, strategy)
        self.created += 1
        self.model[run_id] = Expected(thread_id, self.created)
        self.rest.setdefault(thread_id, "idle")
        return run_id

    @rule(run_id=ids, action=st.sampled_from(["interrupt", "rollback"]))
    def cancel(self, run_id: UUID, action: str) -> None:
        thread_id = self.thread_of(run_id)
        expected = self.model.get(run_id)
        try:
            with connection() as conn:
                cancel.cancel_run(conn, self.deployment.id, thread_id, run_id, action=action)
        except NotFound:
            assert expected is None or not expected.is_live
            return
        assert expected is not None
        assert expected.is_live
        self.stop(run_id, action)

    @rule(run_id=consumes(ids))
    def delete(self, run_id: UUID) -> None:
        thread_id = self.thread_of(run_id)
        try:
            with connection() as conn:
                cancel.delete_run(conn, self.deployment.id, thread_id, run_id)
        except NotFound:
            assert run_id not in self.model
            return
        self.model.pop(run_id)

    @rule(thread=st.integers(0, 2))
    def delete_thread(self, thread: int) -> None:
        thread_id = self.threads[thread]
        if thread_id not in self.rest:
            return
        with connection() as conn:
            cancel.delete_thread(conn, self.deployment.id, thread_id)
        self.model = {id: run for id, run in self.model.items() if run.thread_id != thread_id}
        self.rest.pop(thread_id, None)

    # actions of owners

    @rule(target=handles, run_ids=st.lists(ids, min_size=1, max_size=3), owner=owners)
    def claim(self, run_ids: list[UUID], owner: str) -> Any:
        try:
            with driver() as conn:
                found = claims.claim(conn, run_ids, Terms(owner, 30, 3600))
        except UniqueViolation:
            raise AssertionError("the order of creation let two runs of a thread start") from None
        found.sort(key=lambda item: self.model[item[0].run_id].created)  # random run ids give no order
        for run, _ in found:
            expected = self.model[run.run_id]
            assert expected.status == "pending"
            assert expected.cancelled is None
            assert self.live_of(expected.thread_id)[0] == run.run_id  # in order of creation
            expected.attempt += 1
            assert run.attempt == expected.attempt
            expected.status, expected.holder = "running", (owner, run.attempt)
        return multiple(*(run for run, _ in found))

    @rule(run=handles)
    def renew(self, run: Claimed) -> None:
        with connection() as conn:
            held = claims.renew(conn, [run.run_id], owner=run.owner, lease_seconds=30).get(run.run_id)
        assert (held is not None and held.attempt == run.attempt) == self.holds(run)
        if held is not None and held.attempt == run.attempt:
            assert held.cancel_requested == self.model[run.run_id].cancelled

    @rule(run=handles, status=st.sampled_from(list(ENDS)), has_next=st.booleans())
    def finish(self, run: Claimed, status: RunStatus, has_next: bool) -> None:
        held = self.holds(run)
        state = '{"next": ["node"]}' if has_next else '{"next": []}'
        end = Finish(run, status, ENDS[status], None, '{"n": 1}', state, "{}")
        with driver() as conn, conn.transaction():
            done = finish.finish_runs(conn, [end], owner=run.owner)
        assert (run.run_id in done) == held
        if held:
            self.ended(run, status)
            following = self.live_of(run.thread_id)
            announced = done[run.run_id]
            assert (announced.run_id if announced else None) == (following[0] if following else None)

    @rule(run=handles, refund=st.booleans())
    def give_back(self, run: Claimed, refund: bool) -> None:
        expected = self.model.get(run.run_id)
        held = self.holds(run) and expected is not None and expected.cancelled is None
        with connection() as conn:
            given = claims.give_back(conn, [claims.Requeue(run, refund=refund)])
        assert given == ({run.run_id} if held else set())
        if held:
            assert expected is not None
            expected.status, expected.holder = "pending", None
            expected.deaths += not refund

    @rule(run=handles)
    def roll_back(self, run: Claimed) -> None:
        held = self.holds(run)
        try:
            with connection() as conn:
                finish.roll_back(conn, run, error={"error": "UserRollback", "message": ""})
        except Fenced:
            assert not held
            return
        assert held
        del self.model[run.run_id]

    @rule(run=handles)
    def reserve(self, run: Claimed) -> None:
        with connection() as conn:
            done = claims.reserve(conn, run.run_id, owner=run.owner, attempt=run.attempt, upto=run.floor + 1)
        assert done == self.holds(run)

    # actions of upkeep

    @rule(run_id=ids)
    def expire(self, run_id: UUID) -> None:
        """Let the owner's lease expire, then do what upkeep does."""
        expected = self.model.get(run_id)
        if expected is None or expected.status != "running":
            return
        with connection() as conn:
            conn.execute(
                text("UPDATE run SET lease_until = now() - interval '1 s' WHERE run_id = :id"), {"id": run_id}
            )
        with connection() as conn:
            records.lock(conn, self.deployment.id, expected.thread_id)
            released = claims.release_abandoned(conn, run_id, max_attempts=MAX_ATTEMPTS)
        assert released == (expected.deaths + 1 < MAX_ATTEMPTS and expected.cancelled is None)
        if released:
            expected.status, expected.holder = "pending", None
            expected.deaths += 1
            return
        with connection() as conn:
            records.lock(conn, self.deployment.id, expected.thread_id)
            taken = claims.take_over(conn, run_id, owner="upkeep")
            assert taken is not None
            end = Finish(taken, RunStatus.ERROR, ThreadStatus.ERROR, {"error": "RunAbandoned"})
            assert run_id in finish.finish_runs(conn, [end], owner="upkeep")
        expected.attempt += 1
        self.ended(taken, RunStatus.ERROR)

    @rule()
    def notify_again(self) -> None:
        with connection() as conn:
            conn.execute(text("UPDATE run SET notified_at = NULL"))
            found = {item.run_id for item in backlog.mark_notified(conn)}
        heads = {ids[0] for ids in map(self.live_of, self.threads) if ids}
        assert found == {id for id in heads if self.model[id].status == "pending"}

    # the model

    def live_of(self, thread_id: UUID) -> list[UUID]:
        mine = [
            (run.created, id) for id, run in self.model.items() if run.thread_id == thread_id and run.is_live
        ]
        return [id for _, id in sorted(mine)]

    def thread_of(self, run_id: UUID) -> UUID:
        return self.model[run_id].thread_id if run_id in self.model else self.threads[0]

    def holds(self, run: Claimed) -> bool:
        expected = self.model.get(run.run_id)
        return expected is not None and expected.holder == (run.owner, run.attempt)

    def stop(self, run_id: UUID, action: str) -> None:
        expected = self.model[run_id]
        if expected.status == "running":
            expected.cancelled = action
        elif action == "rollback":
            del self.model[run_id]
        else:
            expected.status = "interrupted"

    def ended(self, run: Claimed, status: RunStatus) -> None:
        expected = self.model[run.run_id]
        expected.status, expected.holder = str(status), None
        self.rest[run.thread_id] = str(ENDS[status])

    # invariants

    @invariant()
    def every_run_is_where_it_must_be(self) -> None:
        with connection() as conn:
            rows = conn.execute(
                text("SELECT run_id, status, attempt, deaths, owner FROM run WHERE deployment_id = :id"),
                {"id": self.deployment.id},
            ).all()
        assert {row.run_id: (row.status, row.attempt, row.deaths) for row in rows} == {
            id: (run.status, run.attempt, run.deaths) for id, run in self.model.items()
        }

    @invariant()
    def at_most_one_run_of_a_thread_runs(self) -> None:
        for thread_id in self.threads:
            running = [id for id in self.live_of(thread_id) if self.model[id].status == "running"]
            assert len(running) <= 1

    @invariant()
    def a_threads_status_follows_from_its_runs_and_state(self) -> None:
        with connection() as conn:
            rows = conn.execute(
                text("SELECT thread_id, status FROM thread WHERE deployment_id = :id"),
                {"id": self.deployment.id},
            ).all()
        expected = {id: "busy" if self.live_of(id) else rest for id, rest in self.rest.items()}
        assert {row.thread_id: row.status for row in rows} == expected

    @invariant()
    def nothing_is_stuck(self) -> None:
        """The first live run of every thread is running or can be claimed."""
        for thread_id in self.threads:
            for first in self.live_of(thread_id)[:1]:
                run = self.model[first]
                assert run.status == "running" or run.cancelled is None


Runs.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.usefixtures("db")
class TestRuns(Runs.TestCase):  # type: ignore[misc,name-defined]
    """The state machine as a unittest TestCase."""
