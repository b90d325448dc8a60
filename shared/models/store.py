"""Store items."""

from __future__ import annotations

from sqlalchemy import Double, Index, Table, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import METADATA, TIME, column, deployment_key

# A value under a namespace and a key. `path` is the namespace, with a dot after each label. See shared/store.py.
STORE_ITEM = Table(
    "store_item",
    METADATA,
    deployment_key(primary=True),
    column("path", Text(collation="C"), primary_key=True),
    column("key", Text, primary_key=True),
    column("value", JSONB),
    column("ttl_minutes", Double, nullable=True),
    column("expires_at", TIME, nullable=True),
    column("created_at", TIME, server_default=func.clock_timestamp()),
    column("updated_at", TIME, server_default=func.clock_timestamp()),
    Index("ix_store_item_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
