"""What the deployment API keeps beside runs and their threads: one function a resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

CONTRACTS = "Made before the first release: no process of another one was beside it."


def upgrade() -> None:
    """Each resource's tables and columns."""
    _queueing()
    _expiring_threads()
    _store()
    _crons()
    _resting_threads()
    _webhooks()
    _answers_of_keys()


def _expiring_threads() -> None:
    op.add_column("thread", sa.Column("ttl_minutes", sa.Double(), nullable=True))
    op.add_column("thread", sa.Column("ttl_strategy", sa.Text(), nullable=True))
    op.add_column("thread", sa.Column("swept_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_thread_ttl",
        "thread",
        ["updated_at"],
        postgresql_where=sa.text("ttl_minutes IS NOT NULL"),
    )


def _resting_threads() -> None:
    op.add_column("thread", sa.Column("rest_status", sa.Text(), nullable=True))
    op.add_column("thread", sa.Column("rest_error", sa.JSON(), nullable=True))
    op.add_column("run", sa.Column("metadata_before", postgresql.JSONB(), nullable=True))


def _store() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "store_item",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(), nullable=False),
        sa.Column("ttl_minutes", sa.Double(), nullable=True),
        sa.Column("expires_at", moment, nullable=True),
        sa.Column("created_at", moment, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("updated_at", moment, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployment.id"],
            name=op.f("fk_store_item_deployment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("deployment_id", "path", "key", name=op.f("pk_store_item")),
    )
    op.create_index(
        "ix_store_item_expires_at",
        "store_item",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )


def _crons() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "cron",
        sa.Column("cron_id", sa.Uuid(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("assistant_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=True),
        sa.Column("end_time", moment, nullable=True),
        sa.Column("next_run_date", moment, nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("metadata", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("on_run_completed", sa.Text(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_cron_deployment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_cron_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            name=op.f("fk_cron_deployment_id_assistant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("cron_id", name=op.f("pk_cron")),
    )
    op.create_index("ix_cron_deployment_id", "cron", ["deployment_id", "created_at"])
    op.create_index("ix_cron_due", "cron", ["next_run_date"], postgresql_where=sa.text("enabled"))


def _webhooks() -> None:
    moment = sa.DateTime(timezone=True)
    op.add_column("run", sa.Column("webhook", sa.Text(), nullable=True))
    op.create_table(
        "webhook_delivery",
        sa.Column("delivery_id", sa.Uuid(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("run", sa.JSON(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("created_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployment.id"],
            name=op.f("fk_webhook_delivery_deployment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index(
        "ix_webhook_delivery_due",
        "webhook_delivery",
        ["deployment_id", "due_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "ix_webhook_delivery_busy",
        "webhook_delivery",
        ["deployment_id"],
        postgresql_where=sa.text("owner IS NOT NULL"),
    )
    op.create_index(
        "ix_webhook_delivery_ended_at",
        "webhook_delivery",
        ["ended_at"],
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_index("ix_webhook_delivery_deployment_id", "webhook_delivery", ["deployment_id"])


def _queueing() -> None:
    op.add_column("api_key", sa.Column("max_concurrent_runs", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_api_key_limited",
        "api_key",
        ["id"],
        postgresql_where=sa.text("max_concurrent_runs IS NOT NULL"),
    )
    op.add_column("run", sa.Column("key_id", sa.Text(), server_default="", nullable=False))
    op.drop_index("ix_run_pending", "run")
    op.create_index(
        "ix_run_pending",
        "run",
        ["pool", "deployment_id", "key_id", "run_id"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_run_failed",
        "run",
        ["deployment_id", "ended_at"],
        postgresql_where=sa.text("status IN ('error', 'timeout', 'interrupted')"),
    )


def _answers_of_keys() -> None:
    """What a repeated creation is answered is in `idempotent_answer`, whatever it created."""
    op.drop_index("uq_run_idempotency_key", "run")
    op.drop_column("run", "idempotency_key")
