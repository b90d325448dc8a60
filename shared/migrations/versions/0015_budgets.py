"""What the runs of a deployment or key may use: within a day, and each of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    for table in ("deployment", "api_key"):
        op.add_column(table, sa.Column("max_tokens_per_day", sa.BigInteger()))
        op.add_column(table, sa.Column("max_run_tokens", sa.BigInteger()))
    op.create_table(
        "spent_tokens",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", "day", name=op.f("pk_spent_tokens")),
    )
