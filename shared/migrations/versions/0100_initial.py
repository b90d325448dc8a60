"""Create the tables of the first release.

Numbers begin at 0100. Versions 0001 to 0023 belonged to development databases, which this release refuses.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None


def upgrade() -> None:
    tables = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(tables)
