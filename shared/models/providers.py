"""OAuth providers, the consents that were asked for, and the tokens that came of them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import NOW, Base


class OAuthProvider(Base):
    """Where users give consent, and who we are there; `client_secret` is encrypted."""

    __tablename__ = "oauth_provider"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_id: Mapped[str]  # its name within the organization, chosen by the caller
    name: Mapped[str]
    client_id: Mapped[str]
    client_secret: Mapped[bytes | None]
    auth_url: Mapped[str]
    token_url: Mapped[str]
    uses_pkce: Mapped[bool] = mapped_column(server_default="false")
    code_challenge_method: Mapped[str | None]
    provider_type: Mapped[str | None]
    token_endpoint_auth_method: Mapped[str]
    mcp_server_url: Mapped[str | None]
    is_dynamic_client: Mapped[bool] = mapped_column(server_default="false")
    issuer: Mapped[str | None]  # as discovery named it
    revocation_url: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("uq_oauth_provider_organization_id_provider_id", "organization_id", "provider_id", unique=True),
    )


def _provider_key() -> Mapped[UUID]:
    return mapped_column(ForeignKey("oauth_provider.id", ondelete="CASCADE"))


class OAuthGrant(Base):
    """What a user consented to: the tokens, encrypted. `agent_id` None: for all agents of the user."""

    __tablename__ = "oauth_grant"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_key: Mapped[UUID] = _provider_key()
    user_id: Mapped[str]
    agent_id: Mapped[str | None]
    requested: Mapped[list[str]] = mapped_column(JSON)
    scopes: Mapped[list[str]] = mapped_column(JSON)  # as granted
    access_token: Mapped[bytes]
    refresh_token: Mapped[bytes | None]
    expires_at: Mapped[datetime | None]
    refreshing_until: Mapped[datetime | None]  # somebody asks for new tokens now
    account_label: Mapped[str | None]
    is_default: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("ix_oauth_grant_provider_key_user_id", "provider_key", "user_id"),
        Index("ix_oauth_grant_organization_id", "organization_id"),
    )


class OAuthRequest(Base):
    """A consent that was asked for; its id is the `auth_id`. See the states in shared/oauth/tokens.py."""

    __tablename__ = "oauth_request"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_key: Mapped[UUID] = _provider_key()
    status: Mapped[str] = mapped_column(server_default="pending")
    state_hash: Mapped[bytes] = mapped_column(unique=True)  # SHA-256
    verifier: Mapped[bytes | None]  # of PKCE, encrypted
    redirect_uri: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSON)
    user_id: Mapped[str]
    agent_id: Mapped[str | None]
    is_default: Mapped[bool]
    is_another: Mapped[bool]  # consent for one more account, beside those there are
    grant_id: Mapped[UUID | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]

    __table_args__ = (Index("ix_oauth_request_expires_at", "expires_at"),)
