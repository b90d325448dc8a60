"""Organizations, their API keys, and the caller: who may use this installation, and for what."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify

from shared import __version__
from shared.access import api_keys, organizations
from shared.access.api_keys import OPERATOR, ROLES
from shared.audit import Action
from shared.deployments import revision_events
from shared.errors import Invalid
from shared.figures.budgets import NAMES_OF_KEY, WEBHOOK
from shared.infra.postgres import connection, database_time
from shared.records import BOOLEAN, ID, TEXT, one_of, or_null, record
from web.control_plane.sources import KeyBudgets, check_webhook
from web.gate.audit import record_action
from web.gate.context import caller, credentials, settings
from web.gate.idempotency import once
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("organizations", section="Organizations and keys")

NEW_API_KEY = record("NewApiKey", **api_keys.RECORD.schema["properties"], key=TEXT)

MAX_LIFETIME_DAYS = 3650
MAX_RUNS = 1_000_000


class OrganizationBody(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"name": "Acme"}

    name = fields.StrictString(pattern=organizations.NAME, required=True)


class KeyCreate(KeyBudgets):
    example: ClassVar[dict[str, Any]] = {"name": "ci", "role": "deploy"}

    name = fields.StrictString(min_length=1, max_length=255, required=True)
    role = fields.OneOf(*ROLES, required=True)
    expires_at = fields.TimeField(allow_none=True, metadata={"description": "Must be in the future"})
    lifetime_days = fields.StrictInteger(
        minimum=1,
        maximum=MAX_LIFETIME_DAYS,
        allow_none=True,
        metadata={"description": "Not allowed with `expires_at`"},
    )
    max_concurrent_runs = fields.StrictInteger(minimum=0, maximum=MAX_RUNS, allow_none=True)


class KeyPatch(KeyBudgets):
    example: ClassVar[dict[str, Any]] = {"name": "ci"}

    name = fields.StrictString(min_length=1, max_length=255, allow_none=True)
    role = fields.OneOf(*ROLES, allow_none=True)
    expires_at = fields.TimeField(allow_none=True, metadata={"description": "In the future"})
    lifetime_days = fields.StrictInteger(
        minimum=0,
        maximum=MAX_LIFETIME_DAYS,
        allow_none=True,
        metadata={"description": "From now on; 0: the key does not expire. Not allowed with `expires_at`"},
    )
    max_concurrent_runs = fields.StrictInteger(minimum=0, maximum=MAX_RUNS, allow_none=True)


@bp.operation(
    "GET /v2/organizations",
    "List organizations, oldest first",
    role="read",
    answer=resource_page_schema(organizations.RECORD.schema),
    query=fields.Page,
)
def list_organizations(query: dict[str, Any]) -> Response:
    """List organizations. An operator sees all of them, other callers their own."""
    only = None if caller().may(OPERATOR) else caller().organization_id
    with connection() as conn:
        rows = organizations.list_all(conn, only=only, **query)
    return resource_page([dict(row) for row in rows], offset=query["offset"])


@bp.operation(
    "POST /v2/organizations",
    "Create an organization",
    role="operator",
    answer=organizations.RECORD.schema,
    idempotent=True,
    body=OrganizationBody,
    status=201,
    errors=(409,),
)
def create_organization(body: dict[str, Any]) -> Response:
    """Create an organization. Only for operators. POST /v2/keys with its name in X-Tenant-Id creates its first key."""
    with connection() as conn:
        keep = once(conn)
        row = organizations.create(conn, body["name"])
        record_action(conn, Action.ORGANIZATION_CREATED, row["name"], of_organization=row["id"])
        return keep(jsonify(dict(row)), 201)


@bp.operation(
    "GET /v2/organizations/<organization_id>",
    "Get an organization",
    role="read",
    answer=organizations.RECORD.schema,
    errors=(404,),
)
def get_organization(organization_id: UUID) -> Response:
    if organization_id != caller().organization_id and not caller().may(OPERATOR):
        raise organizations.missing(organization_id)
    with connection() as conn:
        return jsonify(dict(organizations.get(conn, organization_id)))


@bp.operation(
    "PATCH /v2/organizations/<organization_id>",
    "Rename an organization",
    role="operator",
    answer=organizations.RECORD.schema,
    body=OrganizationBody,
    errors=(400, 404, 409),
)
def rename_organization(organization_id: UUID, body: dict[str, Any]) -> Response:
    """Rename an organization. Only for operators."""
    with connection() as conn:
        before = organizations.get(conn, organization_id)["name"]
        row = organizations.rename(conn, organization_id, body["name"])
        record_action(conn, Action.ORGANIZATION_RENAMED, row["name"], before=before)
        return jsonify(dict(row))


@bp.operation(
    "DELETE /v2/organizations/<organization_id>",
    "Delete an organization and everything in it",
    role="operator",
    slow=True,
    status=204,
    errors=(400, 404),
)
def delete_organization(organization_id: UUID) -> None:
    """Delete an organization. Only for operators.

    Its keys stop working and its deployments stop at once. The remaining data is removed soon after.
    """
    with connection() as conn:
        name = organizations.get(conn, organization_id)["name"]
        transitions = organizations.delete(conn, organization_id)
        record_action(conn, Action.ORGANIZATION_DELETED, name, of_organization=organization_id)
    api_keys.forget()
    revision_events.announce(transitions)


@bp.operation(
    "GET /v2/keys",
    "List the organization's API keys, newest first",
    role="admin",
    answer=resource_page_schema(api_keys.RECORD.schema),
    query=fields.Page,
)
def list_keys(query: dict[str, Any]) -> Response:
    """List the organization's keys. Revoked and expired keys stay in the list for a while."""
    with connection() as conn:
        rows = api_keys.list_of(conn, caller().organization_id, **query)
    return resource_page([api_keys.RECORD.show(row) for row in rows], offset=query["offset"])


