"""Totals since the service began, for monitoring systems that compute rates themselves: runs, builds, queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.figures.folding import EVER
from shared.figures.histograms import added, bucket
from shared.figures.sums import COUNTS, KINDS, SECONDS, STATUSES, summed

Histogram = Mapping[int, int]


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


_ALL = f"""
WITH own AS (
    SELECT d.organization_id, e.* FROM ended_run e JOIN deployment d ON d.id = e.deployment_id
), rows AS (
    SELECT deployment_id, {", ".join((*COUNTS, *SECONDS, *KINDS.values()))} FROM figure
    WHERE step_seconds = {EVER} AND (CAST(:organization_id AS uuid) IS NULL OR organization_id = :organization_id)
    UNION ALL
    SELECT deployment_id, {", ".join((*COUNTS, *SECONDS, *KINDS.values()))}
    FROM ({summed("own", f"ARRAY[{EVER}]")}) AS unfolded
), sums AS (
    SELECT deployment_id, {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in COUNTS)},
        {", ".join(f"sum({name}) AS {name}" for name in SECONDS)},
        {", ".join(f"jsonb_agg({name}) AS {name}" for name in KINDS.values())}
    FROM rows GROUP BY deployment_id
), live AS (
    SELECT deployment_id, count(*) FILTER (WHERE status = 'running') AS running,
        count(*) FILTER (WHERE status = 'pending') AS pending
    FROM run WHERE is_live(status) GROUP BY deployment_id
)
SELECT o.name AS organization, d.name AS deployment, s.*, coalesce(l.running, 0) AS running,
    coalesce(l.pending, 0) AS pending
FROM deployment d JOIN organization o ON o.id = d.organization_id
LEFT JOIN sums s ON s.deployment_id = d.id LEFT JOIN live l ON l.deployment_id = d.id
WHERE d.deleted_at IS NULL AND (CAST(:organization_id AS uuid) IS NULL OR d.organization_id = :organization_id)
  AND (CAST(:deployment_id AS uuid) IS NULL OR d.id = :deployment_id)
ORDER BY o.name, d.name
"""
ALL = text(_ALL)


def of_deployments(
    conn: Connection, *, organization_id: UUID | None, deployment_id: UUID | None = None
) -> list[DeploymentTotals]:
    """Return the totals of an organization's deployments (None: of all), or of one deployment."""
    rows = conn.execute(ALL, {"organization_id": organization_id, "deployment_id": deployment_id}).mappings()
    return [_totals(dict(row)) for row in rows]


def _totals(row: Mapping[str, Any]) -> DeploymentTotals:
    return DeploymentTotals(
        row["organization"],
        row["deployment"],
        {name: row[name] or 0 for name in (*STATUSES, "input_tokens", "output_tokens")},
        {kind: row[f"{kind}_seconds"] or 0.0 for kind in KINDS},
        {kind: _sum(row[name] or ()) for kind, name in KINDS.items()},
        row["running"],
        row["pending"],
    )


def _sum(histograms: Any) -> Histogram:
    total: dict[int, int] = {}
    for histogram in histograms:
        for number, count in histogram.items():
            total[int(number)] = total.get(int(number), 0) + count
    return total


_SECONDS = "CAST(:seconds AS double precision)"
RECORD_BUILD = text(f"""
INSERT INTO build_figure AS kept (status, seconds, durations)
VALUES (:status, {_SECONDS}, jsonb_build_object({bucket(_SECONDS)}, 1))
ON CONFLICT (status) DO UPDATE SET seconds = kept.seconds + excluded.seconds,
    durations = {added("kept.durations", "excluded.durations")}
""")


def record_build(conn: Connection, status: str, seconds: float) -> None:
    """Count a build in the transaction that ends it."""
    conn.execute(RECORD_BUILD, {"status": status, "seconds": seconds})


def of_builds(conn: Connection) -> dict[str, tuple[float, Histogram]]:
    """Return the total seconds and the histogram of builds, by final status."""
    rows = conn.execute(text("SELECT status, seconds, durations FROM build_figure ORDER BY status"))
    return {row.status: (row.seconds, _sum([row.durations])) for row in rows}


AGES = text(f"""
SELECT pool, {bucket("seconds")} AS bucket, count(*) AS n, sum(seconds) AS seconds FROM (
    SELECT pool, CAST(extract(epoch FROM now() - coalesce(not_before, created_at)) AS double precision) AS seconds
    FROM run WHERE status = 'pending' AND coalesce(not_before, created_at) <= now()) AS waiting
GROUP BY pool, bucket ORDER BY pool
""")


def of_queues(conn: Connection) -> dict[str, tuple[float, Histogram]]:
    """Return the wait times of pending runs by pool: the sum in seconds and the histogram."""
    found: dict[str, tuple[float, dict[int, int]]] = {}
    for row in conn.execute(AGES):
        seconds, histogram = found.get(row.pool, (0.0, {}))
        found[row.pool] = (seconds + row.seconds, {**histogram, row.bucket: row.n})
    return found  # type: ignore[return-value]
