"""The description of a deployment's MCP server for clients of OAuth (RFC 9728)."""

from __future__ import annotations

from flask import Response, jsonify

from shared.errors import NotFound
from shared.records import TEXT, listed, record
from web.gate import challenges, routing
from web.gate.context import context
from web.schemas.operations import RouteGroup

bp = RouteGroup("mcp_oauth", section="MCP and A2A", switches=("disable_mcp",))

PROTECTED_RESOURCE = record(
    "ProtectedResource",
    resource=TEXT,
    authorization_servers=listed(TEXT),
    scopes_supported=listed(TEXT),
    bearer_methods_supported=listed(TEXT),
)


@bp.operation(
    f"GET {challenges.DOCUMENT}/<path:resource>",
    "Get the description of the MCP server for clients of OAuth",
    role="open",
    answer=PROTECTED_RESOURCE,
    errors=(404,),
)
def describe_resource(resource: str) -> Response:
    """Clients ask at the root, for `/.well-known/oauth-protected-resource/d/NAME/mcp`. 404 without `auth.oauth`."""
    authorization = context().authorization
    deployment = None if authorization is None else authorization.unchecked_deployment
    metadata = None if deployment is None else challenges.protected_resource(deployment)
    if (
        deployment is None
        or metadata is None
        or f"/{resource}" != routing.mount_prefix(deployment) + challenges.MCP
    ):
        raise NotFound("Not Found")
    return jsonify(metadata)
