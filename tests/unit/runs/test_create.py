"""The rules of runs before their claim: creation, displacement, cancellation and deletion."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, NotFound
from shared.eventlog.events import RESERVED
from shared.infra.postgres import connection, driver
from shared.models import RunStatus
from shared.runs import cancel, claims, read
from shared.runs import create as creation
from shared.runs.claims import Claimed, Terms
from shared.runs.create import Created, RunRequest
from shared.runs.read import show_new
from shared.threads import records
from tests.support import owning
from tests.support.creating import insert_run


@pytest.fixture
def thread_id(deployment: DeploymentRef) -> UUID:
    return make.thread(deployment.id)


def create(
    deployment: DeploymentRef, thread_id: UUID | None, max_pending: int = 1000, **asked: Any
) -> Created:
    with connection() as conn:
        return insert_run(
            conn,
            deployment,
            RunRequest(assistant_id="agent", **asked),
            thread_id=thread_id,
            max_pending=max_pending,
        )


def claim(run_id: UUID, owner: str = "w") -> Claimed:
    [run] = owning.claim(run_id, owner=owner)
    return run


def test_only_the_first_run_of_a_thread_starts_at_once(deployment: DeploymentRef, thread_id: UUID) -> None:
    made = [create(deployment, thread_id) for _ in range(3)]
    assert [run.starts_at_once for run in made] == [True, False, False]
    claim(made[0].run_id)
    assert not create(deployment, thread_id).starts_at_once


def test_one_of_several_requests_for_the_same_new_thread_is_not_rejected(deployment: DeploymentRef) -> None:
    thread_id = uuid4()

    def request(_: int) -> bool:
        try:
            create(deployment, thread_id, multitask_strategy="reject", if_not_exists="create")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(request, range(4))) == [False, False, False, True]


def test_runs_made_at_the_same_time_get_an_order(deployment: DeploymentRef, thread_id: UUID) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: create(deployment, thread_id), range(8)))
    assert sum(run.starts_at_once for run in made) == 1
    with connection() as conn:
        listed = read.list_of_thread(conn, deployment.id, thread_id, limit=10, offset=0)
    assert len(listed) == 8


@pytest.mark.parametrize("asked", [{"multitask_strategy": "reject"}, {"if_thread_status": ["idle"]}])
def test_what_depends_on_other_runs_needs_a_transaction(
    deployment: DeploymentRef, thread_id: UUID, asked: dict[str, Any]
) -> None:
    request = RunRequest(assistant_id="agent", **asked)
    with driver() as conn, pytest.raises(TypeError, match="need a transaction"):
        insert_run(conn, deployment, request, thread_id=thread_id)
    with driver() as conn:
        assert insert_run(conn, deployment, request, thread_id=None).thread_id != thread_id


def test_of_many_runs_at_once_one_rejecting_wins_and_one_makes_the_thread(
    deployment: DeploymentRef, thread_id: UUID
) -> None:
    def attempt(_: int) -> bool:
        try:
            create(deployment, thread_id, multitask_strategy="reject")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(attempt, range(8))) == 1

    thread_id = uuid4()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: create(deployment, thread_id, if_not_exists="create"), range(8)))
    assert {run.thread_id for run in made} == {thread_id}
    assert sum(run.starts_at_once for run in made) == 1


def at_once(deployment: DeploymentRef, thread_id: UUID | None, **asked: Any) -> Created:
    """Create a run outside a transaction, the way most runs are created."""
    asked = {"assistant_id": "agent", "if_not_exists": "create", **asked}
    with driver() as conn:
        return insert_run(conn, deployment, RunRequest(**asked), thread_id=thread_id)


@pytest.mark.parametrize("on", ["a thread", "a thread yet to be made", "no thread"])
def test_an_assistant_that_is_as_it_was_is_not_looked_up_again(
    deployment: DeploymentRef, thread_id: UUID, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(deployment, thread_id)
    monkeypatch.setattr(creation.assistants, "resolve", None)

    made = at_once(deployment, {"a thread": thread_id, "no thread": None}.get(on, uuid4()))

    assert made.row["assistant_id"] == assistants.default_id("agent")


CHANGES = {
    "UPDATE deployment SET pool = 'gpu' WHERE id = :id": ("pool", "gpu"),
    """UPDATE assistant_version SET config = '{"tags": ["new"]}' WHERE deployment_id = :id""": (
        "tags",
        ["new"],
    ),
    """
    INSERT INTO assistant_version (deployment_id, assistant_id, version, graph_id, name, config)
    SELECT deployment_id, assistant_id, 2, 'agent', 'two', '{"tags": ["two"]}' FROM assistant
    WHERE deployment_id = :id;
    UPDATE assistant SET version = 2 WHERE deployment_id = :id""": ("tags", ["two"]),
}


@pytest.mark.parametrize("on", ["a thread", "a thread yet to be made", "no thread"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_assistant_holds_for_the_next_run(
    deployment: DeploymentRef, thread_id: UUID, change: str, on: str
) -> None:
    at_once(deployment, thread_id)
    with connection() as conn:
        for statement in change.split(";"):
            conn.execute(text(statement), {"id": deployment.id})

    made = at_once(deployment, {"a thread": thread_id, "no thread": None}.get(on, uuid4()))

    name, value = CHANGES[change]
    assert {"pool": made.pool, "tags": made.row["kwargs"]["config"].get("tags")}[name] == value


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM assistant WHERE deployment_id = :id",
        "UPDATE deployment SET deleted_at = now() WHERE id = :id",
    ],
)
def test_an_assistant_that_is_gone_makes_no_more_runs(
    deployment: DeploymentRef, thread_id: UUID, change: str
) -> None:
    at_once(deployment, thread_id)
    with connection() as conn:
        conn.execute(text(change), {"id": deployment.id})

    for where in (thread_id, uuid4(), None):
        with pytest.raises(NotFound):
            at_once(deployment, where)
    with connection() as conn:
        count = text("SELECT count(*) FROM run WHERE deployment_id = :id")
        assert conn.execute(count, {"id": deployment.id}).scalar_one() == 1


def test_an_interrupted_pending_run_reserves_numbers_for_its_end_and_is_not_cancelled_again(
    deployment: DeploymentRef, thread_id: UUID
) -> None:
    run_id = create(deployment, thread_id).run_id
    with connection() as conn:
        stopped = cancel.cancel_run(conn, deployment.id, thread_id, run_id, reason="why")
        row = read.get(conn, deployment.id, run_id)
    assert (row["status"], row["cancel_reason"]) == (RunStatus.INTERRUPTED, "why")
    assert row["seq_reserved"] == stopped.seq_reserved + RESERVED
    with driver() as conn:
        assert claims.claim(conn, [run_id], Terms("w", 30, 60)) == []

    with connection() as conn:
        with pytest.raises(NotFound, match="No matching runs to cancel"):
            cancel.cancel_run(conn, deployment.id, thread_id, run_id)
        with pytest.raises(NotFound, match="No runs found to cancel"):
            cancel.cancel_run(conn, deployment.id, thread_id, uuid4())
        with pytest.raises(NotFound, match="No runs found to cancel"):
            cancel.cancel_run(conn, deployment.id, make.thread(deployment.id), run_id)


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
def test_a_cancelled_temporary_run_leaves_nothing(deployment: DeploymentRef, action: str) -> None:
    made = create(deployment, None)
    with connection() as conn:
        assert cancel.cancel_run(conn, deployment.id, made.thread_id, made.run_id, action=action).is_over
        assert not records.lock(conn, deployment.id, made.thread_id)


def test_deleting_an_ended_run_leaves_the_thread_as_it_is(deployment: DeploymentRef, thread_id: UUID) -> None:
    ended = make.run(deployment, thread_id, status=RunStatus.SUCCESS)
    with connection() as conn:
        before = records.get(conn, deployment.id, thread_id)
        assert cancel.delete_run(conn, deployment.id, thread_id, ended) is None
        assert records.get(conn, deployment.id, thread_id) == before

    run_id = create(deployment, thread_id).run_id
    owned = claim(run_id, owner="w1")
    with connection() as conn:
        gone = cancel.delete_run(conn, deployment.id, thread_id, run_id)
        assert gone is not None
        assert (gone.owner, gone.is_over) == ("w1", True)
        assert not claims.reserve(conn, run_id, owner="w1", attempt=owned.attempt, upto=9999)
        assert records.get(conn, deployment.id, thread_id)["status"] == "idle"


@pytest.mark.parametrize(("until", "is_joined"), [("'1 minute'", True), ("'-1 second'", False)])
def test_a_run_on_a_thread_that_is_watched_is_to_show_more(
    deployment: DeploymentRef, thread_id: UUID, until: str, is_joined: bool
) -> None:
    with connection() as conn:
        conn.execute(text(f"UPDATE thread SET protocol_until = now() + interval {until}"))
    row = create(deployment, thread_id).row
    assert row["joined"] == ({"stream_mode": ["protocol"], "subgraphs": False} if is_joined else None)
    assert row["kwargs"]["stream_mode"] == ["values"]
    assert "joined" not in show_new(row)


def test_callers_do_not_see_what_a_run_shows_to_others(deployment: DeploymentRef, thread_id: UUID) -> None:
    row = create(deployment, thread_id, stream_mode=("values", "protocol")).row
    assert row["kwargs"]["stream_mode"] == ["values", "protocol"]
    assert show_new(row)["kwargs"]["stream_mode"] == ["values"]
