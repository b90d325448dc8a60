"""When the service was last backed up."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Table

from shared.models.base import METADATA, NOW, TIME, column

# One row, for the figure of its age: written when a file is whole, not by a restore.
LAST_BACKUP = Table(
    "last_backup",
    METADATA,
    column("is_last", Boolean, primary_key=True),  # always true
    column("made_at", TIME, server_default=NOW),
    column("bytes", BigInteger),
)
