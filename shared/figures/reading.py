"""Reading figures: series of points and sums of deployments within a window, and totals since the service began.

A window ends now and begins with a whole step. All readers add the rows that are not folded yet.

Times in seconds are counted in histograms, which have the same buckets and can therefore be added. Bucket `n` begins at
1 ms · 2^(n/4). Four buckets per doubling limit the error of a percentile to a fifth. The first bucket also holds all
shorter times; the last one begins at 12 days and holds all longer ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.figures.folding import HOUR, MINUTE
from shared.infra.postgres import Row, database_time
from shared.models import (
    ENDED_RUN_STATUSES,
    UNSUCCESSFUL_RUN_STATUSES,
    is_unsuccessful,
    status_of_deployment,
)
from shared.sql import statement

SMALLEST_SECONDS = 0.001
A_DOUBLING = 4
LAST = 30 * A_DOUBLING
STATUSES = tuple(str(status) for status in ENDED_RUN_STATUSES)
COUNTS = ("created", *STATUSES, "attempts", "input_tokens", "output_tokens")
KINDS = {
    "wait": "waits",
    "duration": "durations",
    "first_token": "first_tokens",
}  # of seconds → its histogram

Histogram = Mapping[int, int]  # counts by bucket

_SERIES = statement("figures.series")
_CREATED_AND_LIVE = statement("figures.created_and_live")
_BY_DEPLOYMENT = statement("figures.by_deployment")
_OVERVIEW = statement("figures.overview", status=status_of_deployment("d"))
_FAILURES = statement("figures.failures", unsuccessful=is_unsuccessful())
_TOTALS = statement("figures.totals")
_QUEUE_AGES = statement("figures.queue_ages")


@dataclass(frozen=True, slots=True)
class Window:
    """The length of a period: step size in seconds and number of steps."""

    step_seconds: int
    steps: int

    def begins_at(self, now: datetime) -> datetime:
        """Return the beginning of the first step. The last step is still in progress."""
        within = timedelta(seconds=now.timestamp() % self.step_seconds)
        return now - within - timedelta(seconds=self.step_seconds * (self.steps - 1))


WINDOWS = {"hour": Window(MINUTE, 60), "day": Window(HOUR, 24), "week": Window(HOUR, 168)}

SHARES = {"p50": 0.5, "p95": 0.95}


def series(
    conn: Connection,
    organization_id: UUID,
    window: Window,
    *,
    deployment_id: UUID | None = None,
    key_id: str | None = None,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Return one point per step of the window, oldest first, and the sums of the whole window as `total`."""
    now = now or database_time()
    since = window.begins_at(now)
    keys = {"organization_id": organization_id, "deployment_id": deployment_id, "key_id": key_id}
    bounds = {"step": window.step_seconds, "since": since}
    rows = {row["at"]: row for row in _SERIES.rows(conn, **keys, **bounds)}
    live = {row["at"]: row["n"] for row in _CREATED_AND_LIVE.rows(conn, **keys, **bounds)}
    times = [since + timedelta(seconds=window.step_seconds * n) for n in range(window.steps)]
    return {
        "step_seconds": window.step_seconds,
        "from": since,
        "until": now,
        "points": [{"at": at, **_point(rows.get(at, {}), live.get(at, 0))} for at in times],
        "total": _point(_sum(rows.values()), sum(live.values())),
    }


def _point(row: Mapping[str, Any], live: int) -> dict[str, Any]:
    counts = {name: row.get(name, 0) for name in COUNTS}
    counts["created"] += live  # live runs count as created, too
    return {**counts, **_percentiles(row)}


def _sum(rows: Iterable[Row]) -> dict[str, Any]:
    """Add the counts and histograms of steps."""
    counts: Counter[str] = Counter()
    histograms: dict[str, Counter[str]] = {name: Counter() for name in KINDS.values()}
    for row in rows:
        counts.update({name: row[name] for name in COUNTS})
        for name, histogram in histograms.items():
            histogram.update(row[name])
    return {**counts, **histograms}


def _percentiles(row: Row) -> dict[str, float | None]:
    """Return the percentiles of each kind of seconds; None where nothing was counted."""
    histograms = {kind: _histogram(row.get(name)) for kind, name in KINDS.items()}
    percentiles = {
        f"{kind}_{name}": percentile(histogram, share)
        for kind, histogram in histograms.items()
        for name, share in SHARES.items()
    }
    return {name: None if seconds is None else round(seconds, 4) for name, seconds in percentiles.items()}


OF_OVERVIEW = ("wait_p50", "duration_p50", "duration_p95")


def overview(
    conn: Connection, organization_id: UUID, window: Window, *, now: datetime | None = None
) -> dict[str, Any]:
    """Return the window's times, and per deployment its figures within the window and its current runs."""
    now = now or database_time()
    since = window.begins_at(now)
    rows = _BY_DEPLOYMENT.rows(conn, organization_id=organization_id, step=window.step_seconds, since=since)
    figures = {row["deployment_id"]: row for row in rows}
    deployments = _OVERVIEW.rows(conn, organization_id=organization_id)
    minutes = max((now - since).total_seconds(), 1.0) / 60
    return {
        "from": since,
        "until": now,
        "deployments": [_of_deployment(row, figures.get(row["id"], {}), minutes) for row in deployments],
    }


