"""How builds ended, and how long they took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "build_figure",
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("durations", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("status", name=op.f("pk_build_figure")),
    )
