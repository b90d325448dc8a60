"""The outbox of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import NOW, Base, deployment_key


class WebhookDelivery(Base):
    """A run's end, to be delivered to the address in `url`: see shared/runs/webhooks.py."""

    __tablename__ = "webhook_delivery"
    delivery_id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = deployment_key()
    run_id: Mapped[UUID]
    url: Mapped[str]
    status: Mapped[str]  # the run's, or the word rollback
    run: Mapped[dict[str, Any]] = mapped_column(JSON)  # its row as it ended: it may be gone by now
    values: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    attempt: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[datetime] = mapped_column(server_default=NOW)  # of an attempt under way: its lease's end
    owner: Mapped[str | None]
    failure: Mapped[str | None]  # what became of the last attempt
    response_status: Mapped[int | None]  # which the receiver gave to it
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    ended_at: Mapped[datetime | None]  # delivered or given up

    __table_args__ = (
        Index(
            "ix_webhook_delivery_due", "deployment_id", "due_at", postgresql_where=text("ended_at IS NULL")
        ),
        Index("ix_webhook_delivery_busy", "deployment_id", postgresql_where=text("owner IS NOT NULL")),
        Index("ix_webhook_delivery_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_webhook_delivery_created_at", "deployment_id", "created_at", "delivery_id"),
    )
