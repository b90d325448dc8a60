"""Records of webhook deliveries: search, repeated delivery, and removal of old ones.

`shared/runs/webhooks.py` has the outbox itself. A repeated delivery keeps its id, so that the receiver recognizes it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import NotFound
from shared.infra import egress
from shared.infra.postgres import Row
from shared.records import (
    COUNT,
    COUNT_OR_NULL,
    ID,
    ID_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    one_of,
)
from shared.runs.webhooks import BudgetEvent, QuestionEvent
from shared.sql import pages, statement
from shared.user_code import filters
from shared.user_code.filters import Filter

KEPT_DAYS = 7
KEPT_OF_DEPLOYMENT = 1_000
REMOVED_AT_ONCE = 1_000

_REMOVE_OLD = statement("outbox.remove_old")


class DeliveryStatus(enum.StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


RUN_ENDED = "run.ended"
THREAD_ID = "thread_of_delivery(w.run)"
RECORD = Record(
    "WebhookDelivery",
    {
        "delivery_id": RecordField(ID),
        "run_id": RecordField(ID_OR_NULL),
        "thread_id": RecordField(ID_OR_NULL),
        "type": RecordField(one_of(RUN_ENDED, *QuestionEvent, *BudgetEvent)),
        "url": RecordField(TEXT, value=lambda row: egress.shown_url(row["url"])),
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
        "type": f"CASE WHEN w.status LIKE ANY('{{question.%,budget.%}}') THEN w.status ELSE '{RUN_ENDED}' END",
        "status": "delivery_status(w.ended_at, w.failure)",
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
) -> tuple[Sequence[Row], int]:
    """Return a page of a deployment's deliveries, newest first, and the number of matches as `pages` counts them.

    Excludes deliveries of threads that the filter hides or that lack `metadata`.
    """
    visible, values = _visible(filter, metadata)
    values |= {
        "deployment_id": deployment_id,
        "run_id": run_id,
        "status": None if status is None else str(status),
    }
    found = statement("outbox.search", columns=RECORD.select, visible=visible)
    counted = statement("outbox.count", visible=visible)
    return pages.statement_page(conn, found, counted, values, limit=limit, offset=offset)


def _visible(filter: Filter | None, metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, for visible deliveries. For deleted threads, uses the run's copy of the metadata."""
    last_metadata = "coalesce(CAST(readable(w.run) -> 'kwargs' -> 'thread_metadata' AS jsonb), '{}')"
    return filters.of_visible_or_deleted_threads(
        filter, metadata, table="w", thread_id=THREAD_ID, last_metadata=last_metadata
    )


def thread_of(conn: Connection, deployment_id: UUID, delivery_id: UUID) -> UUID | None:
    """Return the thread id of a delivery's run, or None if it has none or does not exist."""
    query = text(
        "SELECT thread_of_delivery(run) FROM webhook_delivery WHERE delivery_id = :id AND deployment_id = :of"
    )
    return conn.execute(query, {"id": delivery_id, "of": deployment_id}).scalar()


def deliver_again(
    conn: Connection,
    deployment_id: UUID,
    delivery_id: UUID,
    *,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] = filters.NO_METADATA,
) -> None:
    """Schedule a delivery again, whatever its status. Raises NotFound."""
    visible, values = _visible(filter, metadata)
    again = statement("outbox.deliver_again", visible=visible)
    if not again.count(conn, **values, delivery_id=delivery_id, deployment_id=deployment_id):
        raise NotFound(f"Webhook delivery {delivery_id} not found.")


def remove_old(conn: Connection) -> int:
    """Delete a batch of ended deliveries that are old or exceed the number kept per deployment. Returns how many."""
    return _REMOVE_OLD.count(conn, days=KEPT_DAYS, most=KEPT_OF_DEPLOYMENT, limit=REMOVED_AT_ONCE)
