"""What the control plane keeps beside deployments: one function a resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Each resource's tables and columns, in the order they lean on each other."""
    _organizations()


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
