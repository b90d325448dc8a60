"""Add the inbox, the times of nodes and calls, the audit log, people who sign in, replays and generative UI."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    tables = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(tables)
