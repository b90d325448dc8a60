"""When workers were last notified of a run or a revision, and how often: columns named so."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

CONTRACTS = "Made before the first release: no process of another one was beside it."


def upgrade() -> None:
    for table in ("run", "revision"):
        op.alter_column(table, "rung_at", new_column_name="notified_at")
        op.alter_column(table, "rings", new_column_name="notifications")
