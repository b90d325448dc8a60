"""Who leads upkeep is a row with a lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """The table alone: a process of an earlier version does not know of it."""
    op.create_table(
        "leader",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_leader")),
    )
