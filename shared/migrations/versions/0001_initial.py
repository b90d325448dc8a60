"""The tables as they were first released."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "archive",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_archive")),
    )
    op.create_table(
        "organization",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organization")),
        sa.UniqueConstraint("name", name=op.f("uq_organization_name")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), server_default="admin", nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_api_key_organization_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )
    op.create_table(
        "archive_chunk",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["archive.digest"], name=op.f("fk_archive_chunk_digest"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "n", name=op.f("pk_archive_chunk")),
    )
    op.create_table(
        "deployment",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_config", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), server_default="default", nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("agent_environment", sa.Text(), nullable=True),
        sa.Column("latest_revision_id", sa.Uuid(), nullable=True),
        sa.Column("active_revision_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_deployment_organization_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment")),
    )
    op.create_index(
        "uq_deployment_organization_id_agent",
        "deployment",
        ["organization_id", "agent_id", "agent_environment"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL AND agent_id IS NOT NULL"),
    )
    op.create_index(
        "uq_deployment_organization_id_name",
        "deployment",
        ["organization_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "assistant",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("assistant_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("last_version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_assistant_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("deployment_id", "assistant_id", name=op.f("pk_assistant")),
    )
    op.create_table(
        "log_line",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("revision_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_log_line_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_line")),
    )
    op.create_index(
        "ix_log_line_deployment_id_kind_at", "log_line", ["deployment_id", "kind", "at", "id"], unique=False
    )
    op.create_index(
        "ix_log_line_revision_id_kind_at", "log_line", ["revision_id", "kind", "at", "id"], unique=False
    )
    op.create_table(
        "revision",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("status_message", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_revision_config", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("archive_digest", sa.Text(), nullable=True),
        sa.Column("python_version", sa.Text(), nullable=True),
        sa.Column("requirements", sa.Text(), nullable=True),
        sa.Column("manifest", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rung_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rings", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("seq_reserved", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_revision_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    op.create_index("ix_revision_status", "revision", ["status", "lease_until"], unique=False)
    op.create_index("uq_revision_deployment_id_number", "revision", ["deployment_id", "number"], unique=True)
    op.create_table(
        "thread",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), server_default="idle", nullable=False),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("config", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("values", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("state", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("interrupts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "state_updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_thread_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("deployment_id", "thread_id", name=op.f("pk_thread")),
    )
    op.create_index("ix_thread_created_at", "thread", ["deployment_id", "created_at"], unique=False)
    op.create_index(
        "ix_thread_metadata",
        "thread",
        ["metadata"],
        unique=False,
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    )
    op.create_index("ix_thread_status", "thread", ["deployment_id", "status", "updated_at"], unique=False)
    op.create_index("ix_thread_updated_at", "thread", ["deployment_id", "updated_at"], unique=False)
    op.create_table(
        "upload",
        sa.Column("object_path", sa.Text(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployment.id"], name=op.f("fk_upload_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("object_path", name=op.f("pk_upload")),
    )
    op.create_table(
        "assistant_version",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("assistant_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("graph_id", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("context", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            name=op.f("fk_assistant_version_deployment_id_assistant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "deployment_id", "assistant_id", "version", name=op.f("pk_assistant_version")
        ),
    )
    op.create_index(
        "ix_assistant_version_metadata",
        "assistant_version",
        ["metadata"],
        unique=False,
        postgresql_using="gin",
    )
    op.create_table(
        "checkpoint",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("parent_checkpoint_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("blobs", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_checkpoint_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "deployment_id", "thread_id", "checkpoint_ns", "checkpoint_id", name=op.f("pk_checkpoint")
        ),
    )
    op.create_table(
        "checkpoint_blob",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_checkpoint_blob_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "deployment_id",
            "thread_id",
            "checkpoint_ns",
            "channel",
            "version",
            name=op.f("pk_checkpoint_blob"),
        ),
    )
    op.create_table(
        "checkpoint_write",
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("task_path", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_checkpoint_write_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "deployment_id",
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            "task_id",
            "idx",
            name=op.f("pk_checkpoint_write"),
        ),
    )
    op.create_table(
        "graph",
        sa.Column("revision_id", sa.Uuid(), nullable=False),
        sa.Column("graph_id", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("drawings", sa.JSON(), nullable=False),
        sa.Column("schemas", sa.JSON(), nullable=False),
        sa.Column("subgraphs", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["revision_id"], ["revision.id"], name=op.f("fk_graph_revision_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("revision_id", "graph_id", name=op.f("pk_graph")),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("assistant_id", sa.Uuid(), nullable=False),
        sa.Column("revision_id", sa.Uuid(), nullable=False),
        sa.Column("graph_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("input", sa.JSON(), nullable=True),
        sa.Column("kwargs", sa.JSON(), nullable=False),
        sa.Column("multitask_strategy", sa.Text(), server_default="enqueue", nullable=False),
        sa.Column("temporary", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rung_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rings", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("seq_reserved", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cancel_requested", sa.Text(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("deaths", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_death", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            name=op.f("fk_run_deployment_id_thread_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run")),
    )
    op.create_index(
        "ix_run_live",
        "run",
        ["deployment_id", "thread_id", "created_seq"],
        unique=False,
        postgresql_where=sa.text("status IN ('pending', 'running')"),
    )
    op.create_index(
        "ix_run_pending",
        "run",
        ["pool", "not_before"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_run_running", "run", ["lease_until"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.create_index("ix_run_thread", "run", ["deployment_id", "thread_id", "created_seq"], unique=False)
    op.create_index(
        "uq_run_idempotency_key",
        "run",
        ["deployment_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "uq_run_thread_running",
        "run",
        ["deployment_id", "thread_id"],
        unique=True,
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "secret",
        sa.Column("revision_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["revision_id"], ["revision.id"], name=op.f("fk_secret_revision_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("revision_id", "name", name=op.f("pk_secret")),
    )
