"""The time of the service's last backup."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Table

from shared.models.base import METADATA, NOW, TIME, column

# A single row, for the metric of the backup's age. Written when a backup file is complete, and not by a restore.
LAST_BACKUP = Table(
    "last_backup",
    METADATA,
    column("is_last", Boolean, primary_key=True),  # always true
    column("made_at", TIME, server_default=NOW),
    column("bytes", BigInteger),
)
