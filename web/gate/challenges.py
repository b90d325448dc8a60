"""OAuth at the MCP server of a deployment: its description, and the challenges in refusals (RFC 9728, RFC 6750).

A deployment has them if its langgraph.json has `auth.oauth`. Its `authenticate` function checks the tokens.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied
from shared.user_code.users import User
from web.gate.addresses import RequestAddress
from web.gate.context import configured_url
from web.gate.routing import deployment_url

MCP = "/mcp"  # path of the MCP server at a deployment
DOCUMENT = "/.well-known/oauth-protected-resource"
HEADER = "WWW-Authenticate"


def protected_resource(deployment: DeploymentRef) -> dict[str, Any] | None:
    """Return the metadata of the MCP server as a protected resource, or None if the deployment has no OAuth."""
    auth = deployment.user_code.auth
    if auth is None or auth.oauth is None:
        return None
    return {
        "resource": deployment_url(deployment, configured_url()) + MCP,
        "authorization_servers": auth.oauth["authorization_servers"],
        "scopes_supported": auth.oauth["scopes"],
        "bearer_methods_supported": ["header"],
    }


def unauthenticated(refusal: Denied, deployment: DeploymentRef, address: RequestAddress) -> Denied:
    """Return the refusal of a caller that `authenticate` does not know, with the challenge at the MCP server."""
    metadata = protected_resource(deployment)
    if refusal.status != 401 or metadata is None or address.path.rstrip("/") != MCP:
        return refusal
    others = {name: value for name, value in refusal.headers.items() if name.lower() != HEADER.lower()}
    return Denied(refusal.status, refusal.detail, {**others, HEADER: f"Bearer {_parameters(metadata)}"})


def forbidden(refusal: Denied, deployment: DeploymentRef, user: User | None) -> Denied:
    """Return the refusal of a handler at the MCP server, with a challenge if the user lacks a scope.

    A client would otherwise ask its user for scopes that change nothing.
    """
    metadata = protected_resource(deployment)
    if refusal.status != 403 or metadata is None or user is None:
        return refusal
    if set(metadata["scopes_supported"]).issubset(user.document.get("permissions") or ()):
        return refusal
    challenge = f'Bearer error="insufficient_scope", {_parameters(metadata)}'
    return Denied(refusal.status, refusal.detail, {HEADER: challenge, **refusal.headers})


def _parameters(metadata: dict[str, Any]) -> str:
    resource = urlsplit(metadata["resource"])
    parameters = f'resource_metadata="{resource.scheme}://{resource.netloc}{DOCUMENT}{resource.path}"'
    scopes = " ".join(metadata["scopes_supported"])
    return f'{parameters}, scope="{scopes}"' if scopes else parameters
