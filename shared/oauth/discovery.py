"""Discovery of an OAuth provider from the URL of an MCP server, and registration as its client.

RFC 9728 names the authorization server of a resource, RFC 8414 (or OpenID Connect) describes it, and RFC 7591 registers
this service as its client. All URLs on the way come from other servers. They are therefore called through
shared/infra/egress.py, and each document must name the resource or issuer that it was requested for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from shared.errors import AddressRefused, Invalid, OutsideFailed
from shared.infra import egress
from shared.infra.egress import OutsideResponse
from shared.oauth.providers import AUTH_METHODS, DEFAULT_CHALLENGE_METHOD

CLIENT_NAME = "runyard"
RESOURCE_DOCUMENT = "oauth-protected-resource"
SERVER_DOCUMENTS = ("oauth-authorization-server", "openid-configuration")
PROTOCOL_VERSION = "2025-06-18"
LOC = ("body", "mcp_server_url")
MAX_CREDENTIAL = 8192


@dataclass(frozen=True, kw_only=True)
class AuthorizationServer:
    """The metadata of an authorization server."""

    issuer: str
    auth_url: str
    token_url: str
    registration_url: str
    revocation_url: str | None
    auth_methods: tuple[str, ...]


def discover(mcp_server_url: str, *, redirect_uri: str) -> dict[str, Any]:
    """Register this service for an MCP server and return the values of a provider.

    Raises Invalid if the server or its authorization server lacks a required feature, OutsideFailed if one does not
    answer.
    """
    try:
        egress.check_url(mcp_server_url)
    except AddressRefused as error:
        raise Invalid(error.message, loc=LOC) from error
    server = _described(_issuer_of(mcp_server_url))
    registered = _register(server, redirect_uri)
    return {
        **registered,
        "auth_url": server.auth_url,
        "token_url": server.token_url,
        "uses_pkce": True,  # MCP requires it of every client
        "code_challenge_method": DEFAULT_CHALLENGE_METHOD,
        "mcp_server_url": mcp_server_url,
        "is_dynamic_client": True,
        "issuer": server.issuer,
        "revocation_url": server.revocation_url,
    }


def _issuer_of(mcp_server_url: str) -> str:
    """Return the issuer of a resource's authorization server. Without metadata it is the server's own origin."""
    for url in dict.fromkeys(_resource_documents(mcp_server_url)):
        document = _document(url)
        if document is None:
            continue
        if not _is_resource(document.get("resource"), mcp_server_url):
            raise Invalid("its metadata describes another resource", loc=LOC)
        issuers = document.get("authorization_servers")
        if isinstance(issuers, list) and issuers and isinstance(issuers[0], str):
            return issuers[0]
        raise Invalid("its metadata names no authorization server", loc=LOC)
    parts = urlsplit(mcp_server_url)
    return urlunsplit((parts.scheme, parts.netloc, "", "", ""))


def _resource_documents(mcp_server_url: str) -> Iterator[str]:
    """Yield the possible URLs of a resource's metadata: the one it names itself, then the well-known ones."""
    named = re.search(r'resource_metadata="([^"]+)"', _challenge(mcp_server_url))
    if named:
        yield named[1]
    yield _well_known(mcp_server_url, RESOURCE_DOCUMENT)
    parts = urlsplit(mcp_server_url)
    yield _well_known(urlunsplit((parts.scheme, parts.netloc, "", "", "")), RESOURCE_DOCUMENT)


def _challenge(mcp_server_url: str) -> str:
    """Return the server's `WWW-Authenticate` header for a caller without a token, or "" if it does not answer."""
    try:
        return _get(mcp_server_url).headers.get("www-authenticate", "")
    except OutsideFailed:
        return ""


def _well_known(url: str, name: str) -> str:
    """Return the well-known URL of a document: its name is inserted between host and path (RFC 8615)."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, f"/.well-known/{name}{path}", parts.query, ""))


def _is_resource(resource: Any, mcp_server_url: str) -> bool:
    """Whether the resource in the metadata is the server's URL or a parent of it."""
    if not isinstance(resource, str):
        return False
    server, named = urlsplit(mcp_server_url), urlsplit(resource)
    if (server.scheme, server.netloc) != (named.scheme, named.netloc):
        return False
    return f"{server.path.rstrip('/')}/".startswith(f"{named.path.rstrip('/')}/")


