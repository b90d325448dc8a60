"""Reading runs, and their records in the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.errors import NotFound
from shared.figures import prices
from shared.infra.postgres import Driver, Row, query
from shared.threads import records

COLUMNS = (
    "run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, input, kwargs,"
    " multitask_strategy, cancel_reason, revision_id, usage, error, started_at, ended_at, attempt, attempts, owner, temporary,"
    " seq_reserved"
)

# Whether a later run exists on the thread of the run with the alias `r`. Ignores runs cancelled before they started.
IS_FOLLOWED = """
EXISTS (SELECT FROM run o WHERE o.deployment_id = r.deployment_id AND o.thread_id = r.thread_id
        AND o.created_seq > r.created_seq AND NOT (o.status = 'interrupted' AND o.attempt = 0))"""

# A run that ends at an interrupt, or at a breakpoint of a node, has the status success. While the thread stays there,
# `waits_for` is `answer` if the thread has an open interrupt, else `resume`. An update of the thread's state changes
# `state_updated_at`.
ANSWER, RESUME = "answer", "resume"
WAITS_FOR = f"""
CASE WHEN run.status = 'success' THEN (
    SELECT CASE WHEN EXISTS (SELECT FROM json_each(readable(t.interrupts)) i WHERE json_array_length(i.value) > 0)
                THEN '{ANSWER}' ELSE '{RESUME}' END
    FROM run r JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    WHERE r.run_id = run.run_id AND t.rest_status = 'interrupted' AND t.state_updated_at = r.ended_at
      AND NOT {IS_FOLLOWED}) END AS waits_for"""
SHOWN_COLUMNS = f"{COLUMNS}, {WAITS_FOR}"

# An internal stream mode: the run also writes the protocol's events into its log. The API neither accepts nor shows it.
PROTOCOL = "protocol"
# Kwargs that the API does not show: stream modes added by readers, and the thread's metadata of a temporary run.
THREAD_METADATA = "thread_metadata"
HIDDEN = ("joined", THREAD_METADATA)

LATER = ("usage", "started_at", "ended_at")  # missing in the row of a run that was just created


def count_pending(conn: Connection | Driver, deployment_id: UUID, *, most: int) -> int:
    """Return the number of a deployment's pending runs, counted up to `most`."""
    statement = (
        "SELECT count(*) AS n FROM (SELECT FROM run WHERE deployment_id = %(deployment_id)s"
        " AND status = 'pending' LIMIT %(most)s) AS waiting"
    )
    row = query(conn, statement, {"deployment_id": deployment_id, "most": most}).fetchone()
    return 0 if row is None else row["n"]


def record(row: Row) -> dict[str, Any]:
    """Return a run as the API shows it."""
    return {
        "run_id": row["run_id"],
        "thread_id": row["thread_id"],
        "assistant_id": row["assistant_id"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["status"],
        "metadata": row["metadata"],
        "kwargs": {
            "input": row["input"],
            **{name: value for name, value in row["kwargs"].items() if name not in HIDDEN},
            "stream_mode": [mode for mode in row["kwargs"]["stream_mode"] if mode != PROTOCOL],
        },
        "multitask_strategy": row["multitask_strategy"],
        "langsmith_session_name": (row["kwargs"].get("langsmith_tracer") or {}).get("project_name"),
        "cancel_reason": row["cancel_reason"],
        "revision_id": row["revision_id"],
        **{name: row.get(name) for name in LATER},
        "attempts": row.get("attempts") or [],
        "cost": prices.cost(row.get("usage")),
        **({"waits_for": row["waits_for"]} if row.get("waits_for") else {}),
    }


def get(conn: Connection, deployment_id: UUID, run_id: UUID, *, thread_id: UUID | None = None) -> RowMapping:
    """Return a run. Raises NotFound if it is missing or belongs to another thread."""
    row = (
        conn.execute(
            text(
                f"SELECT {SHOWN_COLUMNS} FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id"
                " AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)"
            ),
            {"run_id": run_id, "deployment_id": deployment_id, "thread_id": thread_id},
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFound("Not Found")
    return row


def list_of_thread(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    *,
    limit: int,
    offset: int,
    status: str | None = None,
) -> list[RowMapping]:
    """Return a thread's runs, newest first. Raises NotFound if the thread does not exist."""
    rows = (
        conn.execute(
            text(
                f"SELECT {SHOWN_COLUMNS} FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
                " AND (CAST(:status AS text) IS NULL OR status = :status)"
                " ORDER BY created_seq DESC LIMIT :limit OFFSET :offset"
            ),
            {
                "deployment_id": deployment_id,
                "thread_id": thread_id,
                "status": status,
                "limit": limit,
                "offset": offset,
            },
        )
        .mappings()
        .all()
    )
    if not rows:
        records.require(conn, deployment_id, thread_id)
    return list(rows)
