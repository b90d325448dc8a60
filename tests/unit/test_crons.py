"""Firing crons: exactly once for each due time, also with several concurrent schedulers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared.crons import records as crons
from shared.crons import schedule as schedules
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.runs import cancel, read
from shared.runs.create import Created
from shared.runs.read import RUN
from tests.support.creating import fire_due_crons


def cron(
    deployment: DeploymentRef,
    *,
    thread_id: UUID | None = None,
    due_ago: float = 1,
    end_time: str | None = None,
    **asked: Any,
) -> UUID:
    """Create a cron that has been due for `due_ago` seconds and ends at `end_time`."""
    body = {"assistant_id": "agent", "schedule": "0 * * * *", **asked}
    with connection() as conn:
        cron_id = crons.create(conn, deployment, body, thread_id=thread_id)["cron_id"]
        conn.execute(
            text(
                "UPDATE cron SET next_run_date = now() - make_interval(secs => :ago),"
                " end_time = CAST(:end_time AS timestamptz) WHERE cron_id = :id"
            ),
            {"ago": due_ago, "id": cron_id, "end_time": end_time},
        )
    return cron_id


def fire() -> list[Created]:
    return fire_due_crons()


def cron_of(run: Created) -> UUID:
    return UUID(run.row["metadata"]["cron_id"])


def row(deployment: DeploymentRef, cron_id: UUID) -> Any:
    with connection() as conn:
        return crons.get(conn, deployment.id, cron_id)


def now() -> datetime:
    with connection() as conn:
        return conn.execute(text("SELECT now()")).scalar_one()


def test_a_due_cron_creates_one_run_and_moves_on_also_after_downtime(deployment: DeploymentRef) -> None:
    cron_id = cron(deployment, input={"text": "a"}, context={"word": "x"}, metadata={"team": "b"})

    [fired] = fire()

    assert fire() == []
    assert now() < row(deployment, cron_id)["next_run_date"] <= now() + timedelta(hours=1)
    with connection() as conn:
        run = RUN.show(read.get(conn, deployment.id, fired.run_id))
    assert (run["status"], run["metadata"]["team"]) == (RunStatus.PENDING, "b")
    assert run["kwargs"]["input"] == {"text": "a"}
    assert run["kwargs"]["context"]["word"] == "x"
    assert run["kwargs"]["config"]["configurable"]["cron_id"] == str(cron_id)
    assert run["metadata"]["cron_id"] == str(cron_id)
    assert run["kwargs"]["temporary"] is True

    cron_id = cron(deployment, schedule="* * * * *", due_ago=3 * 24 * 3600)

    assert len(fire()) == 1
    assert fire() == []
    assert row(deployment, cron_id)["next_run_date"] > now()


def test_however_many_look_each_due_time_fires_once(deployment: DeploymentRef) -> None:
    ids = {cron(deployment) for _ in range(6)}

    with ThreadPoolExecutor(8) as pool:
        fired = [one for many in pool.map(lambda _: fire(), range(8)) for one in many]

    assert sorted(map(cron_of, fired)) == sorted(ids)


@pytest.mark.parametrize("changes", [{"enabled": False}, {"end_time": "2020-01-01T00:00:00Z"}])
def test_what_is_disabled_or_has_ended_does_not_fire(
    deployment: DeploymentRef, changes: dict[str, Any]
) -> None:
    cron_id = cron(deployment, **changes)
    due = row(deployment, cron_id)["next_run_date"]

    assert fire() == []
    assert row(deployment, cron_id)["next_run_date"] == due


def test_the_last_time_before_the_end_still_fires_and_a_past_end_is_refused(
    deployment: DeploymentRef,
) -> None:
    cron_id = cron(deployment, due_ago=30, end_time=(now() - timedelta(seconds=10)).isoformat())
    assert [cron_of(run) for run in fire()] == [cron_id]
    assert fire() == []

    past = {"end_time": (now() - timedelta(seconds=1)).isoformat()}
    body = {"assistant_id": "agent", "schedule": "0 * * * *", **past}
    with pytest.raises(Invalid, match="end_time: must be in the future"), connection() as conn:
        crons.create(conn, deployment, body, thread_id=None)
    cron_id = cron(deployment)
    with pytest.raises(Invalid, match="end_time: must be in the future"), connection() as conn:
        crons.update(conn, deployment.id, cron_id, past)
    assert row(deployment, cron_id)["end_time"] is None


def test_on_a_thread_its_runs_line_up_or_leave_it_alone(deployment: DeploymentRef) -> None:
    thread_id = make.thread(deployment.id)
    make.run(deployment, thread_id, status=RunStatus.PENDING)
    lines_up = cron(deployment, thread_id=thread_id)
    refuses = cron(deployment, thread_id=thread_id, multitask_strategy="reject")

    fired = fire()

    assert [cron_of(run) for run in fired] == [lines_up]
    assert fired[0].thread_id == thread_id
    assert row(deployment, refuses)["next_run_date"] > now(), "its next try is its next time"


def test_a_cron_that_cannot_be_fired_is_out_of_the_others_way(deployment: DeploymentRef) -> None:
    broken = cron(deployment, due_ago=60)
    with connection() as conn:
        conn.execute(text("UPDATE cron SET payload = '{\"config\": 5}' WHERE cron_id = :id"), {"id": broken})
    sound = cron(deployment)

    assert [cron_of(run) for run in fire()] == [sound]
    assert row(deployment, broken)["next_run_date"] > now()

    cron_id = cron(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE cron SET schedule = '0 0 30 2 *' WHERE cron_id = :id"), {"id": cron_id})

    assert len(fire()) == 1
    assert row(deployment, cron_id)["enabled"] is False


def test_a_cron_goes_with_its_thread_and_its_assistant(deployment: DeploymentRef) -> None:
    thread_id = make.thread(deployment.id)
    cron(deployment, thread_id=thread_id)
    assistant_id = make.assistant(deployment.id)
    cron(deployment, assistant_id=str(assistant_id))

    with connection() as conn:
        cancel.delete_thread(conn, deployment.id, thread_id)
        conn.execute(text("DELETE FROM assistant WHERE assistant_id = :id"), {"id": assistant_id})
        assert crons.count(conn, deployment.id) == 0


# Due times of schedules


BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "following"),
    [
        ("*/5 * * * *", None, "2026-01-01T00:00:00", "2026-01-01T00:05:00+00:00"),
        ("0 9 * * 1-5", None, "2026-01-02T09:00:00", "2026-01-05T09:00:00+00:00"),
        ("0 0 29 2 *", None, "2026-01-01T00:00:00", "2028-02-29T00:00:00+00:00"),
        ("* * * * * 30", None, "2026-01-01T00:00:00", "2026-01-01T00:00:30+00:00"),
        ("@daily", None, "2026-01-01T12:00:00", "2026-01-02T00:00:00+00:00"),
        ("0 9 * * *", "America/New_York", "2026-07-01T00:00:00", "2026-07-01T13:00:00+00:00"),
        # an hour skipped by daylight saving: due right after it
        ("30 2 * * *", BERLIN, "2026-03-28T12:00:00", "2026-03-29T01:00:00+00:00"),
        # an hour repeated by daylight saving: due once, the first time
        ("30 2 * * *", BERLIN, "2026-10-24T12:00:00", "2026-10-25T00:30:00+00:00"),
        ("30 2 * * *", BERLIN, "2026-10-25T00:30:00", "2026-10-26T01:30:00+00:00"),
        ("*/30 * * * *", BERLIN, "2026-10-25T00:30:00", "2026-10-25T01:00:00+00:00"),
    ],
)
def test_the_next_time(schedule: str, zone: str | None, after: str, following: str) -> None:
    assert schedules.next_after(schedule, zone, at(after)).astimezone(UTC) == datetime.fromisoformat(
        following
    )


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "x",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "*/0 * * * *",
        "0 " * 500,
    ],
)
def test_what_is_no_schedule_or_never_due_is_refused(schedule: str) -> None:
    with pytest.raises(Invalid, match="Invalid cron schedule"):
        schedules.next_after(schedule, None, at("2026-01-01T00:00:00"))


@pytest.mark.parametrize(
    "schedule",
    ["* * * * *", "@hourly", "* * * * * 0", "* * * * * */10", "* * * * * 5,30,55", "*/2 * * * * 0,55"],
)
def test_what_is_due_every_ten_seconds_at_most_passes(schedule: str) -> None:
    schedules.refuse_closer(schedule, 10)


@pytest.mark.parametrize(
    ("schedule", "gap"),
    [
        ("*/5 * * * * *", "1 s"),
        ("0 */5 * * * *", "1 s"),
        ("0 9 * * 1 */7", "7 s"),
        ("* * * * * 0,55", "5 s"),
        ("0,20,21 5 1 1 * 1,55", "6 s"),
    ],
)
def test_what_is_due_more_often_is_refused_and_says_where_seconds_are(schedule: str, gap: str) -> None:
    with pytest.raises(
        Invalid, match=rf"It is due {gap} after .* Of six fields the last one is seconds"
    ) as refused:
        schedules.refuse_closer(schedule, 10)
    assert refused.value.loc == ("body", "schedule")


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "\x00", "Europe"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(Invalid, match="Invalid timezone"):
        schedules.next_after("* * * * *", zone, at("2026-01-01T00:00:00"))
