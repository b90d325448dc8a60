"""A row for each run that has ended, and the sums they are folded into: by step of time, and of tokens by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"

TIME = sa.DateTime(timezone=True)
COUNTS = (
    "created",
    "success",
    "error",
    "timeout",
    "interrupted",
    "attempts",
    "input_tokens",
    "output_tokens",
)


def upgrade() -> None:
    op.create_table(
        "ended_run",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("wait_seconds", sa.Double()),
        sa.Column("duration_seconds", sa.Double()),
        sa.Column("first_token_seconds", sa.Double()),
        sa.Column("usage", JSONB()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ended_run")),
    )
    op.create_table(
        "figure",
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("step_seconds", sa.Integer(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        *(_count(name) for name in COUNTS),
        *(
            sa.Column(f"{name}_seconds", sa.Double(), server_default="0", nullable=False)
            for name in ("wait", "duration", "first_token")
        ),
        *(
            sa.Column(name, JSONB(), server_default=sa.text("'{}'"), nullable=False)
            for name in ("waits", "durations", "first_tokens")
        ),
        _of_organization("figure"),
        sa.PrimaryKeyConstraint(
            "organization_id", "step_seconds", "at", "deployment_id", "key_id", name=op.f("pk_figure")
        ),
    )
    op.create_index("ix_figure_step_seconds_at", "figure", ["step_seconds", "at"])
    op.create_table(
        "daily_usage",
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *(_count(name) for name in ("runs", "input_tokens", "output_tokens", "total_tokens")),
        _of_organization("daily_usage"),
        sa.PrimaryKeyConstraint(
            "organization_id", "day", "deployment_id", "key_id", "model", name=op.f("pk_daily_usage")
        ),
    )
    op.create_index("ix_daily_usage_day", "daily_usage", ["day"])


def _count(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)


def _of_organization(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["organization_id"],
        ["organization.id"],
        name=op.f(f"fk_{table}_organization_id"),
        ondelete="CASCADE",
    )
