"""What the control plane keeps beside deployments: one function a resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

CONTRACTS = "Made before the first release: no process of another one was beside it."


def upgrade() -> None:
    """Each resource's tables and columns, in the order they lean on each other."""
    _organizations()
    _revisions()
    _idempotency()
    _oauth()
    _pools()


def _organizations() -> None:
    """A deleted organization leaves its name to the next one."""
    op.add_column("organization", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint("uq_organization_name", "organization", type_="unique")
    op.create_index(
        "uq_organization_name",
        "organization",
        ["name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )


def _revisions() -> None:
    """A revision that repeats another one uses its build."""
    op.add_column("revision", sa.Column("build_id", sa.Uuid(), nullable=True))


def _idempotency() -> None:
    """Answers to requests that came with an Idempotency-Key."""
    op.create_table(
        "idempotent_answer",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_idempotent_answer_organization_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idempotent_answer")),
    )
    op.create_index("ix_idempotent_answer_created_at", "idempotent_answer", ["created_at"])


def _oauth() -> None:
    """Providers of consent, what was consented to, and what is being asked for."""
    op.create_table(
        "oauth_provider",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("client_secret", sa.LargeBinary(), nullable=True),
        sa.Column("auth_url", sa.Text(), nullable=False),
        sa.Column("token_url", sa.Text(), nullable=False),
        sa.Column("uses_pkce", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("code_challenge_method", sa.Text(), nullable=True),
        sa.Column("provider_type", sa.Text(), nullable=True),
        sa.Column("token_endpoint_auth_method", sa.Text(), nullable=False),
        sa.Column("mcp_server_url", sa.Text(), nullable=True),
        sa.Column("is_dynamic_client", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("revocation_url", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_oauth_provider_organization_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_oauth_provider")),
    )
    op.create_index(
        "uq_oauth_provider_organization_id_provider_id",
        "oauth_provider",
        ["organization_id", "provider_id"],
        unique=True,
    )
    op.create_table(
        "oauth_grant",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("provider_key", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("requested", sa.JSON(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("access_token", sa.LargeBinary(), nullable=False),
        sa.Column("refresh_token", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refreshing_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("account_label", sa.Text(), nullable=True),
        sa.Column("is_default", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_oauth_grant_organization_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["provider_key"],
            ["oauth_provider.id"],
            name=op.f("fk_oauth_grant_provider_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_oauth_grant")),
    )
    op.create_index("ix_oauth_grant_provider_key_user_id", "oauth_grant", ["provider_key", "user_id"])
    op.create_index("ix_oauth_grant_organization_id", "oauth_grant", ["organization_id"])
    op.create_table(
        "oauth_request",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("provider_key", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("state_hash", sa.LargeBinary(), nullable=False),
        sa.Column("verifier", sa.LargeBinary(), nullable=True),
        sa.Column("redirect_uri", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("is_another", sa.Boolean(), nullable=False),
        sa.Column("grant_id", sa.Uuid(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organization.id"],
            name=op.f("fk_oauth_request_organization_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["provider_key"],
            ["oauth_provider.id"],
            name=op.f("fk_oauth_request_provider_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_oauth_request")),
        sa.UniqueConstraint("state_hash", name=op.f("uq_oauth_request_state_hash")),
    )
    op.create_index("ix_oauth_request_expires_at", "oauth_request", ["expires_at"])


def _pools() -> None:
    """Limits of deployments, and the processes that work for them."""
    op.add_column("deployment", sa.Column("max_concurrent_runs", sa.BigInteger(), nullable=True))
    op.add_column("deployment", sa.Column("hosts_per_runner", sa.BigInteger(), nullable=True))
    op.add_column("deployment", sa.Column("run_timeout_seconds", sa.Double(), nullable=True))
    op.add_column("deployment", sa.Column("memory_mb", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_deployment_limited",
        "deployment",
        ["id"],
        postgresql_where=sa.text("max_concurrent_runs IS NOT NULL"),
    )
    op.add_column("run", sa.Column("timeout_seconds", sa.Double(), nullable=True))
    op.drop_index("ix_run_pending", "run")
    op.create_index(
        "ix_run_pending",
        "run",
        ["pool", "deployment_id", "run_id"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("host_name", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("isolation", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("ended_a_minute", sa.BigInteger(), nullable=False),
        sa.Column("heard_seconds", sa.Double(), nullable=False),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
