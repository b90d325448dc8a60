"""Deployments, their revisions and secrets, and what revisions are built from and leave behind."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Double, ForeignKey, Identity, Index, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base, deployment_key
from shared.models.statuses import DeploymentStatus, RevisionStatus


class Deployment(Base):
    __tablename__ = "deployment"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    name: Mapped[str]
    display_name: Mapped[str | None]
    source: Mapped[str]
    source_config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    status: Mapped[DeploymentStatus] = mapped_column(Text)
    pool: Mapped[str] = mapped_column(server_default="default")
    # what it may take; NULL: what the runners' settings say. See shared/deployments/limits.py
    max_concurrent_runs: Mapped[int | None]
    hosts_per_runner: Mapped[int | None]
    run_timeout_seconds: Mapped[float | None] = mapped_column(Double)
    memory_mb: Mapped[int | None]
    # what its runs may use: see shared/figures/budgets.py
    max_tokens_per_day: Mapped[int | None]
    max_run_tokens: Mapped[int | None]
    agent_id: Mapped[str | None]
    agent_environment: Mapped[str | None]
    latest_revision_id: Mapped[UUID | None]
    active_revision_id: Mapped[UUID | None]
    # shares of the revisions that new runs get; NULL: all get the active one. See shared/deployments/shares.py
    traffic: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    traffic_at: Mapped[datetime | None]  # when what takes traffic, or is shown as a preview, changed last
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "uq_deployment_organization_id_name",
            "organization_id",
            "name",
            unique=True,
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index(
            "uq_deployment_organization_id_agent",
            "organization_id",
            "agent_id",
            "agent_environment",
            unique=True,
            postgresql_where=text("deleted_at IS NULL AND agent_id IS NOT NULL"),
        ),
        Index("ix_deployment_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
    )


class Revision(Base):
    """One build of a deployment. `archive_digest` is set once its source has been uploaded."""

    __tablename__ = "revision"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = deployment_key()
    number: Mapped[int]  # 1, 2, 3 … within the deployment
    status: Mapped[RevisionStatus] = mapped_column(Text)
    status_message: Mapped[str | None]
    source: Mapped[str]
    source_revision_config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    archive_digest: Mapped[str | None]
    python_version: Mapped[str | None]
    requirements: Mapped[str | None]  # the resolved set, one `name==version` a line
    manifest: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # langgraph.json as it was read
    # its authorization and routes, as its build found them: see shared/deployments/user_code.py
    user_code: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    # whose key asked for it, and which variables it set or unset: see shared/deployments/revision_changes.py
    created_by: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    changes: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    preview: Mapped[str | None]  # the preview it was made for; NULL: it is to serve
    build_id: Mapped[UUID | None]  # the revision whose build it uses, when it is not its own
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    # who builds it: see shared/deployments/revisions.py
    attempt: Mapped[int] = mapped_column(server_default="0")
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    notified_at: Mapped[datetime | None]
    notifications: Mapped[int] = mapped_column(server_default="0")
    seq_reserved: Mapped[int] = mapped_column(server_default="0")

    __table_args__ = (
        Index("uq_revision_deployment_id_number", "deployment_id", "number", unique=True),
        Index("ix_revision_status", "status", "lease_until"),
    )


class Preview(Base):
    """A name under which a revision has an address of its own; without one until its first is built."""

    __tablename__ = "preview"
    deployment_id: Mapped[UUID] = deployment_key(primary=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("revision.id", ondelete="CASCADE"), index=True
    )
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Secret(Base):
    """An environment variable of a revision; `value` is encrypted (shared/infra/encryption.py)."""

    __tablename__ = "secret"
    revision_id: Mapped[UUID] = mapped_column(ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]


class Upload(Base):
    """A place an archive may be put once, by whoever holds the token."""

    __tablename__ = "upload"
    object_path: Mapped[str] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = deployment_key()
    token_hash: Mapped[bytes]
    expires_at: Mapped[datetime]
    digest: Mapped[str | None]  # set when the archive has arrived whole
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Archive(Base):
    """An uploaded source archive by its SHA-256; the bytes are in `archive_chunk`."""

    __tablename__ = "archive"
    digest: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class ArchiveChunk(Base):
    __tablename__ = "archive_chunk"
    digest: Mapped[str] = mapped_column(ForeignKey("archive.digest", ondelete="CASCADE"), primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class Graph(Base):
    """What a revision's graph looks like, taken once when it was built."""

    __tablename__ = "graph"
    revision_id: Mapped[UUID] = mapped_column(ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True)
    graph_id: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str | None]
    drawings: Mapped[dict[str, Any]] = mapped_column(JSON)  # xray depth ("0", "1", … "all") → drawing
    schemas: Mapped[dict[str, Any]] = mapped_column(JSON)  # the six schemas of the contract
    subgraphs: Mapped[dict[str, Any]] = mapped_column(JSON)  # namespace → schemas, all depths


class LogLine(Base):
    """A line of a revision's build log or of its deployment's log."""

    __tablename__ = "log_line"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    deployment_id: Mapped[UUID] = deployment_key()
    revision_id: Mapped[UUID | None]
    run_id: Mapped[UUID | None]
    kind: Mapped[str]  # build or deploy
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    level: Mapped[str]
    message: Mapped[str]

    __table_args__ = (
        Index("ix_log_line_deployment_id_kind_at", "deployment_id", "kind", "at", "id"),
        Index("ix_log_line_revision_id_kind_at", "revision_id", "kind", "at", "id"),
        Index("ix_log_line_run_id", "run_id", "at", "id", postgresql_where=text("run_id IS NOT NULL")),
    )
