"""When the service was last backed up."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import NOW, Base


class LastBackup(Base):
    """One row, for the figure of its age: written when a file is whole, not by a restore."""

    __tablename__ = "last_backup"
    is_last: Mapped[bool] = mapped_column(primary_key=True)  # always true
    made_at: Mapped[datetime] = mapped_column(server_default=NOW)
    bytes: Mapped[int]
