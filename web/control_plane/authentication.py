"""Users' consent at OAuth providers, and the resulting tokens: authenticate, callback, wait, tokens.

The callback has two routes. Providers redirect the user's browser to the GET, which is authorized by the state and
needs no key. A front end that receives the browser itself passes code and state on to the POST.
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify, request
from werkzeug.exceptions import MethodNotAllowed

from shared.infra.postgres import connection
from shared.oauth import authorization, tokens
from shared.oauth.authorization import Authentication, Redirect
from shared.oauth.tokens import TokenRequest
from shared.records import (
    BOOLEAN,
    ID,
    ID_OR_NULL,
    OBJECT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    one_of,
    record,
)
from web.control_plane.providers import redirect_uri
from web.gate.audit import actor
from web.gate.context import caller
from web.http import pages
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("authentication", section="Users' tokens")

MAX_SCOPES = 200
MAX_WAIT_SECONDS = 3600
MAX_CODE_LENGTH = 8192

AUTHENTICATION = record(
    "Authentication",
    status=one_of(authorization.COMPLETED, authorization.PENDING, authorization.EXPIRED),
    url=TEXT_OR_NULL,
    auth_id=ID_OR_NULL,
    token=TEXT_OR_NULL,
    user_id=TEXT_OR_NULL,
    metadata=OBJECT_OR_NULL,
)
CONSENT = record("Consent", status=TEXT, provider_id=TEXT, auth_id=ID)
OUTCOME = record(
    "Outcome",
    ("error",),
    status=one_of(
        authorization.COMPLETED, authorization.TIMEOUT, authorization.NOT_FOUND, authorization.FAILED
    ),
    token=TEXT_OR_NULL,
    error=TEXT,
)
TOKEN = tokens.RECORD.schema
REVOKED = record("RevokedTokens", message=TEXT, provider_id=TEXT)
EXISTS = record("TokenExists", has_token=BOOLEAN)


class Authenticate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"provider": "acme", "scopes": ["mail.read"], "user_id": "ann"}

    provider = fields.StrictString(required=True)
    scopes = fields.ListOf(
        fields.StrictString(max_length=1024, pattern=r"\S+"), required=True, max_items=MAX_SCOPES
    )
    user_id = fields.StrictString(max_length=1024, allow_none=True)
    ls_user_id = fields.StrictString(max_length=1024, allow_none=True)
    agent_id = fields.StrictString(max_length=1024, allow_none=True)
    force_new = fields.StrictBoolean(load_default=False)
    token_id = fields.UuidField(allow_none=True)
    is_default = fields.StrictBoolean(load_default=True)
    use_agent_builder_public_oauth = fields.StrictBoolean(load_default=False)


class Callback(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"code": "of the provider", "state": "as it was sent"}

    code = fields.StrictString(required=True, min_length=1, max_length=MAX_CODE_LENGTH)
    state = fields.StrictString(required=True, max_length=1024)
    iss = fields.StrictString(max_length=2048, allow_none=True)


class CallbackQuery(fields.Schema):
    code = fields.StrictString(max_length=MAX_CODE_LENGTH)
    state = fields.StrictString(required=True, max_length=1024)
    iss = fields.StrictString(max_length=2048)
    error = fields.StrictString(max_length=1024)
    error_description = fields.StrictString()


class Wait(fields.Schema):
    timeout = fields.QueryInteger(minimum=0, maximum=MAX_WAIT_SECONDS, load_default=30)


class TokenSearch(fields.Schema):
    provider_id = fields.StrictString()
    user_id = fields.StrictString()


class TokenOf(fields.Schema):
    provider_id = fields.StrictString(required=True)
    user_id = fields.StrictString()


class TokenMetadata(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"metadata": {"topic": "greetings"}}

    provider_account_label = fields.StrictString(max_length=1024, allow_none=True)
    is_default = fields.StrictBoolean(allow_none=True)


@bp.operation(
    "POST /v2/auth/authenticate",
    "Get a user's token, or the URL of the consent page",
    role="run",
    answer=AUTHENTICATION,
    body=Authenticate,
    errors=(404, 502, 503),
)
def authenticate(body: dict[str, Any]) -> Response:
    """Return a user's token with the status `completed`, or request the user's consent with the status `pending`.

    If it is `pending`, send the user to `url`, and wait for `auth_id`. Without a user the token is the organization's
    own. `token_id` requests that exact token. If it has expired and cannot be refreshed, the status is `token_expired`.
    """
    user_id = body.get("user_id") or body.get("ls_user_id") or str(caller().organization_id)
    result = authorization.authenticate(
        caller().organization_id,
        body["provider"],
        TokenRequest(
            user_id=user_id,
            agent_id=body.get("agent_id"),
            scopes=list(dict.fromkeys(body["scopes"])),
            token_id=body.get("token_id"),
            force_new=body["force_new"],
            is_default=body["is_default"],
        ),
        redirect_uri=redirect_uri(body["provider"]),
    )
    return pages.uncached(
        jsonify(
            status=result.status,
            url=result.url,
            auth_id=result.auth_id,
            token=result.token,
            user_id=user_id,
            metadata=None,
        )
    )


@bp.operation(
    "POST /v2/auth/callback/<provider_id>",
    "Complete a user's consent with the provider's response",
    role="run",
    answer=CONSENT,
    body=Callback,
    errors=(400, 404, 502, 503),
)
def pass_callback(provider_id: str, body: dict[str, Any]) -> Response:
    """Complete a user's consent. For front ends that receive the user's browser themselves."""
    redirect = Redirect(state=body["state"], code=body["code"], issuer=body.get("iss"))
    auth_id = authorization.complete(caller().organization_id, provider_id, redirect)
    return jsonify(status=authorization.COMPLETED, provider_id=provider_id, auth_id=auth_id)


@bp.operation(
    "GET /v2/auth/callback/<provider_id>",
    "Complete a user's consent when the provider redirects the browser",
    role="open",
    answer=TEXT,
    query=CallbackQuery,
    media=("text/html",),
    errors=(400, 404, 502, 503),
)
def take_callback(provider_id: str) -> Response:
    """Complete a user's consent, and return a page for the user's browser.

    Errors are returned as a page to browsers, and as JSON to other clients.
    """
    if request.method == "HEAD":  # sent for previews of links, and must not use up the state
        raise MethodNotAllowed(["GET", "POST"])
    return pages.for_browser(lambda: _complete(provider_id), "Not connected")


def _complete(provider_id: str) -> Response:
    query = load_query(CallbackQuery, refuse_repeated=True)  # RFC 6749, 3.1
    redirect = Redirect(
        state=query["state"],
        code=query.get("code"),
        error=query.get("error"),
        issuer=query.get("iss"),
        part="query",
    )
    authorization.complete(None, provider_id, redirect)
    return pages.page("Connected", "You can close this window and return to the application.")


@bp.operation(
    "GET /v2/auth/wait/<auth_id>",
    "Wait for a user's consent",
    role="run",
    long=True,
    answer=OUTCOME,
    query=Wait,
)
def wait_for_consent(auth_id: str, query: dict[str, Any]) -> Response:
    """Wait for the outcome of a consent request. After `timeout` seconds the answer has the status `timeout`."""
    try:
        key = UUID(auth_id)
    except ValueError:
        return jsonify(outcome(Authentication(status=authorization.NOT_FOUND)))
    return pages.uncached(
        jsonify(outcome(authorization.wait(caller().organization_id, key, query["timeout"])))
    )


def outcome(authentication: Authentication) -> dict[str, Any]:
    error = {} if authentication.error is None else {"error": authentication.error}
    return {"status": authentication.status, "token": authentication.token, **error}


@bp.operation("GET /v2/auth/tokens", "List tokens", role="read", answer=TOKEN, many=True, query=TokenSearch)
def list_tokens(query: dict[str, Any]) -> Response:
    """List the metadata of the organization's tokens, optionally of one provider or user."""
    with connection() as conn:
        rows = tokens.list_all(conn, caller().organization_id, **query)
    return jsonify([tokens.RECORD.show(row) for row in rows])


