"""Crons."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ForeignKeyConstraint, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base, deployment_key, of_thread


class Cron(Base):
    """A schedule that creates runs: see shared/crons.py."""

    __tablename__ = "cron"
    cron_id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = deployment_key()
    assistant_id: Mapped[UUID]
    thread_id: Mapped[UUID | None]
    user_id: Mapped[str]
    auth_user: Mapped[bytes | None]  # whom its runs act for where the deployment has auth; encrypted
    schedule: Mapped[str]
    timezone: Mapped[str | None]
    end_time: Mapped[datetime | None]
    next_run_date: Mapped[datetime]
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    on_run_completed: Mapped[str | None]
    enabled: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        of_thread(),
        ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            ondelete="CASCADE",
        ),
        Index("ix_cron_deployment_id", "deployment_id", "created_at"),
        Index("ix_cron_due", "next_run_date", postgresql_where=text("enabled")),
    )
