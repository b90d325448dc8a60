"""Who executes a run: claims, leases, fencing, and taking over, each arrow once and each refusal."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.errors import UniqueViolation
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.errors import Fenced
from shared.eventlog.events import RESERVED
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims, eligibility
from shared.runs.cancel import cancel_run, delete_run
from shared.runs.claims import Claimed, Terms
from shared.runs.eligibility import Next
from shared.runs.finish import Finish, ended_before, finish_runs, roll_back
from shared.threads import checkpoints, records
from tests.support import factories
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("db")

KWARGS = {"config": {"configurable": {"a": 1}, "recursion_limit": 25}}


@pytest.fixture
def deployment() -> DeploymentRef:
    return factories.deployment()


def pending(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> UUID:
    return factories.run(deployment, thread_id, **{"kwargs": KWARGS, **columns})


def terms(owner: str = "a") -> Terms:
    return Terms(owner, 30.0, 3600.0)


def claim(*run_ids: UUID, owner: str = "a") -> list[Claimed]:
    with driver() as conn:
        return [run for run, _ in claims.claim(conn, run_ids, terms(owner))]


def claimed(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> Claimed:
    (run,) = claim(pending(deployment, thread_id, **columns))
    return run


def row(run_id: UUID) -> dict[str, Any]:
    with connection() as conn:
        found = conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id})
        return dict(found.mappings().one())


def change(run_id: UUID, assignments: str) -> None:
    with connection() as conn:
        conn.execute(text(f"UPDATE run SET {assignments} WHERE run_id = :id"), {"id": run_id})


def expire(run: Claimed) -> None:
    change(run.run_id, "lease_until = now() - interval '1 second'")


def finish(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> dict[UUID, Next | None]:
    end = Finish(run, status, fields.pop("thread_status", ThreadStatus.IDLE), **fields)
    with driver() as conn, conn.transaction():
        records.lock_all(conn, [(run.deployment_id, run.thread_id)])
        return finish_runs(conn, [end], owner=run.owner)


def thread_of(run: Claimed) -> dict[str, Any]:
    with connection() as conn:
        return dict(records.get(conn, run.deployment_id, run.thread_id))


def test_a_claim_takes_the_run_with_all_it_needs(deployment: DeploymentRef) -> None:
    run_id = pending(deployment, input={"a": 1}, metadata={"m": 1})
    (run,) = claim(run_id)

    assert (run.run_id, run.attempt, run.owner, run.floor) == (run_id, 1, "a", 0)
    assert run.input == b'{"a":1}'
    assert run.metadata == {"m": 1}
    assert 3590 < run.seconds_left <= 3600
    stored = row(run_id)
    assert (stored["status"], stored["seq_reserved"]) == ("running", RESERVED)
    assert stored["lease_until"] > stored["updated_at"]


def test_a_run_is_claimed_once(deployment: DeploymentRef) -> None:
    run_id = pending(deployment)

    assert len(claim(run_id, run_id)) == 1
    assert claim(run_id, owner="b") == []


def test_many_owners_at_once_share_the_runs(deployment: DeploymentRef) -> None:
    ids = [pending(deployment) for _ in range(20)]
    taken: list[UUID] = []
    barrier = threading.Barrier(4)

    def work(owner: str) -> None:
        barrier.wait()
        for run_id in ids:
            taken.extend(run.run_id for run in claim(run_id, owner=owner))

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert sorted(taken) == sorted(ids)


def test_the_oldest_run_is_first_wherever_its_row_lies(deployment: DeploymentRef) -> None:
    """Rows that were changed lie behind the others, and a plan may read them as they lie."""
    ids = [pending(deployment) for _ in range(3)]
    change(ids[0], "notifications = notifications + 1")
    with driver() as conn:
        conn.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
        claimed = [run.run_id for run, _ in claims.claim(conn, ids, terms())]
        conn.execute("RESET enable_indexscan; RESET enable_bitmapscan")

    assert claimed == ids


def test_an_unknown_run_is_nobodys(deployment: DeploymentRef) -> None:
    assert claim(uuid4()) == []


def test_runs_of_a_thread_wait_for_those_before(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id)
    first, second = pending(deployment, thread_id), pending(deployment, thread_id)

    assert claim(second) == []
    (run,) = claim(second, first)
    assert run.run_id == first
    assert claim(second) == []
    finish(run)
    assert [run.run_id for run in claim(second)] == [second]


def test_the_index_lets_one_run_of_a_thread_run_at_a_time(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    change(run.run_id, "created_seq = 100")  # the order alone would let the next one in
    second = pending(deployment, run.thread_id)

    with pytest.raises(UniqueViolation):
        claim(second)
    assert row(second)["status"] == "pending"


def test_a_run_is_not_claimed_before_its_time(deployment: DeploymentRef) -> None:
    run_id = pending(deployment)
    change(run_id, "not_before = now() + interval '1 minute'")
    assert claim(run_id) == []

    change(run_id, "not_before = now() - interval '1 second'")
    assert len(claim(run_id)) == 1


def test_a_run_to_be_stopped_is_not_claimed(deployment: DeploymentRef) -> None:
    assert claim(pending(deployment, cancel_requested="interrupt")) == []


def test_a_claim_brings_the_newest_checkpoint_of_the_thread(deployment: DeploymentRef) -> None:
    first = claimed(deployment)
    store(first, "0001")
    store(first, "0002")
    finish(first)

    second = pending(deployment, first.thread_id)
    with driver() as conn:
        ((_, stored),) = claims.claim(conn, [second], terms())
    assert stored is not None
    assert b'"0002"' in stored[0]


def test_every_attempt_begins_in_a_block_of_its_own(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        assert claims.reserve(conn, run.run_id, owner="a", attempt=1, upto=12_000)
    expire(run)
    release(run)
    (again,) = claim(run.run_id, owner="b")

    assert (again.attempt, again.floor) == (2, 12_000)


def test_runs_nobody_rang_for_are_found(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id)
    old, behind, young = pending(deployment, thread_id), pending(deployment, thread_id), pending(deployment)
    foreign = pending(deployment, pool="gpu")
    later = pending(deployment)
    for run_id in (old, behind, foreign, later):
        change(run_id, "created_at = now() - interval '1 minute'")
    change(later, "not_before = now() - interval '1 second'")

    with driver() as conn:
        found = claims.claim_waiting(conn, "default", terms(), limit=10, waited_seconds=2)
    assert [run.run_id for run, _ in found] == [old]
    assert row(young)["status"] == "pending"


def test_a_long_queue_on_one_thread_hides_nobody(deployment: DeploymentRef) -> None:
    busy = claimed(deployment)
    for _ in range(5):
        pending(deployment, busy.thread_id)
    free = pending(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE run SET created_at = now() - interval '1 minute'"))

    with driver() as conn:
        found = claims.claim_waiting(conn, "default", terms(), limit=3, waited_seconds=2)
    assert [run.run_id for run, _ in found] == [free]


def test_the_clock_is_the_databases(deployment: DeploymentRef) -> None:
    """No stored time comes from this process: moving its clock would change nothing."""
    run = claimed(deployment)
    with connection() as conn:
        left = conn.execute(
            text("SELECT extract(epoch FROM lease_until - now()) FROM run WHERE run_id = :id"),
            {"id": run.run_id},
        )
        assert 0 < left.scalar_one() <= 30


def renew(run: Claimed, owner: str | None = None) -> dict[UUID, claims.Hold]:
    with connection() as conn:
        return claims.renew(conn, [run.run_id], owner=owner or run.owner, lease_seconds=60)


def release(run: Claimed, max_attempts: int = 3) -> bool:
    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        return claims.release_abandoned(conn, run.run_id, max_attempts=max_attempts)


def give_back(run: Claimed, **fields: Any) -> bool:
    with connection() as conn:
        return run.run_id in claims.give_back(conn, [claims.Requeue(run, **fields)])


def store(run: Claimed, id: str, *, ending: Sequence[UUID] = ()) -> set[UUID]:
    with connection() as conn:
        return checkpoints.write(conn, [factories.checkpoint(run, id)], ending=ending)


def test_a_renewal_prolongs_the_lease_and_reports_cancels(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    before = row(run.run_id)["lease_until"]
    assert renew(run)[run.run_id] == claims.Hold(1, None, None)
    assert row(run.run_id)["lease_until"] > before

    with connection() as conn:
        cancel_run(conn, deployment.id, run.thread_id, run.run_id, action="rollback", reason="why")
    assert renew(run)[run.run_id] == claims.Hold(1, "rollback", "why")


def test_only_the_owner_renews_a_running_run(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert renew(run, owner="b") == {}

    finish(run)
    assert renew(run) == {}


def test_runs_that_somebody_has_locked_are_left_out_instead_of_waited_for(deployment: DeploymentRef) -> None:
    free, locked = claimed(deployment), claimed(deployment)
    ids = [free.run_id, locked.run_id]
    with connection() as other, connection() as conn:
        assert claims.hold(other, locked)

        held = claims.renew_free(conn, ids, owner=free.owner, lease_seconds=60)

        assert held == {free.run_id: claims.Hold(1, None, None)}
    with connection() as conn:
        assert claims.renew_free(conn, ids, owner=free.owner, lease_seconds=60).keys() == set(ids)


def test_a_lease_that_ran_out_is_not_renewed(deployment: DeploymentRef) -> None:
    """Its owner was frozen: it must not be first to the row when it wakes up."""
    run = claimed(deployment)
    expire(run)

    assert renew(run) == {}
    assert release(run)


def test_a_lease_is_renewed_until_its_last_moment(deployment: DeploymentRef) -> None:
    """The database was away until just now."""
    run = claimed(deployment)
    change(run.run_id, "lease_until = now() + interval '1 second'")

    assert run.run_id in renew(run)


def test_a_lease_that_ran_out_is_somebody_elses_to_take(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert not release(run)  # still held

    expire(run)
    with connection() as conn:
        assert [found["run_id"] for found in claims.abandoned(conn)] == [run.run_id]
    assert release(run)
    stored = row(run.run_id)
    assert (stored["status"], stored["owner"], stored["deaths"]) == ("pending", None, 1)
    assert not release(run)


def test_a_zombie_changes_nothing(deployment: DeploymentRef) -> None:
    zombie = claimed(deployment)
    expire(zombie)
    release(zombie)
    for step in ("pending", "running"):
        assert row(zombie.run_id)["status"] == step
        before = row(zombie.run_id)
        assert finish(zombie, values='{"a":1}') == {}
        assert not give_back(zombie)
        assert renew(zombie) == {}
        with connection() as conn:
            assert not claims.reserve(conn, zombie.run_id, owner="a", attempt=1, upto=9_999)
        assert store(zombie, "0001") == {zombie.run_id}
        with pytest.raises(Fenced), connection() as conn:
            roll_back(conn, zombie, error={})
        assert row(zombie.run_id) == before
        if step == "pending":
            (heir,) = claim(zombie.run_id, owner="b")
    assert store(heir, "0001") == set()


def test_the_same_owner_at_an_older_attempt_is_a_zombie_too(deployment: DeploymentRef) -> None:
    zombie = claimed(deployment)
    expire(zombie)
    release(zombie)
    (heir,) = claim(zombie.run_id)

    assert finish(zombie) == {}
    assert store(zombie, "0001") == {zombie.run_id}
    assert not give_back(zombie)
    assert list(finish(heir)) == [heir.run_id]


def test_a_run_that_is_gone_fences_its_owner(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        delete_run(conn, deployment.id, run.thread_id, run.run_id)

    assert finish(run) == {}
    assert store(run, "0001") == {run.run_id}
    assert renew(run) == {}
    assert not give_back(run)


def test_nothing_is_stored_after_the_end_but_what_its_transaction_brings(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    finish(run)

    assert store(run, "0001") == {run.run_id}
    assert store(run, "0001", ending=[run.run_id]) == set()


def test_a_writer_of_checkpoints_and_a_cancel_do_not_deadlock(deployment: DeploymentRef) -> None:
    """The writer holds the run and refers to the thread; the cancel holds the thread and wants the run."""
    run = claimed(deployment)
    done: list[str] = []

    def cancel() -> None:
        with connection() as conn:
            cancel_run(conn, deployment.id, run.thread_id, run.run_id)
        done.append("cancelled")

    thread = threading.Thread(target=cancel)
    with connection() as conn:
        conn.execute(text("SELECT 1 FROM run WHERE run_id = :id FOR SHARE"), {"id": run.run_id})
        thread.start()
        wait_until(lambda: waits_for_a_lock())
        conn.execute(
            text(
                "INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, type, data)"
                " VALUES (:deployment, :thread, '', '0001', 'x', '')"
            ),
            {"deployment": deployment.id, "thread": run.thread_id},
        )
    thread.join()

    assert done == ["cancelled"]


def waits_for_a_lock() -> bool:
    with connection() as conn:
        return bool(conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_an_end_is_stored_with_the_threads_state(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert finish(run, values='{"a":1}', state='{"next":[]}', interrupts="{}") == {run.run_id: None}

    stored, thread = row(run.run_id), thread_of(run)
    assert (stored["status"], stored["lease_until"]) == ("success", None)
    assert stored["ended_at"] is not None
    assert (thread["status"], thread["values"], thread["error"]) == ("idle", {"a": 1}, None)


def test_an_end_without_state_keeps_the_threads(deployment: DeploymentRef) -> None:
    first = claimed(deployment)
    finish(first, values='{"a":1}', state='{"next":[]}')
    second = claimed(deployment, first.thread_id)
    finish(second, RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})

    thread = thread_of(second)
    assert (thread["status"], thread["values"]) == ("error", {"a": 1})
    assert thread["error"] == {"error": "E", "message": "m"}


def test_a_terminal_status_never_changes(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    finish(run)
    before = row(run.run_id)

    assert finish(run, RunStatus.ERROR) == {}
    assert not give_back(run)
    assert claim(run.run_id) == []
    assert row(run.run_id) == before


def test_an_end_names_what_comes_next_in_the_thread(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    second = pending(deployment, run.thread_id, pool="gpu")
    pending(deployment, run.thread_id)

    assert finish(run) == {run.run_id: Next(second, "gpu")}
    assert thread_of(run)["status"] == "busy"


def test_the_tokens_it_used_stay_with_the_run(deployment: DeploymentRef) -> None:
    kept, none = claimed(deployment), claimed(deployment)
    finish(kept, RunStatus.ERROR, usage='{"large":{"total_tokens":3}}')
    finish(none)

    assert row(kept.run_id)["usage"] == {"large": {"total_tokens": 3}}
    assert row(none.run_id)["usage"] is None


def test_many_runs_end_in_one_statement(deployment: DeploymentRef) -> None:
    ours = [claimed(deployment) for _ in range(3)]
    zombie = claimed(deployment)
    change(zombie.run_id, "owner = 'b'")
    temporary = claimed(deployment, temporary=True)
    ends = [
        Finish(run, RunStatus.SUCCESS, ThreadStatus.IDLE, values=f'{{"n":{n}}}')
        for n, run in enumerate([*ours, zombie, temporary])
    ]
    with driver() as conn, conn.transaction():
        done = finish_runs(conn, ends, owner="a")

    assert set(done) == {run.run_id for run in [*ours, temporary]}
    assert [thread_of(run)["values"] for run in ours] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with connection() as conn:
        assert not records.lock(conn, temporary.deployment_id, temporary.thread_id)


def test_an_end_whose_answer_was_lost_is_known_again(deployment: DeploymentRef) -> None:
    ended, running, gone = claimed(deployment), claimed(deployment), claimed(deployment, temporary=True)
    foreign = claimed(deployment)
    finish(ended)
    finish(gone)
    finish(foreign)
    change(foreign.run_id, "owner = 'b'")

    with driver() as conn:
        found = ended_before(conn, [ended, running, gone, foreign], owner="a")
    assert found == {ended.run_id, gone.run_id}


def test_a_run_given_back_waits_and_counts_its_deaths(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert give_back(run, delay_seconds=60, death="was killed by SIGSEGV")

    stored = row(run.run_id)
    assert (stored["status"], stored["owner"], stored["deaths"]) == ("pending", None, 1)
    assert stored["last_death"] == "was killed by SIGSEGV"
    assert claim(run.run_id) == []
    change(run.run_id, "not_before = now()")
    (again,) = claim(run.run_id)
    assert (again.attempt, again.deaths, again.last_death) == (2, 1, "was killed by SIGSEGV")


def test_the_next_attempt_knows_whether_there_is_a_checkpoint_to_go_on_from(
    deployment: DeploymentRef,
) -> None:
    begun, unbegun = claimed(deployment), claimed(deployment)
    store(begun, "0001")
    assert not begun.has_checkpoint
    assert give_back(begun)
    assert give_back(unbegun)

    (begun,), (unbegun,) = claim(begun.run_id), claim(unbegun.run_id)
    assert (begun.attempt, begun.has_checkpoint) == (2, True)
    assert (unbegun.attempt, unbegun.has_checkpoint) == (2, False)


def attempts(run_id: UUID) -> Any:
    """The attempts that were lost, without their times, which must be in order."""
    found = row(run_id)["attempts"]
    for attempt in found or ():
        began, ended = (datetime.fromisoformat(attempt.pop(name)) for name in ("started_at", "ended_at"))
        assert began < ended
    return found


def test_a_run_remembers_how_its_attempts_were_lost(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert attempts(run.run_id) is None  # an attempt writes nothing of itself
    give_back(run, death="was killed by SIGSEGV")
    (run,) = claim(run.run_id, owner="b")
    give_back(run, refund=True)
    (run,) = claim(run.run_id, owner="c")
    expire(run)
    assert release(run)
    (run,) = claim(run.run_id, owner="d")
    change(run.run_id, "updated_at = now() - interval '1 minute'")
    with connection() as conn:
        claims.give_back_unknown(conn, owner="d", known=[])
    (run,) = claim(run.run_id, owner="e")
    expire(run)
    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        claims.take_over(conn, run.run_id, owner="upkeep")

    reasons = (
        "was killed by SIGSEGV",
        claims.HANDED_OVER,
        claims.LEASE_RAN_OUT,
        claims.ANSWER_LOST,
        claims.LEASE_RAN_OUT,
    )
    workers = ("a", "b", "c", "d", "e")
    assert attempts(run.run_id) == [
        {"attempt": n, "worker": worker, "reason": reason}
        for n, (worker, reason) in enumerate(zip(workers, reasons, strict=True), 1)
    ]


def test_of_very_many_lost_attempts_the_newest_are_remembered(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    change(run.run_id, f"attempts = to_jsonb(CAST(array_fill(1, ARRAY[{claims.MOST_ATTEMPTS}]) AS int[]))")
    give_back(run, refund=True)
    found = row(run.run_id)["attempts"]
    assert (len(found), found[0], found[-1]["attempt"]) == (claims.MOST_ATTEMPTS, 1, 1)


def test_a_hand_over_is_no_death(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert give_back(run, refund=True)

    assert row(run.run_id)["deaths"] == 0
    assert len(claim(run.run_id, owner="b")) == 1


def test_a_run_to_be_stopped_is_not_given_back(deployment: DeploymentRef) -> None:
    """It would be pending for ever: nobody claims what is to be stopped."""
    run = claimed(deployment)
    with connection() as conn:
        cancel_run(conn, deployment.id, run.thread_id, run.run_id)

    assert not give_back(run)
    assert row(run.run_id)["status"] == "running"


@pytest.mark.parametrize(
    "circumstance",
    ["deaths = 2", "cancel_requested = 'interrupt'", "deadline_at = now() - interval '1 second'"],
)
def test_some_abandoned_runs_must_end(deployment: DeploymentRef, circumstance: str) -> None:
    run = claimed(deployment)
    expire(run)
    change(run.run_id, circumstance)
    assert not release(run)

    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        taken = claims.take_over(conn, run.run_id, owner="upkeep")
    assert taken is not None
    assert (taken.attempt, taken.owner, taken.floor) == (2, "upkeep", RESERVED)
    assert finish(run) == {}  # the zombie
    assert list(finish(taken, RunStatus.ERROR)) == [run.run_id]


def test_a_held_run_is_not_taken_over(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        assert claims.take_over(conn, run.run_id, owner="upkeep") is None


def test_a_rollback_leaves_nothing_of_the_run(deployment: DeploymentRef) -> None:
    first = claimed(deployment)
    store(first, "0001")
    interrupted = ThreadStatus.INTERRUPTED
    finish(first, thread_status=interrupted, values='{"a":1}', state='{"next":["ask"]}')
    run = claimed(deployment, first.thread_id)
    store(run, "0002")
    behind = pending(deployment, first.thread_id)
    error = {"error": "UserRollback", "message": "rollback requested"}
    with connection() as conn:
        assert roll_back(conn, run, error=error) == Next(behind, "default")
    assert thread_of(run)["status"] == "busy"

    with connection() as conn:
        cancel_run(conn, deployment.id, run.thread_id, behind)
        left = conn.execute(text("SELECT checkpoint_id FROM checkpoint")).scalars().all()
    assert left == ["0001"]
    thread = thread_of(run)
    assert (thread["status"], thread["values"]) == ("interrupted", {"a": 1})


def to_notify() -> list[UUID]:
    with connection() as conn:
        return [found.run_id for found in eligibility.to_notify(conn)]


def test_runs_whose_notification_was_lost_are_notified_of_again_ever_more_rarely(
    deployment: DeploymentRef,
) -> None:
    run_id = pending(deployment)
    assert to_notify() == [run_id]
    assert to_notify() == []  # notified just now

    change(run_id, "notified_at = now() - interval '3 seconds'")
    assert to_notify() == []  # the second wait is longer
    change(run_id, "notified_at = now() - interval '5 seconds'")
    assert to_notify() == [run_id]
    change(run_id, "notifications = 1000, notified_at = now() - interval '31 seconds'")
    assert to_notify() == [run_id]


def test_only_eligible_runs_are_notified_of_again(deployment: DeploymentRef) -> None:
    busy = claimed(deployment)
    pending(deployment, busy.thread_id)
    pending(deployment, cancel_requested="interrupt")
    change(pending(deployment), "not_before = now() + interval '1 minute'")

    assert to_notify() == []


def test_one_round_notifies_of_a_bounded_number(deployment: DeploymentRef) -> None:
    for _ in range(5):
        pending(deployment)
    with connection() as conn:
        assert len(eligibility.to_notify(conn, limit=3)) == 3
        assert len(eligibility.to_notify(conn, limit=3)) == 2
