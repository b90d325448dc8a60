"""When schedules are due, also where clocks jump."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from shared import cron_schedule
from shared.errors import Invalid

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
        # the hour that is left out: right after it
        ("30 2 * * *", BERLIN, "2026-03-28T12:00:00", "2026-03-29T01:00:00+00:00"),
        # the hour that comes twice: once, at the first
        ("30 2 * * *", BERLIN, "2026-10-24T12:00:00", "2026-10-25T00:30:00+00:00"),
        ("30 2 * * *", BERLIN, "2026-10-25T00:30:00", "2026-10-26T01:30:00+00:00"),
        ("*/30 * * * *", BERLIN, "2026-10-25T00:30:00", "2026-10-25T01:00:00+00:00"),
    ],
)
def test_the_next_time(schedule: str, zone: str | None, after: str, following: str) -> None:
    assert cron_schedule.next_after(schedule, zone, at(after)).astimezone(UTC) == datetime.fromisoformat(
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
        cron_schedule.next_after(schedule, None, at("2026-01-01T00:00:00"))


@pytest.mark.parametrize(
    "schedule",
    ["* * * * *", "@hourly", "* * * * * 0", "* * * * * */10", "* * * * * 5,30,55", "*/2 * * * * 0,55"],
)
def test_what_is_due_every_ten_seconds_at_most_passes(schedule: str) -> None:
    cron_schedule.refuse_closer(schedule, 10)


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
        cron_schedule.refuse_closer(schedule, 10)
    assert refused.value.loc == ("body", "schedule")


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "\x00", "Europe"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(Invalid, match="Invalid timezone"):
        cron_schedule.next_after("* * * * *", zone, at("2026-01-01T00:00:00"))
