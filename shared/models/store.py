"""Store items."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Double, Index, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base, deployment_key


class StoreItem(Base):
    """A value under a namespace (`path`: each label followed by a dot) and a key: see shared/store.py."""

    __tablename__ = "store_item"
    deployment_id: Mapped[UUID] = deployment_key(primary=True)
    path: Mapped[str] = mapped_column(Text(collation="C"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[dict[str, Any]] = mapped_column(JSONB)
    ttl_minutes: Mapped[float | None] = mapped_column(Double)
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())

    __table_args__ = (
        Index("ix_store_item_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    )
