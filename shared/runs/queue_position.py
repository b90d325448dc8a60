"""Queue positions: why a run waits, its position in the queue, and the state of a deployment's queue.

Everything is computed on request; creating and ending runs writes nothing for it. The position in the queue of a pool
or a deployment counts the runs of other keys that round robin (`shared/runs/eligibility.py`) starts earlier. It is too
high if some of these runs wait for earlier runs of their threads, and it is counted up to MOST_COUNTED. Runs of each
depth have a separate queue (`shared/runs/nesting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import Row
from shared.models import RunStatus, is_due, is_live, is_silent, waiting_since
from shared.runs import visibility
from shared.runs.eligibility import LANES
from shared.runs.record import RUN
from shared.user_code.filters import Filter

MOST_COUNTED = 1_000
MOST_AT_ONCE = 100

EARLIER = "earlier run of its thread"
DEPLOYMENT_LIMIT = "deployment limit"
KEY_LIMIT = "key limit"
NOT_DUE = "not due yet"
FULL = "runners are full"
NOT_PICKED_UP = "not picked up yet"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The limits that apply to a due run: those of its deployment, its key and its pool's runners."""

    pool: str
    runners: int
    slots: int
    busy: int  # running runs of the pool
    running: int  # running runs of the deployment
    limit: int | None
    key_running: int = 0
    key_limit: int | None = None
    draining: int = 0  # runners of the pool that take no new runs

    @property
    def reason(self) -> str:
        """The reason why the first run of the queue waits."""
        if self.limit is not None and self.running >= self.limit:
            return DEPLOYMENT_LIMIT
        if self.key_limit is not None and self.key_running >= self.key_limit:
            return KEY_LIMIT
        if not self.runners:
            if self.draining:
                return f"runners of pool {self.pool} are drained"
            return f"no runner of pool {self.pool}"
        return FULL if self.busy >= self.slots else NOT_PICKED_UP


_OF_POOL = f"""
    (SELECT count(*) FROM worker w WHERE w.kind = 'runner' AND w.pool = d.pool AND w.state = 'ready'
        AND NOT {is_silent("w")}) AS runners,
    (SELECT CAST(coalesce(sum(w.slots), 0) AS bigint) FROM worker w
        WHERE w.kind = 'runner' AND w.pool = d.pool AND w.state = 'ready'
        AND NOT {is_silent("w")}) AS slots,
    (SELECT count(*) FROM worker w WHERE w.kind = 'runner' AND w.pool = d.pool AND w.state = 'draining'
        AND NOT {is_silent("w")}) AS draining,
    (SELECT count(*) FROM run e WHERE e.status = 'running' AND e.pool = d.pool AND e.depth = {{depth}}) AS busy
"""
_RUNNING = "SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running'"

CAPACITY_OF_RUN = text(f"""
SELECT r.run_id, r.pool, r.key_id, r.depth, d.max_concurrent_runs AS "limit", k.max_concurrent_runs AS key_limit,
    ({_RUNNING} AND e.depth = r.depth) AS running,
    CASE WHEN k.max_concurrent_runs IS NULL THEN 0 ELSE (
        SELECT count(*) FROM run e
        WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = r.depth) END AS key_running,
    CASE WHEN r.not_before > now() THEN r.not_before END AS due_at,{_OF_POOL.format(depth="r.depth")}
FROM run r JOIN deployment d ON d.id = r.deployment_id LEFT JOIN api_key k ON k.id = r.key_id
WHERE r.run_id = :run_id
""")

LIVE_OF_THREAD = text(f"""
SELECT run_id, status,
    extract(epoch FROM greatest(now() - {waiting_since("run")}, '0')) AS waiting_seconds
FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND {is_live()}
ORDER BY created_seq
""")