@bp.operation(
    "POST /v2/keys",
    "Create an API key",
    role="admin",
    answer=NEW_API_KEY,
    idempotent=True,
    body=KeyCreate,
    status=201,
)
def create_key(body: dict[str, Any]) -> Response:
    """Create an API key. Its secret, `key`, is returned only once. A key cannot create a key with more rights.

    `max_concurrent_runs` limits how many runs of the key run at once. 0 means no limit; if the field is missing, the
    service's setting applies. Budgets limit what these runs use in a day (UTC), and each of them. `budget_webhook` is
    called with the deployment of the run that reaches a share of a budget.
    """
    check_webhook(body.get(WEBHOOK), ("body", WEBHOOK))
    max_runs = body.get("max_concurrent_runs")
    if max_runs is None:
        max_runs = settings().max_concurrent_runs_per_key
    with connection() as conn:
        keep = once(conn)
        key_id, key = api_keys.create_for(
            conn,
            caller(),
            name=body["name"],
            role=body["role"],
            expires_at=_expiry(body),
            max_concurrent_runs=max_runs,
            **{name: body.get(name) for name in NAMES_OF_KEY},
        )
        row = api_keys.get(conn, caller().organization_id, key_id)
        record_action(conn, Action.KEY_CREATED, row["name"], of_key=key_id, role=row["role"])
        return keep(jsonify({**api_keys.RECORD.show(row), "key": key}), 201)


def _expiry(body: dict[str, Any]) -> datetime | None:
    days, at = body.get("lifetime_days"), body.get("expires_at")
    if days is not None and at is not None:
        raise Invalid("must not be given with expires_at", loc=("body", "lifetime_days"))
    now = database_time()
    if at is not None and at <= now:
        raise Invalid("must be in the future", loc=("body", "expires_at"))
    if days is None:
        return at
    return now + timedelta(days=days) if days else None


@bp.operation(
    "GET /v2/keys/<key_id>",
    "Get an API key, without its secret",
    role="admin",
    answer=api_keys.RECORD.schema,
    errors=(404,),
)
def get_key(key_id: str) -> Response:
    with connection() as conn:
        return jsonify(api_keys.RECORD.show(api_keys.get(conn, caller().organization_id, key_id)))


@bp.operation(
    "PATCH /v2/keys/<key_id>",
    "Update an API key's name, role, expiry or limits",
    role="admin",
    answer=api_keys.RECORD.schema,
    body=KeyPatch,
    errors=(404, 409),
)
def change_key(key_id: str, body: dict[str, Any]) -> Response:
    """Change a key's name, role, expiry or limits. 0 removes a limit or the expiry.

    Budgets also apply to running runs, other limits to new runs. Role and expiry take effect within seconds. A
    key cannot change its own role or expiry, nor a key whose old or new role is above its own.
    """
    body = {name: value for name, value in body.items() if value is not None}
    if not body:
        raise Invalid("name, role, expires_at, lifetime_days or a limit must be given")
    check_webhook(body.get(WEBHOOK), ("body", WEBHOOK))
    if "expires_at" in body or "lifetime_days" in body:
        body["expires_at"] = _expiry(body)
        body.pop("lifetime_days", None)
    with connection() as conn:
        row = api_keys.change(conn, caller(), key_id, body)
        record_action(conn, Action.KEY_CHANGED, row["name"], of_key=key_id, fields=sorted(body))
        return jsonify(api_keys.RECORD.show(row))


@bp.operation("DELETE /v2/keys/<key_id>", "Revoke an API key", role="admin", status=204, errors=(404,))
def revoke_key(key_id: str) -> None:
    """Revoke a key, which may be the key of this request. Within seconds it is refused, and its open streams end."""
    with connection() as conn:
        row = api_keys.get(conn, caller().organization_id, key_id, lock=True)
        api_keys.revoke(conn, caller().organization_id, key_id)
        if row["revoked_at"] is None:
            record_action(conn, Action.KEY_REVOKED, row["name"], of_key=key_id)


ME = record(
    "Me",
    role=one_of(*api_keys.ROLES),
    organization=record(id=ID, name=TEXT),
    key=or_null(record(id=TEXT, name=TEXT)),
    user=or_null(record(id=TEXT, name=TEXT)),
    version=TEXT,
    dev=BOOLEAN,
)


@bp.operation("GET /v2/me", "Get the caller and its role", role="read", answer=ME)
def get_me() -> Response:
    """Return the caller. `organization` is the one that the request acts in.

    `user` is the person who has signed in to the console, and null for a key. Both `key` and `user` are null for a
    developer at their own machine.
    """
    who = caller()
    key = None
    if credentials().presented_key:
        with connection() as conn:
            key = {"id": who.key_id, "name": api_keys.name_of(conn, who.key_id)}
    return jsonify(
        role=who.role,
        organization={"id": who.organization_id, "name": who.organization_name},
        key=key,
        user=None if who.session is None else {"id": who.key_id, "name": who.name},
        version=__version__,
        dev=settings().dev_deployment is not None,
    )
