"""Requests to an OAuth provider: the authorization URL for the user's browser, and calls of the token endpoint.

authlib builds the messages; calls go through shared/infra/egress.py. Answers are parsed leniently, because providers
differ: JSON or form data, refusals with status 200, lifetimes as text or missing. Neither tokens nor a provider's error
texts are logged or shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from urllib.parse import parse_qs, quote_plus

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7009 import prepare_revoke_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from shared.errors import OutsideFailed
from shared.infra import egress
from shared.infra.egress import OutsideResponse

FORM = "application/x-www-form-urlencoded"
MAX_TOKEN_LENGTH = 64 * 1024
MAX_LIFETIME_SECONDS = 10 * 365 * 86400.0


class TokenRefused(OutsideFailed):
    """The provider refused to issue a token."""


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """This service's client credentials at a provider, and the provider's URLs."""

    provider_id: str
    client_id: str
    client_secret: str | None = field(repr=False)
    auth_url: str
    token_url: str
    auth_method: str
    pkce_method: str | None
    provider_type: str | None = None
    resource: str | None = None  # the MCP server the token is for (RFC 8707)
    revocation_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens in a provider's answer."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    lifetime_seconds: float | None
    scopes: list[str] | None  # None: as requested
    id_token: str | None = field(default=None, repr=False)  # of OpenID Connect, unchecked


def authorization_url(
    client: OAuthClient,
    *,
    redirect_uri: str,
    scopes: Sequence[str],
    state: str,
    verifier: str | None,
    nonce: str | None = None,
) -> str:
    """Return the URL where the user gives consent. `nonce` is only for OpenID Connect."""
    more = {}
    if verifier is not None:
        is_plain = client.pkce_method == "plain"
        more["code_challenge"] = verifier if is_plain else create_s256_code_challenge(verifier)
        more["code_challenge_method"] = client.pkce_method
    return prepare_grant_uri(
        client.auth_url,
        client.client_id,
        "code",
        redirect_uri=redirect_uri,
        scope=list(scopes) or None,
        state=state,
        resource=client.resource,
        nonce=nonce,
        **more,
    )


def exchange(client: OAuthClient, *, code: str, redirect_uri: str, verifier: str | None) -> Tokens:
    """Exchange a code for tokens. Raises TokenRefused, or OutsideFailed without a valid answer."""
    body = prepare_token_request(
        "authorization_code",
        redirect_uri=redirect_uri,
        code=code,
        code_verifier=verifier,
        resource=client.resource,
    )
    return _request_tokens(client, body)


def refresh(client: OAuthClient, refresh_token: str) -> Tokens:
    """Exchange a refresh token for new tokens. Raises as `exchange` does."""
    body = prepare_token_request("refresh_token", refresh_token=refresh_token, resource=client.resource)
    return _request_tokens(client, body)


def revoke(client: OAuthClient, token: str, *, hint: str) -> None:
    """Revoke a token at its provider if it has a revocation endpoint. Raises OutsideFailed."""
    if client.revocation_url is None:
        return
    body, _ = prepare_revoke_token_request(token, hint)
    answer = _post(client, client.revocation_url, body)
    if not answer.is_success:
        raise OutsideFailed(f"The provider {client.provider_id} did not revoke a token")


def _request_tokens(client: OAuthClient, body: str) -> Tokens:
    answer = _post(client, client.token_url, body)
    fields = _fields(answer)
    name = client.provider_id
    if fields is None:
        raise OutsideFailed(f"The token endpoint of {name} gave an invalid answer")
    if fields.get("error") or fields.get("ok") is False or not 200 <= answer.status < 300:
        if answer.status >= 500 or answer.status == 429:
            raise OutsideFailed(f"The token endpoint of {name} answered with a server error")
        raise TokenRefused(f"The provider {name} refused to issue a token")
    tokens = _tokens(client, fields)
    if tokens is None:
        raise OutsideFailed(f"The token endpoint of {name} answered without a token")
    return tokens


def _post(client: OAuthClient, url: str, body: str) -> OutsideResponse:
    """Post a form with the client authentication that the provider requires."""
    headers = {"Content-Type": FORM, "Accept": "application/json"}
    url, headers, body = _client_auth(client).prepare("POST", url, headers, body)
    return egress.request("POST", url, headers=headers, body=body)


def _client_auth(client: OAuthClient) -> ClientAuth:
    if client.auth_method == "client_secret_basic":
        # RFC 6749 section 2.3.1 requires both parts to be form-encoded first, which authlib does not do
        return ClientAuth(
            quote_plus(client.client_id), quote_plus(client.client_secret or ""), "client_secret_basic"
        )
    if client.client_secret is None or client.auth_method == "none":
        return ClientAuth(client.client_id, None, "none")
    return ClientAuth(client.client_id, client.client_secret, "client_secret_post")


def _fields(answer: OutsideResponse) -> Mapping[str, Any] | None:
    """Parse an answer's fields from JSON or form data. Returns None for anything else."""
    document = answer.json()
    if isinstance(document, dict):
        return document
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if document is not None or kind not in (FORM, "text/plain"):
        return None
    try:
        form = parse_qs(answer.body.decode("ascii"), max_num_fields=100)
    except ValueError:
        return None
    return {name: values[-1] for name, values in form.items()} or None


def _tokens(client: OAuthClient, fields: Mapping[str, Any]) -> Tokens | None:
    """Return the tokens in an answer, or None if there is no valid access token."""
    if client.provider_type == "slack" and isinstance(fields.get("authed_user"), dict):
        fields = {**fields, **fields["authed_user"]}  # the user's own token, not the workspace's
    access_token = fields.get("access_token")
    if not _is_token(access_token):
        return None
    refresh_token, id_token = fields.get("refresh_token"), fields.get("id_token")
    return Tokens(
        access_token=access_token,
        refresh_token=refresh_token if _is_token(refresh_token) else None,
        lifetime_seconds=_seconds(fields.get("expires_in")),
        scopes=_scopes(fields.get("scope")),
        id_token=id_token if _is_token(id_token) else None,
    )


def _is_token(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_TOKEN_LENGTH and value.isprintable()


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_LIFETIME_SECONDS)


def _scopes(value: Any) -> list[str] | None:
    """Parse the granted scopes: separated by spaces or commas, or an array."""
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    if not isinstance(value, str) or not value.strip():
        return None
    return value.replace(",", " ").split()
