"""Runs that wait for a further attempt are found without reading all runs there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index(
        "ix_run_again",
        "run",
        ["not_before"],
        postgresql_where=sa.text("status = 'pending' AND attempt > 0"),
    )
