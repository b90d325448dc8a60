"""What a revision brings beside its graphs, and for whom a cron's runs are made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("revision", sa.Column("user_code", sa.JSON))
    op.add_column("cron", sa.Column("auth_user", sa.LargeBinary))
