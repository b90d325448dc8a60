"""How deep a run is nested, nested runs that wait, and the function that claims runs with it."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

from shared.migrations import online

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column(
        "run", sa.Column("depth", sa.BigInteger(), server_default="0", nullable=False), if_not_exists=True
    )
    online.create_index(
        "ix_run_nested",
        "run",
        ["pool", "depth", "run_id"],
        postgresql_where=sa.text("status = 'pending' AND depth > 0"),
    )
    for path in sorted(Path(__file__).parent.glob(f"{revision}_*.sql")):
        op.get_bind().exec_driver_sql(path.read_text())
