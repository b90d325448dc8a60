"""Reading runs."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.errors import NotFound
from shared.infra.postgres import Driver, query
from shared.runs.record import RUN
from shared.threads import records


def count_pending(conn: Connection | Driver, deployment_id: UUID, *, most: int) -> int:
    """Return the number of a deployment's pending runs, counted up to `most`."""
    statement = (
        "SELECT count(*) AS n FROM (SELECT FROM run WHERE deployment_id = %(deployment_id)s"
        " AND status = 'pending' LIMIT %(most)s) AS waiting"
    )
    row = query(conn, statement, {"deployment_id": deployment_id, "most": most}).fetchone()
    return 0 if row is None else row["n"]


def get(conn: Connection, deployment_id: UUID, run_id: UUID, *, thread_id: UUID | None = None) -> RowMapping:
    """Return a run. Raises NotFound if it is missing or belongs to another thread."""
    row = (
        conn.execute(
            text(
                f"SELECT {RUN.select} FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id"
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
                f"SELECT {RUN.select} FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
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
