"""Runs remember the attempts that were lost, and all of them are found, also those of one cron."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from shared.migrations import online

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    _add("run", "attempts", JSONB())
    _add("worker", "drain_requested_at", sa.DateTime(timezone=True))
    _add("revision", "created_by", sa.JSON())
    _add("revision", "changes", sa.JSON())
    _add("webhook_delivery", "response_status", sa.BigInteger())
    online.create_index(
        "ix_run_ended",
        "run",
        ["deployment_id", "run_id"],
        postgresql_where=sa.text("status IN ('success', 'error', 'timeout', 'interrupted')"),
    )
    online.create_index(
        "ix_run_cron",
        "run",
        ["deployment_id", sa.text("(metadata ->> 'cron_id')"), "run_id"],
        postgresql_where=sa.text("metadata ? 'cron_id'"),
    )
    online.create_index(
        "ix_log_line_run_id",
        "log_line",
        ["run_id", "at", "id"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    online.create_index(
        "ix_webhook_delivery_created_at", "webhook_delivery", ["deployment_id", "created_at", "delivery_id"]
    )
    online.drop_index("ix_webhook_delivery_deployment_id", "webhook_delivery")


def _add(table: str, name: str, kind: sa.types.TypeEngine) -> None:
    op.add_column(table, sa.Column(name, kind), if_not_exists=True)
