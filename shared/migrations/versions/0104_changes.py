"""Add the changes of an organization."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0104"
down_revision = "0101"


def upgrade() -> None:
    op.create_table(
        "change",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("changed_by", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("detail", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change")),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_change_organization_id"),
            ondelete="CASCADE",
        ),
        if_not_exists=True,
    )
    op.create_index("ix_change_organization_id_id", "change", ["organization_id", "id"], if_not_exists=True)
