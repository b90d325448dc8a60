"""Organizations, their API keys, and stored responses of requests with an idempotency key."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Table, Text, Uuid, text

from shared.models.base import METADATA, NOW, TIME, column

ORGANIZATION = Table(
    "organization",
    METADATA,
    column("id", Uuid, primary_key=True),
    column("name", Text),
    column("created_at", TIME, server_default=NOW),
    column("deleted_at", TIME, nullable=True),
    Index("uq_organization_name", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
)


# `id` is the public part of the key. Only the SHA-256 of the secret part is stored.
API_KEY = Table(
    "api_key",
    METADATA,
    column("id", String(8), primary_key=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    column("name", Text),
    column("role", Text, server_default="admin"),
    column("secret_hash", LargeBinary),
    column("created_at", TIME, server_default=NOW),
    column("expires_at", TIME, nullable=True),
    column("revoked_at", TIME, nullable=True),
    column("last_used_at", TIME, nullable=True),
    # limits of the runs that it creates: see shared/runs/limits.py and shared/figures/budgets.py
    column("max_concurrent_runs", BigInteger, nullable=True),
    column("max_tokens_per_day", BigInteger, nullable=True),
    column("max_run_tokens", BigInteger, nullable=True),
    Index("ix_api_key_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
)


# The response to a request with an Idempotency-Key (shared/access/idempotency.py). `answer` is encrypted.
IDEMPOTENT_ANSWER = Table(
    "idempotent_answer",
    METADATA,
    column("id", LargeBinary, primary_key=True),  # SHA-256 of the idempotency key and its owner
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    column("digest", LargeBinary),  # SHA-256 of the request
    column("answer", LargeBinary),
    column("created_at", TIME, server_default=NOW),
    Index("ix_idempotent_answer_created_at", "created_at"),
)
