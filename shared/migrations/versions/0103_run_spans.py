"""Add the times of a run's nodes, model calls and tool calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0101"


def upgrade() -> None:
    op.add_column("run", sa.Column("spans", sa.JSON(none_as_null=True), nullable=True), if_not_exists=True)
