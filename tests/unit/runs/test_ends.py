"""Finishing a run: the stored result, the thread's next run, and ends that are rolled back."""

from __future__ import annotations

import pytest

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs.backlog import NextRun
from shared.runs.finish import Finish, ended_before, finish_runs
from shared.threads import records
from tests.support.owning import change, claim, claimed, finish, give_back, pending, row, thread_of

pytestmark = pytest.mark.usefixtures("db")


def test_an_end_is_stored_for_good_with_the_threads_state_and_its_tokens(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert finish(run, values='{"a":1}', state='{"next":[]}', interrupts="{}") == {run.run_id: None}

    stored, thread = row(run.run_id), thread_of(run)
    assert (stored["status"], stored["lease_until"]) == ("success", None)
    assert stored["ended_at"] is not None
    assert (thread["status"], thread["values"], thread["error"]) == ("idle", {"a": 1}, None)

    before = row(run.run_id)

    assert finish(run, RunStatus.ERROR) == {}
    assert not give_back(run)
    assert claim(run.run_id) == []
    assert row(run.run_id) == before

    kept, none = claimed(deployment), claimed(deployment)
    finish(kept, RunStatus.ERROR, usage='{"large":{"total_tokens":3}}')
    finish(none)

    assert row(kept.run_id)["usage"] == {"large": {"total_tokens": 3}}
    assert row(none.run_id)["usage"] is None


def test_an_end_without_state_keeps_the_threads(deployment: DeploymentRef) -> None:
    first = claimed(deployment)
    finish(first, values='{"a":1}', state='{"next":[]}')
    second = claimed(deployment, first.thread_id)
    finish(second, RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})

    thread = thread_of(second)
    assert (thread["status"], thread["values"]) == ("error", {"a": 1})
    assert thread["error"] == {"error": "E", "message": "m"}


def test_an_end_names_what_comes_next_in_the_thread(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    second = pending(deployment, run.thread_id, pool="gpu")
    pending(deployment, run.thread_id)

    assert finish(run) == {run.run_id: NextRun(second, "gpu")}
    assert thread_of(run)["status"] == "busy"


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
