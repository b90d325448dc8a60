"""Runs remember the attempts that were lost, and all of them are found, also those of one cron."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("run", sa.Column("attempts", JSONB))
    op.create_index(
        "ix_run_ended",
        "run",
        ["deployment_id", "run_id"],
        postgresql_where=sa.text("status IN ('success', 'error', 'timeout', 'interrupted')"),
    )
    op.create_index(
        "ix_run_cron",
        "run",
        ["deployment_id", sa.text("(metadata ->> 'cron_id')"), "run_id"],
        postgresql_where=sa.text("metadata ? 'cron_id'"),
    )
    op.create_index(
        "ix_log_line_run_id",
        "log_line",
        ["run_id", "at", "id"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.add_column("worker", sa.Column("drain_requested_at", sa.DateTime(timezone=True)))
    op.add_column("revision", sa.Column("created_by", sa.JSON))
    op.add_column("revision", sa.Column("changes", sa.JSON))
    op.add_column("webhook_delivery", sa.Column("response_status", sa.BigInteger))
    op.create_index(
        "ix_webhook_delivery_created_at", "webhook_delivery", ["deployment_id", "created_at", "delivery_id"]
    )
    op.drop_index("ix_webhook_delivery_deployment_id", "webhook_delivery")
