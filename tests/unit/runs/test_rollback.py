"""A rollback restores the thread's state before the run, regardless of other runs in the meantime."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import cancel
from shared.runs.claims import Claimed
from shared.runs.drafts import RunRequest
from shared.runs.finish import commit, roll_back
from shared.threads import records
from tests.support import owning
from tests.support.creating import insert_run

ERROR = {"error": "ValueError", "message": "boom"}
UNDONE = {"error": "UserRollback", "message": "rollback requested"}
INTERRUPTS = '{"t":[{"id":"i","value":1}]}'


@pytest.fixture
def deployment(db: Any) -> DeploymentRef:
    return make.deployment(graphs=("agent", "other"))


def create(deployment: DeploymentRef, thread_id: UUID, graph_id: str = "agent", **asked: Any) -> UUID:
    with connection() as conn:
        return insert_run(
            conn, deployment, RunRequest(assistant_id=graph_id, **asked), thread_id=thread_id
        ).run_id


def claim(run_id: UUID) -> Claimed | None:
    return next(iter(owning.claim(run_id)), None)


def finish(run: Claimed, thread_status: ThreadStatus | None, **fields: Any) -> None:
    failed = thread_status in (ThreadStatus.ERROR, None)
    status = RunStatus.ERROR if failed else RunStatus.SUCCESS
    owning.finish(run, status, thread_status=thread_status, **fields)


def shown(deployment: DeploymentRef, thread_id: UUID) -> dict[str, Any]:
    """Return everything stored about a thread except its `updated_at`."""
    with connection() as conn:
        columns = (
            "status, metadata, config, values, state, interrupts, error, rest_status, rest_error,"
            " created_at, state_updated_at"
        )
        row = conn.execute(
            text(f"SELECT {columns} FROM thread WHERE thread_id = :id"), {"id": thread_id}
        ).one()
        kept = conn.execute(text("SELECT checkpoint_id, run_id FROM checkpoint ORDER BY 1")).all()
    return {**row._mapping, "checkpoints": [tuple(each) for each in kept]}


def ended(deployment: DeploymentRef, status: ThreadStatus | None) -> UUID:
    """Create a thread on which a run has ended with this thread status. None: no run has been on it."""
    with connection() as conn:
        thread_id = records.create(conn, deployment.id, metadata={"mine": 1, "graph_id": "called so"}).record[
            "thread_id"
        ]
    if status is None:
        return thread_id
    run = claim(create(deployment, thread_id, "other"))
    assert run is not None
    with connection() as conn:
        commit(conn, [], [make.checkpoint(run, "0001")], owner="", to_disk=False)
    waits = status is not ThreadStatus.IDLE
    finish(
        run,
        status,
        error=ERROR if status is ThreadStatus.ERROR else None,
        values='{"a":1}',
        state='{"next":["ask"]}' if waits else '{"next":[]}',
        interrupts=INTERRUPTS if status is ThreadStatus.INTERRUPTED else "{}",
    )
    return thread_id


def undo(deployment: DeploymentRef, thread_id: UUID, run_id: UUID, *, starts: bool) -> None:
    """Roll a run back while it is pending or, with `starts`, after it was claimed and wrote a checkpoint."""
    run = claim(run_id) if starts else None
    if run is None:
        with connection() as conn:
            cancel.cancel_run(conn, deployment.id, thread_id, run_id, action="rollback")
        return
    with connection() as conn:
        commit(conn, [], [make.checkpoint(run, "0002")], owner="", to_disk=False)
        cancel.cancel_run(conn, deployment.id, thread_id, run_id, action="rollback")
        roll_back(conn, run, error=UNDONE)


STATUSES = [None, ThreadStatus.IDLE, ThreadStatus.INTERRUPTED, ThreadStatus.ERROR]


@pytest.mark.parametrize("status", STATUSES)
def test_runs_that_were_all_rolled_back_leave_no_trace(
    deployment: DeploymentRef, status: ThreadStatus | None
) -> None:
    for seed in range(6):
        _roll_back_all(deployment, status, random.Random(seed))


def _roll_back_all(deployment: DeploymentRef, status: ThreadStatus | None, chance: random.Random) -> None:
    thread_id = ended(deployment, status)
    before = shown(deployment, thread_id)

    def another() -> UUID:
        tags = chance.choice([["a"], ["b"], []])
        return create(deployment, thread_id, chance.choice(["agent", "other"]), config={"tags": tags})

    live = [another() for _ in range(4)]

    while live:
        run_id = live.pop(chance.randrange(len(live)))
        undo(deployment, thread_id, run_id, starts=chance.random() < 0.6)
        assert (shown(deployment, thread_id)["status"] == "busy") == bool(live)
        if len(live) < 3 and chance.random() < 0.3:
            live.append(another())

    after = shown(deployment, thread_id)
    if before["error"] is None and after["error"] is not None:
        assert after.pop("error") == UNDONE  # the only trace of the rollback
        before.pop("error")
    assert after == before


def test_what_other_runs_did_stays(deployment: DeploymentRef) -> None:
    thread_id = ended(deployment, ThreadStatus.IDLE)
    first, second = create(deployment, thread_id, "agent"), create(deployment, thread_id, "other")
    run = claim(first)
    assert run is not None
    finish(run, ThreadStatus.ERROR, error=ERROR, values='{"a":2}', state='{"next":["boom"]}')
    undo(deployment, thread_id, second, starts=True)

    after = shown(deployment, thread_id)
    assert (after["status"], after["error"], after["values"]) == ("error", ERROR, {"a": 2})
    assert after["metadata"]["graph_id"] == "agent"


def test_a_run_that_leaves_the_thread_alone_ends_without_a_trace_on_it(deployment: DeploymentRef) -> None:
    for status in STATUSES:
        thread_id = ended(deployment, status)
        before = shown(deployment, thread_id)
        run = claim(create(deployment, thread_id, "other"))
        assert run is not None
        finish(run, None, error={"error": "UnknownInterruptError", "message": ""})
        after = shown(deployment, thread_id)
        changed = {name for name in after if after[name] != before[name]} - {"metadata", "config"}
        assert changed <= ({"interrupts"} if status is None else set()), (status, changed)
        with connection() as conn:
            query = text("SELECT status FROM run WHERE run_id = :id")
            assert conn.execute(query, {"id": run.run_id}).scalar_one() == "error"
            records.remove(conn, deployment.id, thread_id)


def test_what_a_deleted_run_has_stored_stays_for_the_run_that_has_begun_at_it(
    deployment: DeploymentRef,
) -> None:
    thread_id = make.thread(deployment.id)
    ended, later = create(deployment, thread_id), create(deployment, thread_id)
    first = claim(ended)
    assert first is not None
    make.stored(first, "1")
    finish(first, ThreadStatus.IDLE)
    second = claim(later)
    assert second is not None

    with connection() as conn:
        cancel.delete_run(conn, deployment.id, thread_id, ended)
    make.stored(second, "2", parent_checkpoint_id="1")

    with connection() as conn:
        found = conn.execute(text("SELECT checkpoint_id, run_id FROM checkpoint ORDER BY 1")).all()
    assert [tuple(row) for row in found] == [("1", None), ("2", later)]
