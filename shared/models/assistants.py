"""Assistants and their versions."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, ForeignKeyConstraint, Index, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key

# A named configuration of a graph. The configuration itself is in the versions.
ASSISTANT = Table(
    "assistant",
    METADATA,
    deployment_key(primary=True),
    column("assistant_id", Uuid, primary_key=True),
    column("version", BigInteger, server_default="1"),  # the active version
    column("last_version", BigInteger, server_default="1"),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
)


ASSISTANT_VERSION = Table(
    "assistant_version",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("assistant_id", Uuid, primary_key=True),
    column("version", BigInteger, primary_key=True),
    column("graph_id", Text),
    column("config", JSON, server_default=EMPTY),
    column("context", JSON, server_default=EMPTY),
    column("metadata", JSONB, server_default=EMPTY),
    column("name", Text),
    column("description", Text, nullable=True),
    column("created_at", TIME, server_default=NOW),
    ForeignKeyConstraint(
        ["deployment_id", "assistant_id"],
        ["assistant.deployment_id", "assistant.assistant_id"],
        ondelete="CASCADE",
    ),
    Index("ix_assistant_version_metadata", "metadata", postgresql_using="gin"),
)
