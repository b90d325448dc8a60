"""The outbox of webhooks."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Index, Table, Text, Uuid, text

from shared.models.base import METADATA, NOW, TIME, column, deployment_key

# A run's end, to be delivered to the address in `url`: see shared/runs/webhooks.py.
WEBHOOK_DELIVERY = Table(
    "webhook_delivery",
    METADATA,
    column("delivery_id", Uuid, primary_key=True),
    deployment_key(),
    column("run_id", Uuid),
    column("url", Text),
    column("status", Text),  # the run's, or the word rollback
    column("run", JSON),  # its row as it ended: it may be gone by now
    column("values", JSON(none_as_null=True), nullable=True),
    column("error", JSON(none_as_null=True), nullable=True),
    column("attempt", BigInteger, server_default="0"),
    column("due_at", TIME, server_default=NOW),  # of an attempt under way: its lease's end
    column("owner", Text, nullable=True),
    column("failure", Text, nullable=True),  # what became of the last attempt
    column("response_status", BigInteger, nullable=True),  # which the receiver gave to it
    column("created_at", TIME, server_default=NOW),
    column("ended_at", TIME, nullable=True),  # delivered or given up
    Index("ix_webhook_delivery_due", "deployment_id", "due_at", postgresql_where=text("ended_at IS NULL")),
    Index("ix_webhook_delivery_busy", "deployment_id", postgresql_where=text("owner IS NOT NULL")),
    Index("ix_webhook_delivery_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index("ix_webhook_delivery_created_at", "deployment_id", "created_at", "delivery_id"),
)
