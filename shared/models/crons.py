"""Crons."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, ForeignKeyConstraint, Index, LargeBinary, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key, of_thread

# A schedule that creates runs. See shared/crons.py.
CRON = Table(
    "cron",
    METADATA,
    column("cron_id", Uuid, primary_key=True),
    deployment_key(),
    column("assistant_id", Uuid),
    column("thread_id", Uuid, nullable=True),
    column("user_id", Text),
    # the user of its runs, if the deployment has its own authorization; encrypted
    column("auth_user", LargeBinary, nullable=True),
    column("schedule", Text),
    column("timezone", Text, nullable=True),
    column("end_time", TIME, nullable=True),
    column("next_run_date", TIME),
    column("payload", JSON),
    column("metadata", JSONB, server_default=EMPTY),
    column("on_run_completed", Text, nullable=True),
    column("enabled", Boolean),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    of_thread(),
    ForeignKeyConstraint(
        ["deployment_id", "assistant_id"],
        ["assistant.deployment_id", "assistant.assistant_id"],
        ondelete="CASCADE",
    ),
    Index("ix_cron_deployment_id", "deployment_id", "created_at"),
    Index("ix_cron_due", "next_run_date", postgresql_where=text("enabled")),
)
