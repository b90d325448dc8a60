"""The field `waits_for` of a successful run: an answer or a resume, as long as the thread stays in that state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import read
from shared.runs.read import RUN
from tests.support import factories
from tests.support.owning import claimed, finish

ENDED_AT = datetime(2026, 1, 1, tzinfo=UTC)
QUESTION = {"task": [{"id": "q", "value": "May I?"}]}


def resting(deployment: DeploymentRef, **columns: Any) -> tuple[UUID, UUID]:
    """Create a thread with this resting state. Returns its id and that of the run that left the state."""
    at_rest = {
        "status": "interrupted",
        "rest_status": "interrupted",
        "interrupts": {},
        "state_updated_at": ENDED_AT,
        **columns,
    }
    thread_id = factories.thread(deployment.id, **at_rest)
    return thread_id, ended(deployment, thread_id)


def ended(deployment: DeploymentRef, thread_id: UUID, status: RunStatus = RunStatus.SUCCESS) -> UUID:
    return factories.run(deployment, thread_id, status=status, attempt=1, ended_at=ENDED_AT)


def waits_for(deployment: DeploymentRef, thread_id: UUID) -> dict[UUID, str | None]:
    """Return `waits_for` of each run of the thread. Asserts that every way to read runs agrees."""
    every = {"status": [str(status) for status in RunStatus], "thread_id": thread_id}
    with connection() as conn:
        of_thread = read.list_of_thread(conn, deployment.id, thread_id, limit=9, offset=0)
        found, _ = read.search(conn, deployment.id, every, limit=9, offset=0)
        each = [read.get(conn, deployment.id, row["run_id"]) for row in of_thread]
    records = [
        {row["run_id"]: RUN.show(row).get("waits_for") for row in rows} for rows in (of_thread, found, each)
    ]
    assert records[0] == records[1] == records[2]
    return records[0]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"interrupts": QUESTION}, "answer"),
        ({"interrupts": {}}, "resume"),
        ({"interrupts": {"task": []}}, "resume"),
        ({"interrupts": None}, "resume"),
        ({"interrupts": QUESTION, "state_updated_at": ENDED_AT + timedelta(seconds=1)}, None),
        ({"status": "idle", "rest_status": "idle"}, None),
        ({"status": "error", "rest_status": "error", "interrupts": QUESTION}, None),
    ],
)
def test_a_run_waits_for_what_its_thread_rests_at(
    deployment: DeploymentRef, columns: dict[str, Any], what: str | None
) -> None:
    thread_id, run_id = resting(deployment, **columns)

    assert waits_for(deployment, thread_id) == {run_id: what}


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SUCCESS])
def test_only_the_newest_run_of_a_thread_waits(deployment: DeploymentRef, status: RunStatus) -> None:
    thread_id, asked = resting(deployment, interrupts=QUESTION)
    later = ended(deployment, thread_id, status)

    newest = "answer" if status == RunStatus.SUCCESS else None
    assert waits_for(deployment, thread_id) == {later: newest, asked: None}


def test_a_later_run_that_was_cancelled_before_it_began_leaves_the_question_open(
    deployment: DeploymentRef,
) -> None:
    thread_id, asked = resting(deployment, interrupts=QUESTION)
    never_began = factories.run(deployment, thread_id, status=RunStatus.INTERRUPTED)

    assert waits_for(deployment, thread_id) == {never_began: None, asked: "answer"}

    thread_id, _ = resting(deployment, interrupts=QUESTION)
    cancelled = ended(deployment, thread_id, RunStatus.INTERRUPTED)

    assert waits_for(deployment, thread_id)[cancelled] is None


def test_a_run_that_ended_at_a_question_waits_for_an_answer(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    finish(run, thread_status=ThreadStatus.INTERRUPTED, interrupts=dumps(QUESTION))

    assert waits_for(deployment, run.thread_id) == {run.run_id: "answer"}
