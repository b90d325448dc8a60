"""Organizations: API keys, people who sign in, the audit log, stored responses of requests, OAuth providers and tokens."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column

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
    column("created_by", Text, nullable=True),  # name of the caller that created it
    column("expires_at", TIME, nullable=True),
    column("revoked_at", TIME, nullable=True),
    column("last_used_at", TIME, nullable=True),
    # limits of the runs that it creates: see shared/runs/limits.py and shared/figures/budgets.py
    column("max_concurrent_runs", BigInteger, nullable=True),
    column("max_tokens_per_day", BigInteger, nullable=True),
    column("max_run_tokens", BigInteger, nullable=True),
    column("max_cost_per_day", Numeric, nullable=True),
    column("max_run_cost", Numeric, nullable=True),
    column("budget_webhook", Text, nullable=True),
    Index("ix_api_key_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
)


# Something that a user of the organization did (shared/audit.py). There are no foreign keys, because the entry of a deletion
# outlives the deployment or the organization. `subject` is the name of the deployment or key at that time.
AUDIT_ENTRY = Table(
    "audit_entry",
    METADATA,
    column("id", BigInteger, Identity(), primary_key=True),
    column("organization_id", Uuid),
    column("at", TIME, server_default=NOW),
    column("action", Text),
    column("deployment_id", Uuid, nullable=True),
    column("subject", Text),
    column("actor", JSONB(none_as_null=True), nullable=True),  # id and name of the key
    column("address", Text, nullable=True),
    column("detail", JSONB, server_default=EMPTY),
    Index("ix_audit_entry_organization", "organization_id", "at", "id"),
    Index("ix_audit_entry_action", "organization_id", "action", "at", "id"),
    Index("ix_audit_entry_deployment", "organization_id", "deployment_id", "at", "id"),
    Index("ix_audit_entry_key", "organization_id", text("(actor ->> 'key_id')"), "at", "id"),
    Index("ix_audit_entry_at", "at"),
)


# A person who has signed in with OpenID Connect (shared/access/sessions.py). `id` is derived from issuer and subject.
ACCOUNT = Table(
    "account",
    METADATA,
    column("id", Text, primary_key=True),
    column("issuer", Text),
    column("subject", Text),
    column("name", Text),
    column("created_at", TIME, server_default=NOW),
    column("signed_in_at", TIME, server_default=NOW),
    Index("ix_account_signed_in_at", "signed_in_at"),
)


# A sign-in of a browser. Only the SHA-256 of its token is stored. `id_token` is encrypted.
SESSION = Table(
    "session",
    METADATA,
    column("id", LargeBinary, primary_key=True),
    column("account_id", Text, ForeignKey("account.id", ondelete="CASCADE")),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    column("role", Text),
    column("id_token", LargeBinary, nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("used_at", TIME, server_default=NOW),
    column("expires_at", TIME),
    Index("ix_session_account_id", "account_id"),
    Index("ix_session_organization_id", "organization_id"),
    Index("ix_session_expires_at", "expires_at"),
)


# A request of `runyard login` for a key, which a signed-in person confirms (shared/access/device_logins.py).
DEVICE_LOGIN = Table(
    "device_login",
    METADATA,
    column("id", LargeBinary, primary_key=True),  # SHA-256 of the device code
    column("user_code_hash", LargeBinary),  # SHA-256
    column("device", Text),  # name of the machine, as the command line reports it
    column("address", Text),  # network of the client
    column("created_at", TIME, server_default=NOW),
    column("expires_at", TIME),
    column("polled_at", TIME, nullable=True),
    column("interval_seconds", BigInteger),
    # the person who confirmed it
    column("account_id", Text, ForeignKey("account.id", ondelete="CASCADE"), nullable=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE"), nullable=True),
    column("role", Text, nullable=True),
    column("denied_at", TIME, nullable=True),
    Index("uq_device_login_user_code_hash", "user_code_hash", unique=True),
    Index("ix_device_login_expires_at", "expires_at"),
    Index("ix_device_login_address", "address"),
    Index("ix_device_login_account_id", "account_id"),
    Index("ix_device_login_organization_id", "organization_id"),
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


# A service at which users give consent, and the client registered there. `client_secret` is encrypted.
OAUTH_PROVIDER = Table(
    "oauth_provider",
    METADATA,
    column("id", Uuid, primary_key=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    column("provider_id", Text),  # unique within the organization, chosen by the caller
    column("name", Text),
    column("client_id", Text),
    column("client_secret", LargeBinary, nullable=True),
    column("auth_url", Text),
    column("token_url", Text),
    column("uses_pkce", Boolean, server_default="false"),
    column("code_challenge_method", Text, nullable=True),
    column("provider_type", Text, nullable=True),
    column("token_endpoint_auth_method", Text),
    column("mcp_server_url", Text, nullable=True),
    column("is_dynamic_client", Boolean, server_default="false"),
    column("issuer", Text, nullable=True),  # from discovery
    column("revocation_url", Text, nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    Index("uq_oauth_provider_organization_id_provider_id", "organization_id", "provider_id", unique=True),
)


def _provider_key() -> Column[Any]:
    return column("provider_key", Uuid, ForeignKey("oauth_provider.id", ondelete="CASCADE"))


# A user's consent, with the encrypted tokens. If `agent_id` is NULL, it covers all agents of the user.
OAUTH_GRANT = Table(
    "oauth_grant",
    METADATA,
    column("id", Uuid, primary_key=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    _provider_key(),
    column("user_id", Text),
    column("agent_id", Text, nullable=True),
    column("requested", JSON),
    column("scopes", JSON),  # the granted scopes
    column("access_token", LargeBinary),
    column("refresh_token", LargeBinary, nullable=True),
    column("expires_at", TIME, nullable=True),
    column("refreshing_until", TIME, nullable=True),  # lease of the process that refreshes the tokens
    column("account_label", Text, nullable=True),
    column("is_default", Boolean, server_default="false"),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    Index("ix_oauth_grant_provider_key_user_id", "provider_key", "user_id"),
    Index("ix_oauth_grant_organization_id", "organization_id"),
)


# A request for consent. Its id is the `auth_id`. shared/oauth/tokens.py has the states.
OAUTH_REQUEST = Table(
    "oauth_request",
    METADATA,
    column("id", Uuid, primary_key=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    _provider_key(),
    column("status", Text, server_default="pending"),
    column("state_hash", LargeBinary, unique=True),  # SHA-256
    column("verifier", LargeBinary, nullable=True),  # the PKCE code verifier, encrypted
    column("redirect_uri", Text),
    column("scopes", JSON),
    column("user_id", Text),
    column("agent_id", Text, nullable=True),
    column("is_default", Boolean),
    column("is_another", Boolean),  # consent for one more account, in addition to existing grants
    column("grant_id", Uuid, nullable=True),
    column("error", Text, nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("expires_at", TIME),
    Index("ix_oauth_request_expires_at", "expires_at"),
)
