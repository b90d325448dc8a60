"""Who uses the service: organizations, their API keys, and what requests under a key were answered."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import NOW, Base


class Organization(Base):
    __tablename__ = "organization"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
        Index("uq_organization_name", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )


class ApiKey(Base):
    """`id` is the public part of the key; of the rest only a SHA-256 is kept."""

    __tablename__ = "api_key"
    id: Mapped[str] = mapped_column(String(8), primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    name: Mapped[str]
    role: Mapped[str] = mapped_column(server_default="admin")
    secret_hash: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    max_concurrent_runs: Mapped[int | None]  # of the runs it creates; see shared/runs/key_limits.py
    max_tokens_per_day: Mapped[int | None]  # of the same; see shared/figures/budgets.py
    max_run_tokens: Mapped[int | None]

    __table_args__ = (
        Index("ix_api_key_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
    )


class IdempotentAnswer(Base):
    """What a request under an Idempotency-Key was answered (shared/access/idempotency.py); `answer` is encrypted."""

    __tablename__ = "idempotent_answer"
    id: Mapped[bytes] = mapped_column(primary_key=True)  # SHA-256 of whose key it is, and the key
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    digest: Mapped[bytes]  # SHA-256 of the request
    answer: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("ix_idempotent_answer_created_at", "created_at"),)
