"""Expired threads are deleted, or reduced to their latest checkpoint once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared import thread_copies
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus
from shared.removal import expiry
from shared.runs.drafts import RunRequest
from shared.settings import Settings
from shared.threads import records
from shared.threads.records import TTL_STRATEGIES
from tests.support.creating import insert_run
from tests.support.waiting import wait_until
from workers.upkeep.removals import Removals


def thread(deployment: DeploymentRef, *, minutes: float, strategy: str, changed_ago: float) -> UUID:
    thread_id = make.thread(deployment.id)
    with connection() as conn:
        expiry.set_ttl(conn, deployment.id, thread_id, {"ttl": minutes, "strategy": strategy})
        conn.execute(
            text("UPDATE thread SET updated_at = now() - make_interval(mins => :ago) WHERE thread_id = :id"),
            {"ago": changed_ago, "id": thread_id},
        )
    return thread_id


def sweep() -> int:
    with connection() as conn:
        return expiry.sweep(conn)


def exists(deployment: DeploymentRef, thread_id: UUID) -> bool:
    with connection() as conn:
        try:
            records.require(conn, deployment.id, thread_id)
        except NotFound:
            return False
    return True


def test_only_threads_whose_time_is_over_are_deleted(deployment: DeploymentRef) -> None:
    over = thread(deployment, minutes=5, strategy="delete", changed_ago=6)
    lives = thread(deployment, minutes=5, strategy="delete", changed_ago=4)
    forever = make.thread(deployment.id)

    assert sweep() == 1

    assert [exists(deployment, id) for id in (over, lives, forever)] == [False, True, True]


def test_a_thread_on_which_something_runs_is_not_touched(deployment: DeploymentRef) -> None:
    over = thread(deployment, minutes=5, strategy="delete", changed_ago=6)
    make.run(deployment, over, status=RunStatus.PENDING)

    assert sweep() == 0
    assert exists(deployment, over)

    thread_id = thread(deployment, minutes=1e12, strategy="delete", changed_ago=1)
    with connection() as conn:
        shown = expiry.ttl_of(conn, deployment.id, thread_id)
    assert shown is not None
    assert shown["expires_at"].year == 9999
    assert sweep() == 0


def test_a_thread_that_changes_just_before_it_is_held_is_not_touched(deployment: DeploymentRef) -> None:
    thread_id = thread(deployment, minutes=5, strategy="delete", changed_ago=6)
    with ThreadPoolExecutor(1) as pool:
        with connection() as conn:
            conn.execute(
                text("UPDATE thread SET updated_at = now() WHERE thread_id = :id"), {"id": thread_id}
            )
            swept = pool.submit(sweep)
            wait_until(waits_for_a_lock)
        assert swept.result() == 0

    assert exists(deployment, thread_id)


def waits_for_a_lock() -> bool:
    with connection() as conn:
        return bool(conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_keeping_the_latest_happens_once_for_each_change(deployment: DeploymentRef) -> None:
    over = thread(deployment, minutes=5, strategy="keep_latest", changed_ago=6)

    assert (sweep(), sweep()) == (1, 0)

    with connection() as conn:
        records.update(conn, deployment.id, over, metadata={})
        conn.execute(
            text(
                "UPDATE thread SET updated_at = updated_at - interval '6 minutes',"
                " swept_at = swept_at - interval '10 minutes'"
            )
        )
    assert sweep() == 1
    assert exists(deployment, over)


def test_a_round_goes_on_until_no_thread_is_left_whose_time_is_over(
    deployment: DeploymentRef, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SWEPT_AT_ONCE", 2)
    over = [
        thread(deployment, minutes=5, strategy=strategy, changed_ago=6) for strategy in TTL_STRATEGIES * 3
    ]

    round = Removals(settings)
    round.expired_threads()

    assert round.is_done
    assert [exists(deployment, id) for id in over] == [False, True] * 3
    assert sweep() == 0, "what was thinned out is not looked at again"


# The default TTL of threads in a deployment's configuration


DEFAULT = {"strategy": "keep_latest", "default_ttl": 90.0}


def configure(ttl: dict[str, Any] | None) -> None:
    """Set the `checkpointer.ttl` of the serving revision's langgraph.json."""
    with connection() as conn:
        manifest = dumps({} if ttl is None else {"checkpointer": {"ttl": ttl}})
        conn.execute(text("UPDATE revision SET manifest = CAST(:manifest AS json)"), {"manifest": manifest})


def made_by_run(deployment: DeploymentRef, **fields: Any) -> UUID:
    request = RunRequest(assistant_id="agent", if_not_exists="create", **fields)
    with connection() as conn:
        thread_id = None if fields else uuid4()
        return insert_run(conn, deployment, request, thread_id=thread_id).thread_id


def lives(deployment: DeploymentRef, thread_id: UUID) -> tuple[str, float] | None:
    with connection() as conn:
        shown = expiry.ttl_of(conn, deployment.id, thread_id)
    return None if shown is None else (shown["strategy"], shown["ttl_minutes"])


def test_every_way_to_make_a_thread_gives_it_the_default(deployment: DeploymentRef) -> None:
    configure(DEFAULT)

    with connection() as conn:
        alone = records.create(conn, deployment.id).record["thread_id"]
        copied = thread_copies.copy(conn, deployment.id, alone)["thread_id"]
    by_run, kept = made_by_run(deployment), made_by_run(deployment, on_completion="keep")

    for thread_id in (alone, copied, by_run, kept):
        assert lives(deployment, thread_id) == ("keep_latest", 90.0)
    assert lives(deployment, made_by_run(deployment, on_completion="delete")) is None


@pytest.mark.parametrize("ttl", [None, {"strategy": "delete", "default_ttl": None}])
def test_without_a_default_a_thread_lives_for_ever(deployment: DeploymentRef, ttl: Any) -> None:
    configure(ttl)

    assert lives(deployment, made_by_run(deployment)) is None


def test_what_a_revision_says_changes_nothing_of_the_threads_there_are(deployment: DeploymentRef) -> None:
    before = made_by_run(deployment)
    configure(DEFAULT)
    within = made_by_run(deployment)
    configure({"strategy": "delete", "default_ttl": 1.0})

    assert lives(deployment, before) is None
    assert lives(deployment, within) == ("keep_latest", 90.0)
    assert lives(deployment, made_by_run(deployment)) == ("delete", 1.0)
