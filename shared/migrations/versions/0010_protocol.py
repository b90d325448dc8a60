"""Until when somebody watches a thread as the protocol shows it, and which run's end was given to one who waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("thread", sa.Column("protocol_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "thread", sa.Column("protocol_end_given", sa.BigInteger(), server_default="0", nullable=False)
    )