def _described(issuer: str) -> AuthorizationServer:
    """Fetch the metadata of an issuer. Raises Invalid, OutsideFailed."""
    places = [_well_known(issuer, name) for name in SERVER_DOCUMENTS]
    places.append(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    for url in dict.fromkeys(places):
        document = _document(url)
        if document is None:
            continue
        if document.get("issuer") != issuer and document.get("issuer") != f"{issuer}/":
            raise Invalid("the metadata of its authorization server names another issuer", loc=LOC)
        return _authorization_server(document)
    raise Invalid("its authorization server publishes no metadata", loc=LOC)


def _authorization_server(document: dict[str, Any]) -> AuthorizationServer:
    challenges = document.get("code_challenge_methods_supported")
    if isinstance(challenges, list) and DEFAULT_CHALLENGE_METHOD not in challenges:
        raise Invalid("its authorization server does not support PKCE with S256", loc=LOC)
    methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    revocation_url = document.get("revocation_endpoint")
    return AuthorizationServer(
        issuer=document["issuer"],
        auth_url=_endpoint(document, "authorization", egress.check_browser_url),
        token_url=_endpoint(document, "token", egress.check_url),
        registration_url=_endpoint(document, "registration", egress.check_url),
        revocation_url=revocation_url if isinstance(revocation_url, str) else None,
        auth_methods=tuple(method for method in AUTH_METHODS if method in methods),
    )


def _endpoint(document: dict[str, Any], name: str, check: Callable[[str], None]) -> str:
    url = document.get(f"{name}_endpoint")
    if not isinstance(url, str):
        what = (
            "support dynamic client registration" if name == "registration" else f"name its {name} endpoint"
        )
        raise Invalid(f"its authorization server does not {what}", loc=LOC)
    try:
        check(url)
    except AddressRefused as error:
        raise Invalid(f"the {name} endpoint of its authorization server {error.message}", loc=LOC) from error
    return url


def _register(server: AuthorizationServer, redirect_uri: str) -> dict[str, Any]:
    """Register this service as a client. Returns its id, its secret and its authentication method. Raises Invalid."""
    if not server.auth_methods:
        raise Invalid(
            "its authorization server supports no method of client authentication that this service supports",
            loc=LOC,
        )
    # `none` comes first: PKCE protects the code without a stored secret.
    auth_method = server.auth_methods[0]
    request = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": auth_method,
    }
    answer = egress.request(
        "POST",
        server.registration_url,
        headers={"Content-Type": "application/json"},
        body=orjson.dumps(request),
    )
    client = answer.json() if answer.is_success else None
    if not isinstance(client, dict) or not _is_credential(client.get("client_id")):
        raise Invalid("its authorization server did not register this service as a client", loc=LOC)
    secret, method = client.get("client_secret"), client.get("token_endpoint_auth_method", auth_method)
    return {
        "client_id": client["client_id"],
        "client_secret": secret if _is_credential(secret) else None,
        "token_endpoint_auth_method": method if method in AUTH_METHODS else auth_method,
    }


def _is_credential(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_CREDENTIAL and value.isprintable()


def _document(url: str) -> dict[str, Any] | None:
    """Fetch a metadata document. Returns None if there is none. Raises OutsideFailed for a server error."""
    answer = _get(url)
    if answer.status >= 500:
        raise OutsideFailed(f"{urlsplit(url).hostname} answered with a server error")
    document = answer.json() if answer.status == 200 else None
    return document if isinstance(document, dict) else None


def _get(url: str) -> OutsideResponse:
    headers = {"MCP-Protocol-Version": PROTOCOL_VERSION, "Accept": "application/json, text/event-stream"}
    try:
        return egress.request("GET", url, headers=headers)
    except AddressRefused as error:
        raise Invalid(error.message, loc=LOC) from error