def _of_deployment(row: Row, figures: Row, minutes: float) -> dict[str, Any]:
    percentiles = _percentiles(figures)
    ended = sum(figures.get(status, 0) for status in STATUSES)
    return {
        **row,
        "oldest_wait_seconds": round(row["oldest_wait_seconds"], 3),
        "runs_a_minute": round(ended / minutes, 3),
        "success": figures.get("success", 0),
        "failed": figures.get("error", 0) + figures.get("timeout", 0),
        **{name: percentiles[name] for name in OF_OVERVIEW},
    }


MOST_FAILURES = 2_000  # newest unsuccessful runs of a deployment whose reasons are counted


def failures(
    conn: Connection, organization_id: UUID, window: Window, *, now: datetime | None = None
) -> dict[str, Any]:
    """Return the unsuccessful runs of a window by deployment and reason, with those that left no record.

    A run leaves no record if its row is deleted: with its end if it is temporary or rolled back, or with its thread. The
    figures still count it. Of a deployment with more than MOST_FAILURES rows only the newest are counted, so nothing is
    known about its other runs; its id is then in `incomplete`.
    """
    now = now or database_time()
    since = window.begins_at(now)
    # The sums are read first: a run that ends between the statements would otherwise seem to have left no record.
    sums = _BY_DEPLOYMENT.rows(conn, organization_id=organization_id, step=window.step_seconds, since=since)
    rows = _FAILURES.rows(conn, organization_id=organization_id, since=since, most=MOST_FAILURES)
    recorded: Counter[tuple[UUID, str]] = Counter()
    counts: Counter[UUID] = Counter()
    for row in rows:
        recorded[row["deployment_id"], row["status"]] += row["runs"]
        counts[row["deployment_id"]] += row["runs"]
    incomplete = {deployment_id for deployment_id, runs in counts.items() if runs >= MOST_FAILURES}
    unrecorded = [
        {"deployment_id": row["deployment_id"], "status": status, "runs": runs}
        for row in sums
        if row["deployment_id"] not in incomplete
        for status in map(str, UNSUCCESSFUL_RUN_STATUSES)
        if (runs := row[status] - recorded[row["deployment_id"], status]) > 0
    ]
    return {
        "from": since,
        "until": now,
        "reasons": rows,
        "unrecorded": unrecorded,
        "incomplete": sorted(incomplete),
    }


# Totals, for monitoring systems that compute rates themselves


@dataclass(frozen=True, slots=True)
class DeploymentTotals:
    """The runs of a deployment: totals since its creation, and the runs that are live now."""

    organization: str
    deployment: str
    counts: Mapping[str, int]  # by status, and tokens
    seconds: Mapping[str, float]  # by kind, summed over all its runs
    histograms: Mapping[str, Histogram]  # by kind
    running: int
    pending: int


def of_deployments(
    conn: Connection, *, organization_id: UUID | None, deployment_id: UUID | None = None
) -> list[DeploymentTotals]:
    """Return the totals of an organization's deployments (None: of all), or of one deployment."""
    rows = _TOTALS.rows(conn, organization_id=organization_id, deployment_id=deployment_id)
    return [_totals(row) for row in rows]


def _totals(row: Row) -> DeploymentTotals:
    return DeploymentTotals(
        row["organization"],
        row["deployment"],
        {name: row[name] or 0 for name in (*STATUSES, "input_tokens", "output_tokens")},
        {kind: row[f"{kind}_seconds"] or 0.0 for kind in KINDS},
        {kind: _histogram(row[name]) for kind, name in KINDS.items()},
        row["running"],
        row["pending"],
    )


def of_builds(conn: Connection) -> dict[str, tuple[float, Histogram]]:
    """Return the total seconds and the histogram of builds, by final status."""
    rows = conn.execute(text("SELECT status, seconds, durations FROM build_figure ORDER BY status"))
    return {row.status: (row.seconds, _histogram(row.durations)) for row in rows}


def of_queues(conn: Connection) -> dict[str, tuple[float, Histogram]]:
    """Return the wait times of pending runs by pool: the sum in seconds and the histogram."""
    return {row["pool"]: (row["seconds"], _histogram(row["histogram"])) for row in _QUEUE_AGES.rows(conn)}


# Histograms


def _histogram(stored: Mapping[str, int] | None) -> Histogram:
    return {int(bucket): count for bucket, count in (stored or {}).items()}


def begins_at(bucket: float) -> float:
    """Return the lower bound of a bucket in seconds."""
    return SMALLEST_SECONDS * 2 ** (bucket / A_DOUBLING)


def percentile(histogram: Histogram, share: float) -> float | None:
    """Return the number of seconds that this share of the values does not exceed, or None for an empty histogram."""
    total = sum(histogram.values())
    if total == 0:
        return None
    rank = share * total
    below = 0
    for number in sorted(histogram):
        within = histogram[number]
        if below + within >= rank:
            return begins_at(number + (rank - below) / within)
        below += within
    raise AssertionError("a share is at most 1")


def cumulative(histogram: Histogram, *, every: int = A_DOUBLING) -> list[tuple[float, int]]:
    """Return `(limit in seconds, count below)` pairs, one for every `every` buckets. The last limit is infinite."""
    counts = list(accumulate(histogram.get(number, 0) for number in range(LAST + 1)))
    limits = [(begins_at(number), counts[number - 1]) for number in range(every, LAST + 1, every)]
    return [*limits, (float("inf"), counts[-1])]
