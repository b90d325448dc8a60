"""Functions for the hot paths: what a runner commits is one call. Their text stands beside it, as it was then."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    for path in sorted(Path(__file__).parent.glob(f"{revision}_*.sql")):
        op.get_bind().exec_driver_sql(path.read_text())
