"""An assistant's A2A tasks are listed without reading all runs there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_index(
        "ix_run_a2a",
        "run",
        ["deployment_id", "assistant_id", "run_id"],
        postgresql_where=sa.text("metadata ? 'a2a'"),
    )
