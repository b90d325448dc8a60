"""The outbox of webhooks."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Index, Table, Text, Uuid, text

from shared.models.base import METADATA, NOW, TIME, column, deployment_key

# A delivery of a run's end to `url`. See shared/runs/webhooks.py.
WEBHOOK_DELIVERY = Table(
    "webhook_delivery",
    METADATA,
    column("delivery_id", Uuid, primary_key=True),
    deployment_key(),
    column("run_id", Uuid),
    column("url", Text),
    column("status", Text),  # the run's status, or `rollback`
    column("run", JSON),  # a copy of the run's row at its end, because the row may be deleted
    column("values", JSON(none_as_null=True), nullable=True),
    column("error", JSON(none_as_null=True), nullable=True),
    column("attempt", BigInteger, server_default="0"),
    column("due_at", TIME, server_default=NOW),  # during an attempt: the end of its lease
    column("owner", Text, nullable=True),
    column("failure", Text, nullable=True),  # error of the last attempt; NULL: it succeeded
    column("response_status", BigInteger, nullable=True),  # HTTP status of the receiver's last response
    column("created_at", TIME, server_default=NOW),
    column("ended_at", TIME, nullable=True),  # delivered, or out of attempts
    Index("ix_webhook_delivery_due", "deployment_id", "due_at", postgresql_where=text("ended_at IS NULL")),
    Index("ix_webhook_delivery_busy", "deployment_id", postgresql_where=text("owner IS NOT NULL")),
    Index("ix_webhook_delivery_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index("ix_webhook_delivery_created_at", "deployment_id", "created_at", "delivery_id"),
)
