"""Figures of ended runs: every kind of end is recorded, rows are folded into sums, and readers see both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from shared.access import api_keys
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.figures import folding, reading
from shared.figures.reading import WINDOWS
from shared.infra.postgres import connection, driver, engine
from shared.models import RevisionStatus, RunStatus, ThreadStatus
from shared.removal import deletion
from shared.runs import cancel, finish
from shared.runs.claims import Claimed
from shared.runs.finish import Finish
from shared.settings import Settings
from tests.support import factories, owning
from workers.upkeep.upkeep import Upkeep

pytestmark = pytest.mark.usefixtures("db")

USAGE = (
    '{"small": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}, "large": {"input_tokens": 1}}'
)
AT_NOON = datetime(2026, 3, 4, 12, 0, 30, tzinfo=UTC)


def pending(deployment: DeploymentRef, **columns: Any) -> UUID:
    return owning.pending(deployment, **{"key_id": "aaaa", **columns})


def claimed(deployment: DeploymentRef, **columns: Any) -> Claimed:
    [run] = owning.claim(pending(deployment, **columns))
    return run


def ended(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> None:
    assert run.run_id in owning.finish(run, status, **fields)


def of_table(table: str) -> list[dict[str, Any]]:
    with connection() as conn:
        return [dict(row) for row in conn.execute(text(f"SELECT * FROM {table} ORDER BY 1")).mappings()]


def counted() -> list[tuple[str, int]]:
    return [(row["status"], row["attempts"]) for row in of_table("ended_run")]


def fold(**more: Any) -> int:
    with connection() as conn:
        return folding.fold(conn, **more)


def append(deployment: DeploymentRef, at: datetime, **columns: Any) -> None:
    """Insert a row as a run that ended at this time leaves it."""
    values = {
        "deployment_id": deployment.id, "key_id": "aaaa", "status": "success",
        "created_at": at - timedelta(seconds=3), "ended_at": at, "attempts": 1, "wait_seconds": 1.0,
        "duration_seconds": 2.0, "first_token_seconds": None, "usage": None, **columns,
    }  # fmt: skip
    names = ", ".join(values)
    placed = ", ".join("CAST(:usage AS jsonb)" if name == "usage" else f":{name}" for name in values)
    with connection() as conn:
        conn.execute(text(f"INSERT INTO ended_run ({names}) VALUES ({placed})"), values)


def series(deployment: DeploymentRef, now: datetime = AT_NOON, window: str = "hour", **more: Any) -> Any:
    with connection() as conn:
        return reading.series(conn, deployment.organization_id, WINDOWS[window], now=now, **more)


# Recording the end of a run


def test_a_run_that_ends_is_counted_with_what_it_took(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET created_at = now() - interval '9 s', started_at = now() - interval '4 s'")
        )
    ended(run, usage=USAGE, first_token_ago=3.0)

    (row,) = of_table("ended_run")

    assert (row["deployment_id"], row["key_id"], row["status"]) == (deployment.id, "aaaa", "success")
    assert row["attempts"] == 1
    assert row["wait_seconds"] == pytest.approx(5, abs=0.5)
    (of_run,) = of_table("run")
    took = (of_run["ended_at"] - of_run["started_at"]).total_seconds()
    assert row["duration_seconds"] == pytest.approx(took, abs=0.01)
    assert row["first_token_seconds"] == pytest.approx(row["duration_seconds"] + 5 - 3, abs=0.01)
    assert row["usage"]["small"]["total_tokens"] == 15


def test_a_run_that_was_to_start_later_has_waited_since_then(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        conn.execute(
            text(
                "UPDATE run SET created_at = now() - interval '1 h', not_before = now() - interval '5 s',"
                " started_at = now() - interval '3 s'"
            )
        )
    ended(run)

    assert of_table("ended_run")[0]["wait_seconds"] == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("webhook", [None, "https://example.com/hook"])
def test_a_run_that_goes_when_it_ends_is_counted(deployment: DeploymentRef, webhook: str | None) -> None:
    run = claimed(deployment, temporary=True, webhook=webhook, kwargs={**owning.KWARGS, "webhook": webhook})
    ended(run, RunStatus.ERROR, usage=USAGE, first_token_ago=0.0)

    (row,) = of_table("ended_run")
    assert (row["status"], row["key_id"], row["attempts"]) == ("error", "aaaa", 1)
    assert row["usage"]["small"]["total_tokens"] == 15
    assert row["first_token_seconds"] is not None
    assert of_table("run") == []


def test_users_of_a_deployment_are_nobodys_key(deployment: DeploymentRef) -> None:
    ended(claimed(deployment, key_id=f"{api_keys.USER_PREFIX}0123"))
    with connection() as conn:
        cancel.cancel_run(conn, deployment.id, **_waiting(deployment, f"{api_keys.USER_PREFIX}0123"))

    assert {row["key_id"] for row in of_table("ended_run")} == {""}


def _waiting(deployment: DeploymentRef, key_id: str) -> dict[str, UUID]:
    run_id = pending(deployment, key_id=key_id)
    (row,) = [row for row in of_table("run") if row["run_id"] == run_id]
    return {"run_id": run_id, "thread_id": row["thread_id"]}


def roll_back(run: Claimed) -> None:
    with connection() as conn:
        finish.roll_back(conn, run, error={}, usage=USAGE)


def delete_run(run: Claimed) -> None:
    with connection() as conn:
        cancel.delete_run(conn, run.deployment_id, run.thread_id, run.run_id)


def delete_thread(run: Claimed) -> None:
    with connection() as conn:
        cancel.delete_thread(conn, run.deployment_id, run.thread_id)


def test_a_run_that_is_taken_away_is_counted_unless_it_had_ended(deployment: DeploymentRef) -> None:
    for number, take_away in enumerate((roll_back, delete_run, delete_thread), 1):
        take_away(claimed(deployment))
        assert counted() == [("interrupted", 1)] * number, take_away
    for take_away in (delete_run, delete_thread):
        run = claimed(deployment)
        ended(run)
        before = len(counted())
        take_away(run)
        assert len(counted()) == before, take_away


def test_a_run_that_is_cancelled_while_it_waits_is_counted(deployment: DeploymentRef) -> None:
    for number, (action, temporary) in enumerate(product(("interrupt", "rollback"), (False, True)), 1):
        run_id = pending(deployment, temporary=temporary)
        with connection() as conn:
            query = text("SELECT thread_id FROM run WHERE run_id = :id")
            thread_id = conn.execute(query, {"id": run_id}).scalar_one()
            cancel.cancel_run(conn, deployment.id, thread_id, run_id, action=action)
        assert counted() == [("interrupted", 0)] * number, (action, temporary)
    assert {row["wait_seconds"] for row in of_table("ended_run")} == {None}


def test_a_running_run_that_is_asked_to_stop_is_counted_when_it_does(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        cancel.cancel_run(conn, deployment.id, run.thread_id, run.run_id)
    assert counted() == []

    ended(run, RunStatus.INTERRUPTED)
    assert counted() == [("interrupted", 1)]


def test_a_run_that_upkeep_ends_is_counted(deployment: DeploymentRef, settings: Settings, redis: Any) -> None:
    run = claimed(deployment)
    with connection() as conn:
        conn.execute(
            text(
                "UPDATE run SET deadline_at = now(), lease_until = now() - interval '1 s' WHERE run_id = :id"
            ),
            {"id": run.run_id},
        )
    Upkeep(settings)._abandoned_runs()

    assert counted() == [("timeout", 2)]


def test_the_runs_of_a_deleted_deployment_are_counted_before_it_is_gone(deployment: DeploymentRef) -> None:
    pending(deployment)
    with connection() as conn:
        deletion.delete(conn, deployment.organization_id, deployment.id)
        while deletion.purge(conn):
            pass

    assert of_table("deployment") == []
    assert {row["interrupted"] for row in of_table("figure")} == {1}


def test_an_end_that_is_refused_since_it_was_told_before_is_counted_once(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    ended(run)
    with driver() as conn, conn.transaction():
        again = Finish(run, RunStatus.ERROR, ThreadStatus.ERROR)
        assert finish.finish_runs(conn, [again], owner=run.owner) == {}

    assert counted() == [("success", 1)]


# Folding


def test_what_is_folded_is_in_every_step_at_once(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON, usage=USAGE, first_token_seconds=0.5)
    append(deployment, AT_NOON, status="error", attempts=3)
    assert fold() == 2

    rows = of_table("figure")

    assert of_table("ended_run") == []
    assert {row["step_seconds"]: row["at"] for row in rows} == {
        60: AT_NOON.replace(second=0),
        3600: AT_NOON.replace(second=0),
        86400: AT_NOON.replace(hour=0, second=0),
        0: datetime.fromtimestamp(0, UTC),
    }
    for row in rows:
        assert (row["created"], row["success"], row["error"], row["attempts"]) == (2, 1, 1, 4)
        assert (row["input_tokens"], row["output_tokens"]) == (11, 5)
        assert (row["wait_seconds"], row["first_token_seconds"]) == (2.0, 0.5)
        assert sum(row["durations"].values()) == 2
        assert sum(row["first_tokens"].values()) == 1


def test_folding_in_parts_gives_the_same_sums(deployment: DeploymentRef) -> None:
    for n in range(7):
        append(deployment, AT_NOON + timedelta(seconds=20 * n), wait_seconds=0.01 * 2**n, usage=USAGE)
    before = series(deployment, AT_NOON + timedelta(minutes=3))
    while fold(limit=2):
        assert series(deployment, AT_NOON + timedelta(minutes=3)) == before

    assert of_table("ended_run") == []
    assert fold() == 0


def test_two_leaders_take_different_rows(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON)
    append(factories.deployment(), AT_NOON)
    with connection() as one, connection() as other:
        assert folding.fold(one, limit=1) == 1
        assert folding.fold(other) == 1

    assert {row["success"] for row in of_table("figure")} == {1}
    assert fold() == 0


def test_a_leader_that_is_killed_while_it_folds_leaves_all_to_the_next(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON)
    with engine().connect() as killed, connection() as next_leader:
        assert folding.fold(killed) == 1
        append(deployment, AT_NOON)
        pid = killed.connection.driver_connection.info.backend_pid
        next_leader.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        assert folding.fold(next_leader) == 2
        killed.invalidate()

    assert {(row["created"], row["success"]) for row in of_table("figure")} == {(2, 2)}
    assert of_table("ended_run") == []


def test_two_leaders_at_once_count_each_run_once(deployment: DeploymentRef) -> None:
    for _ in range(60):
        append(deployment, AT_NOON, usage=USAGE)

    def lead() -> int:
        return sum(fold(limit=5) for _ in range(12))

    with ThreadPoolExecutor(2) as leaders:
        taken = [leaders.submit(lead) for _ in range(2)]
        assert sum(each.result() for each in taken) == 60

    assert {(row["success"], sum(row["waits"].values())) for row in of_table("figure")} == {(60, 60)}
    assert {row["runs"] for row in of_table("daily_usage")} == {60}


@pytest.mark.parametrize(
    "usage",
    [
        '"none"',
        "[1]",
        '{"m": 7}',
        '{"m": {"input_tokens": "many", "output_tokens": -4, "total_tokens": 1e300}}',
        '{"' + "m" * 9_000 + '": {"input_tokens": 1}}',
    ],
)
def test_whatever_a_graph_host_says_it_used_can_be_folded(deployment: DeploymentRef, usage: str) -> None:
    append(deployment, AT_NOON, usage=usage)

    assert fold() == 1
    assert sum(row["runs"] for row in of_table("daily_usage") if not row["model"]) == 1


def test_tokens_are_summed_by_day_and_model(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON, usage=USAGE)
    append(deployment, AT_NOON, usage=USAGE)
    append(deployment, AT_NOON + timedelta(days=1))
    fold()

    found = {
        (str(row["day"]), row["model"]): (row["runs"], row["input_tokens"], row["total_tokens"])
        for row in of_table("daily_usage")
    }
    assert found == {
        ("2026-03-04", ""): (2, 0, 0),
        ("2026-03-04", "small"): (2, 20, 30),
        ("2026-03-04", "large"): (2, 2, 0),
        ("2026-03-05", ""): (1, 0, 0),
    }


def test_old_steps_are_removed_and_the_sum_of_all_stays(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON)
    fold()

    def left_after(**age: int) -> set[int]:
        with connection() as conn:
            folding.remove_old(conn, now=AT_NOON + timedelta(**age))
        return {row["step_seconds"] for row in of_table("figure")}

    assert left_after(days=1) == {60, 3600, 86400, 0}
    assert left_after(days=3) == {3600, 86400, 0}
    assert left_after(days=61) == {86400, 0}
    assert len(of_table("daily_usage")) == 1
    assert left_after(days=740) == {0}
    assert of_table("daily_usage") == []


def test_upkeep_folds(deployment: DeploymentRef, settings: Settings) -> None:
    append(deployment, AT_NOON)
    Upkeep(settings)._figures()

    assert of_table("ended_run") == []


# Reading


def test_a_series_has_a_point_for_each_step_and_adds_what_is_not_folded(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON - timedelta(minutes=10), wait_seconds=4.0)
    fold()
    append(deployment, AT_NOON, status="error", usage=USAGE)

    found = series(deployment)

    assert (found["step_seconds"], len(found["points"]), found["until"]) == (60, 60, AT_NOON)
    assert found["from"] == found["points"][0]["at"] == AT_NOON.replace(second=0) - timedelta(minutes=59)
    earlier, last = found["points"][49], found["points"][59]
    assert (earlier["success"], earlier["wait_p50"]) == (1, pytest.approx(4, rel=0.1))
    assert (last["created"], last["error"], last["input_tokens"]) == (1, 1, 11)
    assert last["duration_p95"] == pytest.approx(2, rel=0.2)
    assert last["first_token_p50"] is None
    empty = found["points"][20]
    assert (empty["created"], empty["success"], empty["wait_p50"]) == (0, 0, None)


def test_a_series_has_the_sums_of_the_whole_window(deployment: DeploymentRef) -> None:
    for minutes, seconds in ((50, 1.0), (10, 1.0), (0, 64.0)):
        append(deployment, AT_NOON - timedelta(minutes=minutes), duration_seconds=seconds, usage=USAGE)
    append(deployment, AT_NOON - timedelta(hours=2), status="error")

    total = series(deployment)["total"]

    assert (total["created"], total["success"], total["error"], total["input_tokens"]) == (3, 3, 0, 33)
    assert total["duration_p50"] == pytest.approx(1, rel=0.2)
    assert total["duration_p95"] == pytest.approx(64, rel=0.2)
    assert total["first_token_p95"] is None


def failures(deployment: DeploymentRef) -> dict[str, Any]:
    with connection() as conn:
        return reading.failures(conn, deployment.organization_id, WINDOWS["hour"])


def reasons(deployment: DeploymentRef) -> list[tuple[str, str | None, int]]:
    return [(row["status"], row["error"], row["runs"]) for row in failures(deployment)["reasons"]]


def test_failures_are_counted_by_status_and_error_class(deployment: DeploymentRef) -> None:
    for error in ("ValueError", "ValueError", "Key\u0000Error"):
        ended(claimed(deployment), RunStatus.ERROR, error={"error": error, "message": "no"})
    ended(claimed(deployment), RunStatus.TIMEOUT)
    ended(claimed(deployment))
    ended(claimed(deployment), RunStatus.INTERRUPTED)

    assert reasons(deployment) == [
        ("error", "ValueError", 2),
        ("error", "Key\ufffdError", 1),
        ("interrupted", None, 1),
        ("timeout", None, 1),
    ]
    assert failures(deployment)["unrecorded"] == []


def test_failures_without_a_row_are_counted_apart(deployment: DeploymentRef) -> None:
    ended(claimed(deployment), RunStatus.ERROR, error={"error": "ValueError", "message": "no"})
    ended(claimed(deployment, temporary=True), RunStatus.ERROR, error={"error": "KeyError", "message": "no"})
    fold()

    assert reasons(deployment) == [("error", "ValueError", 1)]
    assert failures(deployment)["unrecorded"] == [
        {"deployment_id": deployment.id, "status": "error", "runs": 1}
    ]


def test_only_the_newest_of_very_many_failures_are_counted(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_FAILURES", 2)
    for error in ("ValueError", "KeyError", "KeyError"):
        ended(claimed(deployment), RunStatus.ERROR, error={"error": error, "message": "no"})

    found = failures(deployment)

    assert [(row["error"], row["runs"]) for row in found["reasons"]] == [("KeyError", 2)]
    assert (found["unrecorded"], found["incomplete"]) == ([], [deployment.id])


def test_longer_windows_have_hours(deployment: DeploymentRef) -> None:
    append(deployment, AT_NOON)
    fold()
    append(deployment, AT_NOON)

    for window, steps in (("day", 24), ("week", 168)):
        found = series(deployment, window=window)
        assert (found["step_seconds"], len(found["points"])) == (3600, steps), window
        assert found["points"][-1]["success"] == 2, window


def test_runs_that_have_not_ended_were_created(deployment: DeploymentRef) -> None:
    pending(deployment)
    pending(deployment, key_id="bbbb")
    now = datetime.now(UTC)

    assert sum(point["created"] for point in series(deployment, now)["points"]) == 2
    assert sum(point["created"] for point in series(deployment, now, key_id="bbbb")["points"]) == 1


def test_a_series_is_of_one_organization_deployment_and_key(deployment: DeploymentRef) -> None:
    other = factories.deployment("other", organization_id=deployment.organization_id)
    foreign = factories.deployment()
    for where in (deployment, other, foreign):
        append(where, AT_NOON)
        fold()
        append(where, AT_NOON, key_id="bbbb")

    def successes(**more: Any) -> int:
        return sum(point["success"] for point in series(deployment, **more)["points"])

    assert successes() == 4
    assert successes(deployment_id=other.id) == 2
    assert successes(deployment_id=other.id, key_id="bbbb") == 1
    assert successes(deployment_id=foreign.id) == 0
    assert successes(deployment_id=uuid4()) == 0


def test_the_overview_says_what_each_deployment_did_and_does(deployment: DeploymentRef) -> None:
    idle = factories.deployment("idle", organization_id=deployment.organization_id, pool="gpu", serving=False)
    now = datetime.now(UTC)
    append(deployment, now - timedelta(minutes=20))
    fold()
    append(deployment, now, status="timeout")
    claimed(deployment)
    pending(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE run SET created_at = now() - interval '90 s' WHERE status = 'pending'"))
        found = reading.overview(conn, deployment.organization_id, WINDOWS["hour"], now=now)

    busy, other = found["deployments"]
    assert (found["from"], found["until"]) == (WINDOWS["hour"].begins_at(now), now)
    assert (busy["id"], busy["name"], busy["revision_number"]) == (deployment.id, "app", 1)
    assert (busy["success"], busy["failed"], busy["running"], busy["waiting"]) == (1, 1, 1, 1)
    assert busy["runs_a_minute"] == pytest.approx(2 / 60, rel=0.05)
    assert busy["oldest_wait_seconds"] == pytest.approx(90, abs=5)
    assert busy["wait_p50"] == pytest.approx(1, rel=0.2)
    assert (other["id"], other["pool"], other["revision_number"]) == (idle.id, "gpu", None)
    assert (other["success"], other["running"], other["duration_p95"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("newest", "status"),
    [
        (RevisionStatus.BUILD_FAILED, "UNUSED"),
        (RevisionStatus.INTERRUPTED, "UNUSED"),
        (RevisionStatus.BUILDING, "READY"),
    ],
)
def test_the_overview_has_the_status_of_the_deployments_record(newest: RevisionStatus, status: str) -> None:
    never_served = factories.deployment(serving=False)
    factories.revision(never_served.id, status=newest)

    with connection() as conn:
        found = reading.overview(conn, never_served.organization_id, WINDOWS["hour"])["deployments"]
        record = deployments.get(conn, never_served.organization_id, never_served.id)

    assert [row["status"] for row in found] == [status] == [record["status"]]
