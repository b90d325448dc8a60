"""Cron expressions: when they are next due.

Five fields (minute, hour, day of month, month, day of week) or six, the last one seconds. Times are those of
a time zone: where its clock jumps forward a cron fires right after the gap, where it is set back a daily one
fires once.
"""

from __future__ import annotations

from datetime import datetime
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


def next_after(schedule: str, timezone: str | None, after: datetime) -> datetime:
    """The first time after `after` at which a schedule is due; raises Invalid, also when there is none."""
    zone = zone_of(timezone)
    fields = ALIASES.get(schedule.strip().lower(), schedule).split()
    if len(fields) == 6:
        fields = [fields[5], *fields[:5]]  # the library wants seconds first
    try:
        if len(schedule) > MAX_LENGTH:
            raise CronSimError(f"more than {MAX_LENGTH} characters")
        return next(CronSim(" ".join(fields), after.astimezone(zone)))
    except CronSimError as error:
        raise Invalid(
            f"Invalid cron schedule: {schedule[:MAX_LENGTH]!r}. {error}", loc=("body", "schedule")
        ) from error
    except (StopIteration, OverflowError) as error:
        raise Invalid(
            f"Invalid cron schedule: {schedule!r}. It is never due.", loc=("body", "schedule")
        ) from error


def zone_of(name: str | None) -> ZoneInfo:
    """A time zone by its name; raises Invalid."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(f"Invalid timezone: {name!r}", loc=("body", "timezone")) from error
