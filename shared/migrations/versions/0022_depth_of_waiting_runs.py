"""Indexes of waiting runs by depth: claims at one depth read nothing that waits at another."""

from __future__ import annotations

import sqlalchemy as sa

from shared.migrations import online

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    online.create_index(
        "ix_run_waiting",
        "run",
        ["pool", "deployment_id", "key_id", "depth", "run_id"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    online.create_index(
        "ix_run_waiting_nested",
        "run",
        ["pool", "depth", "deployment_id", "key_id", "run_id"],
        postgresql_where=sa.text("status = 'pending' AND depth > 0"),
    )
    for name in ("ix_run_pending", "ix_run_nested"):
        online.drop_index(name, "run")
