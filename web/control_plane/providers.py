"""OAuth providers: create by hand or from an MCP server, list, read, change, delete."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote

from flask import Response, jsonify

from shared.audit import Action
from shared.infra.egress import MAX_URL_LENGTH
from shared.infra.postgres import connection
from shared.oauth import discovery, providers
from shared.records import TEXT, record
from web.gate.audit import record_action
from web.gate.context import base_url, caller, settings
from web.gate.idempotency import once
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("providers", section="OAuth providers")

PROVIDER_ID = r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]+"  # used as one segment of a path
MAX_SECRET_LENGTH = 8192

PROVIDER = providers.RECORD.schema
MESSAGE = record(message=TEXT)


def _provider_id() -> fields.StrictString:
    return fields.StrictString(required=True, min_length=1, max_length=255, pattern=PROVIDER_ID)


class ProviderCreate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "provider_id": "acme",
        "name": "Acme",
        "client_id": "runyard",
        "client_secret": "of the client",
        "auth_url": "https://acme.example/authorize",
        "token_url": "https://acme.example/token",
    }

    provider_id = _provider_id()
    name = fields.StrictString(required=True, min_length=1, max_length=255)
    client_id = fields.StrictString(required=True, min_length=1, max_length=1024)
    client_secret = fields.StrictString(max_length=MAX_SECRET_LENGTH, allow_none=True)
    auth_url = fields.StrictString(required=True, max_length=MAX_URL_LENGTH)
    token_url = fields.StrictString(required=True, max_length=MAX_URL_LENGTH)
    uses_pkce = fields.StrictBoolean(load_default=False)
    code_challenge_method = fields.OneOf(
        *providers.CHALLENGE_METHODS, load_default=providers.DEFAULT_CHALLENGE_METHOD
    )
    provider_type = fields.OneOf(*providers.TYPES, allow_none=True)
    token_endpoint_auth_method = fields.OneOf(
        *providers.AUTH_METHODS, load_default=providers.DEFAULT_AUTH_METHOD
    )


class ProviderPatch(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"name": "Acme"}

    name = fields.StrictString(min_length=1, max_length=255, allow_none=True)
    client_id = fields.StrictString(min_length=1, max_length=1024, allow_none=True)
    client_secret = fields.StrictString(max_length=MAX_SECRET_LENGTH, allow_none=True)
    auth_url = fields.StrictString(max_length=MAX_URL_LENGTH, allow_none=True)
    token_url = fields.StrictString(max_length=MAX_URL_LENGTH, allow_none=True)
    uses_pkce = fields.StrictBoolean(allow_none=True)
    code_challenge_method = fields.OneOf(*providers.CHALLENGE_METHODS, allow_none=True)
    token_endpoint_auth_method = fields.OneOf(*providers.AUTH_METHODS, allow_none=True)
    provider_type = fields.OneOf(*providers.TYPES, allow_none=True)


class McpDiscover(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "provider_id": "tools",
        "name": "Tools",
        "mcp_server_url": "https://tools.example/mcp",
    }

    provider_id = _provider_id()
    name = fields.StrictString(required=True, min_length=1, max_length=255)
    mcp_server_url = fields.StrictString(required=True, max_length=MAX_URL_LENGTH)


def redirect_uri(provider_id: str) -> str:
    escaped = quote(provider_id, safe="")
    configured = settings().oauth_redirect_url
    if configured:
        return configured.replace("{provider_id}", escaped)
    return f"{base_url()}/v2/auth/callback/{escaped}"


@bp.operation(
    "POST /v2/auth/providers",
    "Create an OAuth provider",
    role="deploy",
    answer=PROVIDER,
    body=ProviderCreate,
    idempotent=True,
    errors=(409, 503),
)
def create_provider(body: dict[str, Any]) -> Response:
    """Create a provider. Register `/v2/auth/callback/{provider_id}` at the provider as the redirect URI."""
    with connection() as conn:
        keep = once(conn)
        row = providers.create(conn, caller().organization_id, body)
        record_action(conn, Action.PROVIDER_CREATED, body["provider_id"])
        return keep(jsonify(providers.RECORD.show(row)))


@bp.operation(
    "POST /v2/auth/providers/mcp-discover",
    "Create an OAuth provider from an MCP server",
    role="deploy",
    answer=PROVIDER,
    body=McpDiscover,
    idempotent=True,
    errors=(409, 502, 503),
)
def discover_provider(body: dict[str, Any]) -> Response:
    """Discover the authorization server of an MCP server, and register this service there as a client."""
    organization_id = caller().organization_id
    with connection() as conn:
        once(conn)  # answers a repeated request before any call to another server
        providers.require_free(conn, organization_id, body["provider_id"])
    discovered = discovery.discover(body["mcp_server_url"], redirect_uri=redirect_uri(body["provider_id"]))
    with connection() as conn:
        keep = once(conn)
        record = providers.RECORD.show(providers.create(conn, organization_id, {**body, **discovered}))
        record_action(conn, Action.PROVIDER_CREATED, body["provider_id"])
        return keep(jsonify(record))


@bp.operation(
    "GET /v2/auth/providers", "List OAuth providers, oldest first", role="read", answer=PROVIDER, many=True
)
def list_providers() -> Response:
    with connection() as conn:
        return jsonify(
            [providers.RECORD.show(row) for row in providers.list_all(conn, caller().organization_id)]
        )


@bp.operation(
    "GET /v2/auth/providers/<provider_id>",
    "Get an OAuth provider",
    role="read",
    answer=PROVIDER,
    errors=(404,),
)
def get_provider(provider_id: str) -> Response:
    with connection() as conn:
        return jsonify(providers.RECORD.show(providers.get(conn, caller().organization_id, provider_id)))


@bp.operation(
    "PATCH /v2/auth/providers/<provider_id>",
    "Update an OAuth provider",
    role="deploy",
    answer=PROVIDER,
    body=ProviderPatch,
    errors=(404, 503),
)
def change_provider(provider_id: str, body: dict[str, Any]) -> Response:
    """Change a provider. Fields that are null stay unchanged."""
    with connection() as conn:
        row = providers.change(conn, caller().organization_id, provider_id, body)
        changed = sorted(name for name, value in body.items() if value is not None)
        record_action(conn, Action.PROVIDER_CHANGED, provider_id, fields=changed)
        return jsonify(providers.RECORD.show(row))


@bp.operation(
    "DELETE /v2/auth/providers/<provider_id>",
    "Delete an OAuth provider and all tokens it issued",
    role="deploy",
    slow=True,
    answer=MESSAGE,
    errors=(404,),
)
def delete_provider(provider_id: str) -> Response:
    with connection() as conn:
        providers.remove(conn, caller().organization_id, provider_id)
        record_action(conn, Action.PROVIDER_DELETED, provider_id)
    return jsonify(message=f"OAuth provider {provider_id!r} deleted.")
