"""How strictly a run is kept apart from others, after hosts died under it: see workers/runner/quarantine.py."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """One column: whoever does not know it keeps runs as they were."""
    op.add_column("run", sa.Column("quarantine", sa.BigInteger(), server_default="0", nullable=False))
