"""Queue positions: why a run waits, its position in the queue, and the state of a deployment's queue.

Everything is computed on request; creating and ending runs writes nothing for it. The position in the queue of a pool
or a deployment counts the runs of other keys that round robin (`shared/sql/claim.sql`) starts earlier. It is too
high if some of these runs wait for earlier runs of their threads, and it is counted up to MOST_COUNTED. Runs of each
depth have a separate queue (`shared/runs/nesting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.infra.arrays import texts
from shared.infra.postgres import Row
from shared.models import SILENT_SECONDS, RunStatus
from shared.runs.read import RUN
from shared.sql import statement
from shared.user_code import filters
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


_CAPACITY_OF_RUN = statement("backlog.capacity_of_run")
_CAPACITY_OF_DEPLOYMENT = statement("backlog.capacity_of_deployment")
_CAPACITY_OF_KEYS = statement("backlog.capacity_of_keys")
_POSITION = statement("backlog.position")

_WAITING_OF_THREAD = statement("runs.waiting_of_thread")


def shown(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return runs of one thread as the API shows them. Pending runs have the field `queue`."""
    waits = _of_runs(conn, deployment_id, rows)
    return [
        {**RUN.show(row), **({"queue": waits[row["run_id"]]} if row["run_id"] in waits else {})}
        for row in rows
    ]


def _of_runs(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> dict[UUID, dict[str, Any]]:
    """Return position (1 is next), waiting time and reason of the pending runs among a thread's runs, by run id.

    The position of a run behind other live runs of its thread is that in the thread's queue.
    """
    if not any(row["status"] == RunStatus.PENDING for row in rows):
        return {}
    live = _WAITING_OF_THREAD.rows(conn, deployment_id=deployment_id, thread_id=rows[0]["thread_id"])
    run_ids = {row["run_id"] for row in rows}
    entries: dict[UUID, dict[str, Any]] = {}
    for ahead, run in enumerate(live):
        if run["run_id"] in run_ids and run["status"] == RunStatus.PENDING:
            position, reason = (
                (ahead, EARLIER) if ahead else _first_of_thread(conn, deployment_id, run["run_id"])
            )
            waiting = round(float(run["waiting_seconds"]), 3)
            entries[run["run_id"]] = {"position": position, "waiting_seconds": waiting, "reason": reason}
    return entries


def of_many(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> dict[UUID, dict[str, Any]]:
    """Return position, waiting time and reason of pending runs of any threads, by run id.

    Covers the first MOST_AT_ONCE pending runs, because each costs a query on its queue.
    """
    of_threads: dict[UUID, list[Row]] = {}
    waiting = [row for row in rows if row["status"] == RunStatus.PENDING]
    for row in waiting[:MOST_AT_ONCE]:
        of_threads.setdefault(row["thread_id"], []).append(row)
    return {
        run_id: entry
        for of_thread in of_threads.values()
        for run_id, entry in _of_runs(conn, deployment_id, of_thread).items()
    }


def _first_of_thread(conn: Connection, deployment_id: UUID, run_id: UUID) -> tuple[int | None, str]:
    """Return the queue position and the reason of a run that has no earlier live run on its thread."""
    row = _CAPACITY_OF_RUN.row(conn, run_id=run_id, silent_seconds=SILENT_SECONDS)
    if row is None:
        return None, NOT_PICKED_UP  # the run was deleted meanwhile
    if row["due_at"] is not None:
        return None, f"not due before {row['due_at'].isoformat().replace('+00:00', 'Z')}"
    reason = _capacity(row).reason
    counted = _POSITION.row(
        conn,
        run_id=run_id,
        pool=row["pool"],
        key_of_run=row["key_id"],
        depth=row["depth"],
        most=MOST_COUNTED,
        deployment_id=deployment_id if reason == DEPLOYMENT_LIMIT else None,
        key_id=row["key_id"] if reason == KEY_LIMIT else None,
    )
    position = None if counted is None else counted["position"]
    return position or 1, reason


def _capacity(row: Row, **more: Any) -> Capacity:
    return Capacity(**{name: row[name] for name in Capacity.__dataclass_fields__ if name in row}, **more)


def of_deployment(
    conn: Connection,
    deployment: DeploymentRef,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] = filters.NO_METADATA,
) -> dict[str, Any]:
    """Return a deployment's pending runs by reason, longest wait first, with its running runs and its pool.

    Runs on threads that the filter hides or that lack `metadata` count only in the figures of the pool.
    """
    capacity = _capacity_at(conn, deployment.id, 0)
    visible, values = filters.of_visible_threads(filter, "r", metadata)
    values |= {"deployment_id": deployment.id}
    groups = statement("runs.waiting", visible=visible).rows(conn, **values)
    running = capacity["running_in_all"]
    if filter or metadata:
        running = statement("runs.count_running", visible=visible).rows(conn, **values)[0]["n"]
    waiting: dict[str, dict[str, Any]] = {}
    for group, reason in _with_reasons(conn, deployment.id, groups):
        entry = waiting.setdefault(reason, {"reason": reason, "runs": 0, "oldest_wait_seconds": 0.0})
        entry["runs"] += group["runs"]
        entry["oldest_wait_seconds"] = max(entry["oldest_wait_seconds"], round(float(group["seconds"]), 3))
    reasons = sorted(waiting.values(), key=lambda entry: (-entry["oldest_wait_seconds"], entry["reason"]))
    return {
        "pending": sum(entry["runs"] for entry in reasons),
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


def _capacity_at(conn: Connection, deployment_id: UUID, depth: int) -> Row:
    """Return the limits that apply to a deployment's runs of this depth."""
    (row,) = _CAPACITY_OF_DEPLOYMENT.rows(
        conn, deployment_id=deployment_id, depth=depth, silent_seconds=SILENT_SECONDS
    )
    return row


def _with_reasons(conn: Connection, deployment_id: UUID, groups: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Yield each group of pending runs with its reason. Executes two statements for each depth with pending runs."""
    for depth in sorted({group["depth"] for group in groups}):
        capacity = _capacity_at(conn, deployment_id, depth)
        at_depth = [group for group in groups if group["depth"] == depth]
        keys = _CAPACITY_OF_KEYS.rows(
            conn, key_ids=texts(list({group["key_id"] for group in at_depth})), depth=depth
        )
        of_key = {
            key["id"]: {"key_limit": key["key_limit"], "key_running": key["key_running"]} for key in keys
        }
        for group in at_depth:
            reason = {"thread": EARLIER, "early": NOT_DUE}.get(group["why"])
            yield group, reason or _capacity(capacity, **of_key.get(group["key_id"], {})).reason
