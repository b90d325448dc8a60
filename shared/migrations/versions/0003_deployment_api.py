"""What the deployment API keeps beside runs and their threads: one function a resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Each resource's tables and columns."""
    _expiring_threads()


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
