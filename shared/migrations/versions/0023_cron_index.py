"""The index of a cron's runs holds the beginning of what their metadata names: callers may write any text there."""

from __future__ import annotations

import sqlalchemy as sa

from shared.migrations import online

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    online.create_index(
        "ix_run_cron",
        "run",
        ["deployment_id", sa.text("left(metadata ->> 'cron_id', 36)"), "run_id"],
        postgresql_where=sa.text("metadata ? 'cron_id'"),
    )
