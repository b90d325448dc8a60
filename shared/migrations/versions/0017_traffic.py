"""Previews, and traffic in parts: columns and a table that a process of the release before does not read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("deployment", sa.Column("traffic", JSONB()))
    op.add_column("deployment", sa.Column("traffic_at", sa.DateTime(timezone=True)))
    op.add_column("revision", sa.Column("preview", sa.Text()))
    op.create_table(
        "preview",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision_id", sa.Uuid()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployment.id"],
            name=op.f("fk_preview_deployment_id_deployment"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["revision_id"],
            ["revision.id"],
            name=op.f("fk_preview_revision_id_revision"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("deployment_id", "name", name=op.f("pk_preview")),
    )
    op.create_index("ix_preview_revision_id", "preview", ["revision_id"])