@bp.operation(
    "DELETE /v2/auth/tokens", "Revoke the tokens of a provider", role="run", answer=REVOKED, query=TokenOf
)
def revoke_tokens(query: dict[str, Any]) -> Response:
    """Revoke the provider's tokens of the whole organization, or of one user."""
    with connection() as conn:
        rows = tokens.list_all(conn, caller().organization_id, **query)
        by = actor(conn)
    tokens.revoke(caller().organization_id, [row["id"] for row in rows], by=by)
    message = f"{len(rows)} {'token' if len(rows) == 1 else 'tokens'} revoked."
    return jsonify(message=message, provider_id=query["provider_id"])


@bp.operation(
    "GET /v2/auth/tokens/exists",
    "Check whether a token of a provider exists",
    role="read",
    answer=EXISTS,
    query=TokenOf,
)
def token_exists(query: dict[str, Any]) -> Response:
    with connection() as conn:
        return jsonify(has_token=bool(tokens.list_all(conn, caller().organization_id, **query)))


@bp.operation("DELETE /v2/auth/tokens/<token_id>", "Revoke a token", role="run", status=204, errors=(404,))
def revoke_token(token_id: UUID) -> None:
    with connection() as conn:
        tokens.get(conn, caller().organization_id, token_id)
        by = actor(conn)
    tokens.revoke(caller().organization_id, [token_id], by=by)


@bp.operation(
    "PATCH /v2/auth/tokens/<token_id>/metadata",
    "Update a token's metadata",
    role="run",
    answer=TOKEN,
    body=TokenMetadata,
    errors=(404,),
)
def change_token(token_id: UUID, body: dict[str, Any]) -> Response:
    """Set the label of the account that a token is for, or whether it is the user's default token."""
    changes = {}
    if "provider_account_label" in body:
        changes["account_label"] = body["provider_account_label"]
    if body.get("is_default") is not None:
        changes["is_default"] = body["is_default"]
    with connection() as conn:
        return jsonify(tokens.RECORD.show(tokens.change(conn, caller().organization_id, token_id, changes)))
