"""The rules of threads: records, and the status derived from runs and stored state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

import tests.support.factories as make
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, NotFound
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import cancel
from shared.threads import records
from shared.threads import state as states


@pytest.mark.parametrize(
    ("run", "state", "status"),
    [
        (RunStatus.PENDING, None, "busy"),
        (RunStatus.RUNNING, {"next": []}, "busy"),
        (RunStatus.SUCCESS, None, "idle"),
        (RunStatus.SUCCESS, {"next": []}, "idle"),
        (RunStatus.ERROR, {"next": ["node"]}, "interrupted"),
        (RunStatus.INTERRUPTED, {}, "idle"),
    ],
)
def test_settling_derives_the_status(
    deployment: DeploymentRef, run: RunStatus, state: dict[str, Any] | None, status: str
) -> None:
    thread_id = make.thread(deployment.id, status=ThreadStatus.BUSY, state=state, error={"error": "old"})
    make.run(deployment, thread_id, status=run)
    with connection() as conn:
        records.settle(conn, deployment.id, thread_id)
        row = records.get(conn, deployment.id, thread_id)
    assert (row["status"], row["error"]) == (status, None)


def test_error_and_interrupts_appear_together(deployment: DeploymentRef) -> None:
    error = {"error": "UserRollback", "message": "m"}

    def shown(**columns: Any) -> tuple[Any, Any]:
        with connection() as conn:
            row = records.get(conn, deployment.id, make.thread(deployment.id, **columns))
        record = records.RECORD.show(row)
        return record.get("error", "absent"), record.get("interrupts", "absent")

    assert shown() == ("absent", "absent")
    assert shown(interrupts={}) == (None, {})
    assert shown(error=error) == (error, {})
    assert shown(error=error, interrupts={"t": []}) == (error, {"t": []})


def test_creations_of_one_id_at_the_same_time_make_one_and_metadata_merged_then_is_all_kept(
    deployment: DeploymentRef,
) -> None:
    thread_id = uuid4()

    def attempt(number: int) -> Any:
        with connection() as conn:
            return records.create(
                conn, deployment.id, thread_id=thread_id, metadata={"n": number}, if_exists="do_nothing"
            ).record["metadata"]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(attempt, range(8)))
    assert all(metadata == made[0] for metadata in made)
    with connection() as conn, pytest.raises(Conflict):
        records.create(conn, deployment.id, thread_id=thread_id)

    thread_id = make.thread(deployment.id)

    def merge(number: int) -> None:
        with connection() as conn:
            records.update(conn, deployment.id, thread_id, metadata={str(number): number})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(merge, range(8)))
    with connection() as conn:
        assert len(records.get(conn, deployment.id, thread_id)["metadata"]) == 8


def test_a_thread_of_another_deployment_is_not_there(deployment: DeploymentRef) -> None:
    thread_id = make.thread(make.deployment("other").id)
    with connection() as conn:
        assert not records.lock(conn, deployment.id, thread_id)
        for call in (records.get, records.require, states.newest, cancel.delete_thread):
            with pytest.raises(NotFound, match=f"Thread with ID {thread_id} not found"):
                call(conn, deployment.id, thread_id)
        with pytest.raises(NotFound):
            records.update(conn, deployment.id, thread_id, metadata={})
