"""What the control plane keeps beside deployments: one function a resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Each resource's tables and columns, in the order they lean on each other."""
    _organizations()
    _revisions()
    _idempotency()


def _organizations() -> None:
    """A deleted organization leaves its name to the next one."""
    op.add_column("organization", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint("uq_organization_name", "organization", type_="unique")
    op.create_index(
        "uq_organization_name",
        "organization",
        ["name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )


def _revisions() -> None:
    """A revision that repeats another one uses its build."""
    op.add_column("revision", sa.Column("build_id", sa.Uuid(), nullable=True))


def _idempotency() -> None:
    """Answers to requests that came with an Idempotency-Key."""
    op.create_table(
        "idempotent_answer",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_idempotent_answer_organization_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idempotent_answer")),
    )
    op.create_index("ix_idempotent_answer_created_at", "idempotent_answer", ["created_at"])