POSITION = text(f"""
WITH RECURSIVE lane AS ({LANES.format(pool=":pool")}), line AS (
    SELECT * FROM lane WHERE (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
        AND (CAST(:key_id AS text) IS NULL OR key_id = :key_id)
), own AS (
    SELECT least(sum(c.n), :most) AS n FROM line l CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
            SELECT FROM run w WHERE w.status = 'pending' AND w.pool = :pool
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND w.depth = :depth
              AND w.run_id <= :run_id
              AND {is_due("w")} LIMIT :most) x) c
    WHERE l.key_id = :own_key
), others AS (
    SELECT l.key_id, sum(c.n) AS n FROM own CROSS JOIN line l CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
            SELECT FROM run w WHERE w.status = 'pending' AND w.pool = :pool
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND w.depth = :depth
              AND {is_due("w")} LIMIT greatest(own.n - 1, 0)) x) c
    WHERE l.key_id <> :own_key GROUP BY l.key_id
)
SELECT CAST(own.n + coalesce((SELECT sum(least(o.n, greatest(own.n - 1, 0))) FROM others o), 0) AS bigint) FROM own
""")


def shown(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return runs of one thread as the API shows them. Pending runs have the field `queue`."""
    waits = of_runs(conn, deployment_id, rows)
    return [
        {**RUN.show(row), **({"queue": waits[row["run_id"]]} if row["run_id"] in waits else {})}
        for row in rows
    ]


def of_runs(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> dict[UUID, dict[str, Any]]:
    """Return position (1 is next), waiting time and reason of the pending runs among a thread's runs, by run id."""
    if not any(row["status"] == RunStatus.PENDING for row in rows):
        return {}
    live = list(
        conn.execute(
            LIVE_OF_THREAD, {"deployment_id": deployment_id, "thread_id": rows[0]["thread_id"]}
        ).mappings()
    )
    wanted = {row["run_id"] for row in rows}
    found: dict[UUID, dict[str, Any]] = {}
    for ahead, run in enumerate(live):
        if run["run_id"] in wanted and run["status"] == RunStatus.PENDING:
            said = (ahead, EARLIER) if ahead else _first_of_thread(conn, deployment_id, run["run_id"])
            found[run["run_id"]] = _said(run, *said)
    return found


def of_many(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> dict[UUID, dict[str, Any]]:
    """Return position, waiting time and reason of pending runs of any threads, by run id.

    Covers the first MOST_AT_ONCE pending runs, because each costs a query on its queue.
    """
    of_threads: dict[UUID, list[Row]] = {}
    waiting = [row for row in rows if row["status"] == RunStatus.PENDING]
    for row in waiting[:MOST_AT_ONCE]:
        of_threads.setdefault(row["thread_id"], []).append(row)
    return {
        run_id: said
        for of_thread in of_threads.values()
        for run_id, said in of_runs(conn, deployment_id, of_thread).items()
    }


def _said(run: RowMapping, position: int | None, reason: str) -> dict[str, Any]:
    waiting = round(float(run["waiting_seconds"]), 3)
    return {"position": position, "waiting_seconds": waiting, "reason": reason}


def _first_of_thread(conn: Connection, deployment_id: UUID, run_id: UUID) -> tuple[int | None, str]:
    """Return the queue position and the reason of a run that has no earlier live run on its thread."""
    row = conn.execute(CAPACITY_OF_RUN, {"run_id": run_id}).mappings().one_or_none()
    if row is None:
        return None, NOT_PICKED_UP  # the run was deleted meanwhile
    if row["due_at"] is not None:
        return None, f"not due before {row['due_at'].isoformat().replace('+00:00', 'Z')}"
    reason = _capacity(row).reason
    line = {
        "deployment_id": deployment_id if reason == DEPLOYMENT_LIMIT else None,
        "key_id": row["key_id"] if reason == KEY_LIMIT else None,
    }
    position = conn.execute(
        POSITION,
        {
            "run_id": run_id,
            "pool": row["pool"],
            "own_key": row["key_id"],
            "depth": row["depth"],
            "most": MOST_COUNTED,
            **line,
        },
    ).scalar()
    return position or 1, reason


def _capacity(row: RowMapping, **more: Any) -> Capacity:
    return Capacity(**{name: row[name] for name in Capacity.__dataclass_fields__ if name in row}, **more)


CAPACITY_OF_DEPLOYMENT = text(f"""
SELECT d.pool, d.max_concurrent_runs AS "limit", ({_RUNNING} AND e.depth = :depth) AS running,
    ({_RUNNING}) AS running_in_all,
    (SELECT count(*) FROM run e WHERE e.status = 'running' AND e.pool = d.pool) AS busy_in_all,{_OF_POOL.format(depth=":depth")}
FROM deployment d WHERE d.id = :deployment_id
""")

WAITING = f"""
SELECT r.key_id, r.depth, r.why, count(*) AS runs,
    extract(epoch FROM greatest(now() - min({waiting_since("r")}), '0')) AS seconds
FROM (
    SELECT w.*, CASE WHEN w.created_seq > min(w.created_seq) OVER (PARTITION BY w.thread_id) THEN 'thread'
        WHEN w.not_before > now() THEN 'early' ELSE 'due' END AS why
    FROM run w WHERE w.deployment_id = :deployment_id AND {is_live("w")}) r
WHERE r.status = 'pending' AND {{visible}} GROUP BY r.key_id, r.depth, r.why
"""

RUNNING = """
SELECT count(*) FROM run r WHERE r.deployment_id = :deployment_id AND r.status = 'running' AND {visible}
"""

KEYS = text("""
SELECT k.id, k.max_concurrent_runs AS key_limit,
    (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = :depth) AS key_running
FROM api_key k WHERE k.max_concurrent_runs IS NOT NULL AND k.id = ANY(:ids)
""")


def of_deployment(
    conn: Connection,
    deployment: DeploymentRef,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] = visibility.NO_METADATA,
) -> dict[str, Any]:
    """Return a deployment's pending runs by reason, longest wait first, with its running runs and its pool.

    Runs on threads that the filter hides or that lack `metadata` count only in the figures of the pool.
    """
    capacity = _capacity_at(conn, deployment.id, 0)
    visible, values = visibility.of_visible_threads(filter, "r", metadata)
    values |= {"deployment_id": deployment.id}
    groups = list(conn.execute(text(WAITING.format(visible=visible)), values).mappings())
    running = capacity["running_in_all"]
    if filter or metadata:
        running = conn.execute(text(RUNNING.format(visible=visible)), values).scalar_one()
    waiting: dict[str, dict[str, Any]] = {}
    for group, reason in _with_reasons(conn, deployment.id, groups):
        said = waiting.setdefault(reason, {"reason": reason, "runs": 0, "oldest_wait_seconds": 0.0})
        said["runs"] += group["runs"]
        said["oldest_wait_seconds"] = max(said["oldest_wait_seconds"], round(float(group["seconds"]), 3))
    reasons = sorted(waiting.values(), key=lambda said: (-said["oldest_wait_seconds"], said["reason"]))
    return {
        "pending": sum(said["runs"] for said in reasons),
        "running": running,
        "oldest_wait_seconds": reasons[0]["oldest_wait_seconds"] if reasons else 0.0,
        "waiting": reasons,
        "max_concurrent_runs": capacity["limit"],
        "pool": {
            "name": capacity["pool"],
            "runners": capacity["runners"],
            "slots": capacity["slots"],
            "running": capacity["busy_in_all"],
        },
    }


def _capacity_at(conn: Connection, deployment_id: UUID, depth: int) -> RowMapping:
    """Return the limits that apply to a deployment's runs of this depth."""
    values = {"deployment_id": deployment_id, "depth": depth}
    return conn.execute(CAPACITY_OF_DEPLOYMENT, values).mappings().one()


def _with_reasons(
    conn: Connection, deployment_id: UUID, groups: Sequence[RowMapping]
) -> Iterator[tuple[RowMapping, str]]:
    """Yield each group of pending runs with its reason. Executes two statements for each depth with pending runs."""
    for depth in sorted({group["depth"] for group in groups}):
        capacity = _capacity_at(conn, deployment_id, depth)
        at_depth = [group for group in groups if group["depth"] == depth]
        keys = conn.execute(KEYS, {"ids": list({group["key_id"] for group in at_depth}), "depth": depth})
        of_key = {
            key["id"]: {"key_limit": key["key_limit"], "key_running": key["key_running"]}
            for key in keys.mappings()
        }
        for group in at_depth:
            reason = {"thread": EARLIER, "early": NOT_DUE}.get(group["why"])
            yield group, reason or _capacity(capacity, **of_key.get(group["key_id"], {})).reason
