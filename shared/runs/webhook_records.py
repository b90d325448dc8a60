"""Records of webhook deliveries: search, repeated delivery, and removal of old ones.

`shared/runs/webhooks.py` has the outbox itself. A repeated delivery keeps its id, so that the receiver recognizes it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.errors import NotFound
from shared.records import (
    COUNT,
    COUNT_OR_NULL,
    ID,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    one_of,
)
from shared.user_code import filters
from shared.user_code.filters import Filter

KEPT_DAYS = 7
KEPT_OF_DEPLOYMENT = 1_000
REMOVED_AT_ONCE = 1_000
HIDDEN = "…"


class DeliveryStatus(enum.StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


_CONDITIONS = {
    DeliveryStatus.PENDING: "w.ended_at IS NULL",
    DeliveryStatus.DELIVERED: "w.ended_at IS NOT NULL AND w.failure IS NULL",
    DeliveryStatus.FAILED: "w.ended_at IS NOT NULL AND w.failure IS NOT NULL",
}
_STATUS = "CASE " + " ".join(f"WHEN {said} THEN '{status}'" for status, said in _CONDITIONS.items()) + " END"
_RUN = "readable(w.run)"
THREAD_ID = f"CAST({_RUN} ->> 'thread_id' AS uuid)"
RECORD = Record(
    "WebhookDelivery",
    {
        "delivery_id": RecordField(ID),
        "run_id": RecordField(ID),
        "thread_id": RecordField(ID),
        "url": RecordField(TEXT, value=lambda row: shown_url(row["url"])),
        "status": RecordField(one_of(*DeliveryStatus)),
        "attempts": RecordField(COUNT),
        "response_status": RecordField(COUNT_OR_NULL),
        "error": RecordField(TEXT_OR_NULL),
        "created_at": RecordField(TIME),
        "next_attempt_at": RecordField(TIME_OR_NULL),
        "delivered_at": RecordField(TIME_OR_NULL),
    },
    table="w",
    expressions={
        "thread_id": THREAD_ID,
        "status": _STATUS,
        "attempts": "w.attempt",
        "error": "w.failure",
        "next_attempt_at": "CASE WHEN w.ended_at IS NULL AND w.owner IS NULL THEN w.due_at END",
        "delivered_at": "CASE WHEN w.failure IS NULL THEN w.ended_at END",
    },
)


def search(
    conn: Connection,
    deployment_id: UUID,
    *,
    limit: int,
    offset: int,
    run_id: UUID | None = None,
    status: DeliveryStatus | None = None,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] = filters.NO_METADATA,
) -> tuple[list[RowMapping], int]:
    """Return a page of a deployment's deliveries, newest first, and the number of matches.

    Excludes deliveries of threads that the filter hides or that lack `metadata`.
    """
    visible, values = _visible(filter, metadata)
    conditions = ["w.deployment_id = :deployment_id", visible]
    values |= {"deployment_id": deployment_id, "limit": limit, "offset": offset}
    if run_id is not None:
        conditions.append("w.run_id = :run_id")
        values["run_id"] = run_id
    if status is not None:
        conditions.append(_CONDITIONS[status])
    matching = f"FROM webhook_delivery w WHERE {' AND '.join(conditions)}"
    page = f"SELECT {RECORD.select} {matching} ORDER BY w.created_at DESC, w.delivery_id DESC LIMIT :limit OFFSET :offset"
    rows = conn.execute(text(page), values).mappings().all()
    return list(rows), conn.execute(text(f"SELECT count(*) {matching}"), values).scalar_one()


def _visible(filter: Filter | None, metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, for visible deliveries. For deleted threads, uses the run's copy of the metadata."""
    last_metadata = f"coalesce(CAST({_RUN} -> 'kwargs' -> 'thread_metadata' AS jsonb), '{{}}')"
    return filters.of_visible_or_deleted_threads(
        filter, metadata, table="w", thread_id=THREAD_ID, last_metadata=last_metadata
    )


def shown_url(url: str) -> str:
    """Return the URL without its possibly secret parts: the user info and the values of the query."""
    parts = urlsplit(url)
    query = "&".join(f"{quote(name)}={HIDDEN}" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def thread_of(conn: Connection, deployment_id: UUID, delivery_id: UUID) -> UUID | None:
    """Return the thread id of a delivery's run, or None if the delivery does not exist."""
    statement = (
        f"SELECT {THREAD_ID} FROM webhook_delivery w WHERE w.delivery_id = :id AND w.deployment_id = :of"
    )
    return conn.execute(text(statement), {"id": delivery_id, "of": deployment_id}).scalar()


# A delivery with an attempt in progress is left alone. Any other starts over with its first attempt, at once.
_AGAIN = """
UPDATE webhook_delivery w SET attempt = 0, due_at = now(), owner = NULL, ended_at = NULL
WHERE w.delivery_id = :id AND w.deployment_id = :of AND (w.owner IS NULL OR w.due_at <= now()) AND {visible}
RETURNING w.delivery_id
"""


def make_again(
    conn: Connection,
    deployment_id: UUID,
    delivery_id: UUID,
    *,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] = filters.NO_METADATA,
) -> None:
    """Schedule a delivery again, whatever its status. Raises NotFound."""
    visible, values = _visible(filter, metadata)
    values |= {"id": delivery_id, "of": deployment_id}
    if conn.execute(text(_AGAIN.format(visible=visible)), values).first() is not None:
        return
    known = (
        f"SELECT 1 FROM webhook_delivery w WHERE w.delivery_id = :id AND w.deployment_id = :of AND {visible}"
    )
    if conn.execute(text(known), values).first() is None:
        raise NotFound(f"Webhook delivery {delivery_id} not found.")


# A loose index scan finds the deployments, and for each the oldest of its newest :most deliveries.
REMOVE = text("""
WITH RECURSIVE known AS (
    (SELECT deployment_id FROM webhook_delivery ORDER BY deployment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT deployment_id FROM webhook_delivery
            WHERE deployment_id > known.deployment_id ORDER BY deployment_id LIMIT 1)
    FROM known WHERE known.deployment_id IS NOT NULL
), full_ones AS (
    SELECT known.deployment_id, oldest.created_at FROM known CROSS JOIN LATERAL (
        SELECT created_at FROM webhook_delivery WHERE deployment_id = known.deployment_id
        ORDER BY created_at DESC, delivery_id DESC OFFSET :most - 1 LIMIT 1) AS oldest
), over AS (
    (SELECT delivery_id FROM webhook_delivery WHERE ended_at < now() - make_interval(days => :days)
     ORDER BY ended_at LIMIT :limit)
    UNION
    (SELECT w.delivery_id FROM full_ones f JOIN webhook_delivery w
        ON w.deployment_id = f.deployment_id AND w.created_at < f.created_at
     WHERE w.ended_at IS NOT NULL LIMIT :limit)
)
DELETE FROM webhook_delivery WHERE delivery_id IN (SELECT delivery_id FROM over) AND ended_at IS NOT NULL
""")


def remove_old(conn: Connection) -> int:
    """Delete a batch of ended deliveries that are old or exceed the number kept per deployment. Returns how many."""
    values = {"days": KEPT_DAYS, "most": KEPT_OF_DEPLOYMENT, "limit": REMOVED_AT_ONCE}
    return conn.execute(REMOVE, values).rowcount
