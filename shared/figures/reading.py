"""Reading figures: a series of points, and the sums of each deployment within a window.

A window ends now and begins with a whole step. The same statement adds the rows that are not folded yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.figures.folding import HOUR, MINUTE
from shared.figures.histograms import percentile
from shared.figures.sums import COLUMNS, COUNTS, KINDS, STATUSES, summed
from shared.infra.postgres import database_time
from shared.models import status_of_deployment


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

# Rows of one organization: folded and unfolded.
_ROWS = f"""
own AS (
    SELECT d.organization_id, e.* FROM ended_run e JOIN deployment d ON d.id = e.deployment_id
    WHERE d.organization_id = :organization_id
), rows AS (
    SELECT at, deployment_id, {", ".join(COLUMNS)} FROM (
        SELECT at, step_seconds, deployment_id, key_id, {", ".join(COLUMNS)} FROM figure
        WHERE organization_id = :organization_id AND step_seconds = :step AND at >= :since
        UNION ALL
        SELECT at, step_seconds, deployment_id, key_id, {", ".join(COLUMNS)}
        FROM ({summed("own", "ARRAY[CAST(:step AS int)]")}) AS unfolded WHERE at >= :since
    ) AS both_kinds
    WHERE (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
      AND (CAST(:key_id AS text) IS NULL OR key_id = :key_id)
)"""
_SUMMED = """
WITH {rows}, histogram AS (
    SELECT {by}, kind, jsonb_object_agg(bucket, n) AS buckets FROM (
        SELECT {by}, k.kind, CAST(b.key AS int) AS bucket, sum(CAST(b.value AS bigint)) AS n
        FROM rows CROSS JOIN LATERAL (VALUES {kinds}) AS k(kind, buckets) CROSS JOIN LATERAL jsonb_each_text(k.buckets) b
        GROUP BY {by}, k.kind, b.key) AS counted
    GROUP BY {by}, kind
), histograms AS (
    SELECT {by}, jsonb_object_agg(kind, buckets) AS histograms FROM histogram GROUP BY {by}
), sums AS (
    SELECT {by}, {counts} FROM rows GROUP BY {by}
)
SELECT s.*, coalesce(h.histograms, '{{}}') AS histograms FROM sums s LEFT JOIN histograms h USING ({by})
"""


def _by(column: str) -> str:
    return _SUMMED.format(
        rows=_ROWS,
        by=column,
        kinds=", ".join(f"('{kind}', rows.{name})" for kind, name in KINDS.items()),
        counts=", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in COUNTS),
    )


BY_STEP = text(_by("at"))
BY_DEPLOYMENT = text(_by("deployment_id"))
# Live runs count as created, too.
STILL_LIVE = text("""
SELECT date_bin(make_interval(secs => :step), r.created_at, to_timestamp(0)) AS at, count(*) AS n
FROM run r JOIN deployment d ON d.id = r.deployment_id AND d.organization_id = :organization_id
WHERE is_live(r.status) AND r.created_at >= :since
  AND (CAST(:deployment_id AS uuid) IS NULL OR r.deployment_id = :deployment_id)
  AND (CAST(:key_id AS text) IS NULL OR r.key_id = :key_id)
GROUP BY 1
""")
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
    """Return one point per step of the window, oldest first."""
    now = now or database_time()
    since = window.begins_at(now)
    values = {
        "organization_id": organization_id,
        "step": window.step_seconds,
        "since": since,
        "deployment_id": deployment_id,
        "key_id": key_id,
    }
    rows = {row["at"]: dict(row) for row in conn.execute(BY_STEP, values).mappings()}
    live = {row.at: row.n for row in conn.execute(STILL_LIVE, values)}
    times = [since + timedelta(seconds=window.step_seconds * n) for n in range(window.steps)]
    return {
        "step_seconds": window.step_seconds,
        "from": since,
        "until": now,
        "points": [_point(at, rows.get(at, {}), live.get(at, 0)) for at in times],
    }


def _point(at: datetime, row: Mapping[str, Any], live: int) -> dict[str, Any]:
    counts = {name: row.get(name, 0) for name in COUNTS}
    counts["created"] += live
    return {"at": at, **counts, **_percentiles(row.get("histograms", {}))}


def _percentiles(histograms: Mapping[str, Mapping[str, int]]) -> dict[str, float | None]:
    """Return the percentiles of each kind of seconds; None where nothing was counted."""
    found = {kind: {int(key): n for key, n in histograms.get(kind, {}).items()} for kind in KINDS}
    return {
        f"{kind}_{name}": _rounded(percentile(histogram, share))
        for kind, histogram in found.items()
        for name, share in SHARES.items()
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


DEPLOYMENTS = text(f"""
SELECT d.id, d.name, {status_of_deployment("d")} AS status, d.pool, r.number AS revision_number,
    coalesce(l.running, 0) AS running, coalesce(l.waiting, 0) AS waiting,
    CAST(coalesce(l.oldest, 0) AS double precision) AS oldest_wait_seconds
FROM deployment d LEFT JOIN revision r ON r.id = d.active_revision_id
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status = 'running') AS running, count(*) FILTER (WHERE status = 'pending') AS waiting,
        extract(epoch FROM now() - min(waiting_since(w.not_before, w.created_at)) FILTER (
            WHERE status = 'pending' AND waiting_since(w.not_before, w.created_at) <= now())) AS oldest
    FROM run w WHERE deployment_id = d.id AND is_live(w.status)) l ON true
WHERE d.organization_id = :organization_id AND d.deleted_at IS NULL
ORDER BY d.name, d.id
""")
OF_OVERVIEW = ("wait_p50", "duration_p50", "duration_p95")


def overview(
    conn: Connection, organization_id: UUID, window: Window, *, now: datetime | None = None
) -> dict[str, Any]:
    """Return the window's times, and per deployment its figures within the window and its current runs."""
    now = now or database_time()
    since = window.begins_at(now)
    values = {
        "organization_id": organization_id,
        "step": window.step_seconds,
        "since": since,
        "deployment_id": None,
        "key_id": None,
    }
    done = {row["deployment_id"]: dict(row) for row in conn.execute(BY_DEPLOYMENT, values).mappings()}
    minutes = max((now - since).total_seconds(), 1.0) / 60
    found = conn.execute(DEPLOYMENTS, {"organization_id": organization_id}).mappings()
    return {
        "from": since,
        "until": now,
        "deployments": [_of_deployment(dict(row), done.get(row["id"], {}), minutes) for row in found],
    }


def _of_deployment(row: dict[str, Any], done: Mapping[str, Any], minutes: float) -> dict[str, Any]:
    percentiles = _percentiles(done.get("histograms", {}))
    ended = sum(done.get(status, 0) for status in STATUSES)
    return {
        **row,
        "oldest_wait_seconds": round(row["oldest_wait_seconds"], 3),
        "runs_a_minute": round(ended / minutes, 3),
        "success": done.get("success", 0),
        "failed": done.get("error", 0) + done.get("timeout", 0),
        **{name: percentiles[name] for name in OF_OVERVIEW},
    }
