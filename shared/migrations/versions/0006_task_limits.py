"""Whether the kernel bounds the processes and the memory of user code is told by each worker."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Workers that run while this is applied have told nothing."""
    for name in ("bounds_tasks", "bounds_memory"):
        op.add_column("worker", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
