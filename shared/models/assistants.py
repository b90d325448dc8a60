"""Assistants and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ForeignKeyConstraint, Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base, deployment_key


class Assistant(Base):
    """A named configuration of a graph; its content is in its versions."""

    __tablename__ = "assistant"
    deployment_id: Mapped[UUID] = deployment_key(primary=True)
    assistant_id: Mapped[UUID] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(server_default="1")  # the active one
    last_version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class AssistantVersion(Base):
    __tablename__ = "assistant_version"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    assistant_id: Mapped[UUID] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    graph_id: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    context: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    name: Mapped[str]
    description: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            ondelete="CASCADE",
        ),
        Index("ix_assistant_version_metadata", "metadata", postgresql_using="gin"),
    )
