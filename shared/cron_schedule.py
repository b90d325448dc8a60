"""Cron expressions: when they are next due.

Five fields (minute, hour, day of month, month, day of week) or six, the last one seconds. Times are those of
a time zone: where its clock jumps forward a cron fires right after the gap, where it is set back a daily one
fires once.

Why the least time between two firings has a bound: elsewhere seconds come first, and what is meant as every fifth
minute there (`0 */5 * * * *`) is every second of an hour's first minute here.
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
LOOKED_AT = timedelta(hours=2)  # in which a pattern of minutes and seconds shows all its gaps


def next_after(schedule: str, timezone: str | None, after: datetime) -> datetime:
    """The first time after `after` at which a schedule is due; raises Invalid, also when there is none."""
    zone = zone_of(timezone)
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
    """The next times after `after`, in UTC; fewer where a schedule has no more. Raises Invalid as next_after()."""
    found = [next_after(schedule, timezone, after)]
    while len(found) < count:
        try:
            found.append(next_after(schedule, timezone, found[-1]))
        except Invalid:
            break
    return [at.astimezone(UTC) for at in found]


def _fields(schedule: str) -> list[str]:
    """Its fields in the library's order: seconds come first there."""
    fields = ALIASES.get(schedule.strip().lower(), schedule).split()
    return [fields[5], *fields[:5]] if len(fields) == 6 else fields


def refuse_closer(schedule: str, seconds: float) -> None:
    """Raise Invalid for a schedule, a valid one, that is due twice within less than so many seconds."""
    fields = _fields(schedule)
    if len(fields) != 6:
        return  # it is due on whole minutes
    at = start = datetime(2000, 1, 1, tzinfo=UTC)
    for due in CronSim(" ".join([*fields[:2], "*", "*", "*", "*"]), start - timedelta(seconds=1)):
        if start < at and (due - at).total_seconds() < seconds:
            raise Invalid(
                f"Invalid cron schedule: {schedule!r}. It is due {(due - at).total_seconds():.0f} s after it was due"
                f" before, and must not be within {seconds:g} s. {SECONDS_LAST}.",
                loc=("body", "schedule"),
            )
        if due - start > LOOKED_AT:
            return
        at = due


def moment_of(sent: str) -> datetime:
    """A time in ISO 8601, in UTC where it names no offset; raises ValueError, also for one that is no time in UTC."""
    moment = datetime.fromisoformat(sent)
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def zone_of(name: str | None) -> ZoneInfo:
    """A time zone by its name; raises Invalid."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(f"Invalid timezone: {name!r}", loc=("body", "timezone")) from error
