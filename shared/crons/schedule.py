"""Cron expressions: computing their due times.

An expression has five fields (minute, hour, day of month, month, day of week), or six with seconds as the last one.
Times are in a time zone. Where its clock jumps forward, a cron fires right after the gap. Where it is set back, a daily
cron fires once.

The minimum time between two firings exists because other systems put seconds first: `0 */5 * * * *` means every fifth
minute there, but every second of an hour's first minute here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from shared.errors import Invalid

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_LENGTH = 200
SECONDS_LAST = (
    "Of six fields the last one is seconds (minute, hour, day of month, month, day of week, second)"
)
CHECKED_PERIOD = timedelta(hours=2)  # contains all gaps of a pattern of minutes and seconds


def next_after(schedule: str, timezone: str | None, after: datetime) -> datetime:
    """Return the first due time later than `after`. Raises Invalid for a bad schedule and for one that is never due."""
    zone = _zone_of(timezone)
    try:
        if len(schedule) > MAX_LENGTH:
            raise CronSimError(f"more than {MAX_LENGTH} characters")
        return next(CronSim(" ".join(_fields(schedule)), after.astimezone(zone)))
    except CronSimError as error:
        raise Invalid(
            f"Invalid cron schedule: {schedule[:MAX_LENGTH]!r}. {error}", loc=("body", "schedule")
        ) from error
    except (StopIteration, OverflowError) as error:
        raise Invalid(
            f"Invalid cron schedule: {schedule!r}. It is never due.", loc=("body", "schedule")
        ) from error


def firings(schedule: str, timezone: str | None, after: datetime, *, count: int) -> list[datetime]:
    """Return the next due times after `after`, in UTC. Fewer if the schedule ends.

    Raises Invalid as next_after() does.
    """
    times = [next_after(schedule, timezone, after)]
    while len(times) < count:
        try:
            times.append(next_after(schedule, timezone, times[-1]))
        except Invalid:
            break
    return [at.astimezone(UTC) for at in times]


def _fields(schedule: str) -> list[str]:
    """Return the fields in cronsim's order, which has seconds first."""
    fields = ALIASES.get(schedule.strip().lower(), schedule).split()
    return [fields[5], *fields[:5]] if len(fields) == 6 else fields


def refuse_closer(schedule: str, seconds: float) -> None:
    """Raise Invalid for a valid schedule that is due twice within less than `seconds`."""
    fields = _fields(schedule)
    if len(fields) != 6:
        return  # due on whole minutes
    at = start = datetime(2000, 1, 1, tzinfo=UTC)
    for due in CronSim(" ".join([*fields[:2], "*", "*", "*", "*"]), start - timedelta(seconds=1)):
        if start < at and (due - at).total_seconds() < seconds:
            raise Invalid(
                f"Invalid cron schedule: {schedule!r}. It is due {(due - at).total_seconds():.0f} s after it was due"
                f" before, and must not be within {seconds:g} s. {SECONDS_LAST}.",
                loc=("body", "schedule"),
            )
        if due - start > CHECKED_PERIOD:
            return
        at = due


def moment_of(sent: str) -> datetime:
    """Parse an ISO 8601 time, in UTC if it has no offset. Raises ValueError, also for times outside UTC's range."""
    moment = datetime.fromisoformat(sent)
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _zone_of(name: str | None) -> ZoneInfo:
    """Return a time zone by its name. Raises Invalid."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(f"Invalid timezone: {name!r}", loc=("body", "timezone")) from error
