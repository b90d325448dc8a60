"""Deployments: create, list, read, change, delete one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.audit import Action
from shared.deployments import deployments, revision_events, shares, traffic
from shared.deployments.next_revision import REPOSITORY, Change
from shared.deployments.records import DEPLOYMENT, ENVIRONMENTS, SOURCES
from shared.deployments.shares import Share
from shared.errors import Invalid, NotFound
from shared.figures.budgets import WEBHOOK
from shared.hosts import calls
from shared.infra.postgres import Row, connection
from shared.models import DeploymentStatus
from shared.records import ID, TEXT, listed, record
from shared.removal import deletion
from shared.runs import signals, webhooks
from web.control_plane.sources import (
    DEFAULT_TYPE,
    MAX_SECRETS,
    NAME,
    POOL,
    UNSUPPORTED,
    UPLOAD,
    AgentIdentity,
    DeploymentType,
    InboxRules,
    Limits,
    RevisionContent,
    SecretItem,
    SourceConfig,
    SourceRevisionConfig,
    TrafficShare,
    changeable_config,
    check_webhook,
    refuse_unsupported,
    require_repository,
)
from web.gate.addresses import deployment_address
from web.gate.audit import actor, record_action
from web.gate.context import base_url, caller, settings
from web.gate.deployments import forget
from web.gate.idempotency import once
from web.http.responses import conditional, resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("deployments", section="Deployments")

REFUSED_DELETE = record(id=ID, detail=TEXT)
DELETED = record("DeletedDeployments", deleted=listed(ID), failed=listed(REFUSED_DELETE))

INBOX = {"description": "Rules for questions to people. null: those of langgraph.json"}
# fields of a PATCH that change the deployment without a new revision
SETTINGS = ("display_name", "pool", "limits", "source_config", "inbox", "require_replay")
CANCELLED_BATCHES = 2  # batches of runs that a request cancels; upkeep cancels the rest


class DeploymentCreate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"name": "chat", "source": "internal_source"}

    name = fields.StrictString(
        pattern=NAME,
        max_length=255,
        allow_none=True,
        metadata={"description": "Required without `agent`, not allowed with it"},
    )
    agent = fields.Nested(AgentIdentity, allow_none=True)
    source = fields.OneOf(
        *SOURCES,
        required=True,
        metadata={
            "description": f"`{UPLOAD}` or `{REPOSITORY}`; this service does not support the other values"
        },
    )
    source_config = fields.Nested(SourceConfig, allow_none=True)
    source_revision_config = fields.Nested(SourceRevisionConfig, allow_none=True)
    secrets = fields.ListOf(fields.Nested(SecretItem), max_items=MAX_SECRETS, allow_none=True)
    secret_references = fields.ListOf(fields.JsonObject(), allow_none=True, metadata=UNSUPPORTED)
    pool = fields.StrictString(pattern=POOL, max_length=63, allow_none=True)
    limits = fields.Nested(Limits, allow_none=True)
    inbox = fields.Nested(InboxRules, allow_none=True, metadata=INBOX)


class DeploymentPatch(RevisionContent):
    example: ClassVar[dict[str, Any]] = {"display_name": "Chat"}

    display_name = fields.StrictString(min_length=1, max_length=1024, allow_none=True)
    pool = fields.StrictString(pattern=POOL, max_length=63, allow_none=True)
    limits = fields.Nested(Limits, allow_none=True)
    inbox = fields.Nested(InboxRules, allow_none=True, metadata=INBOX)
    require_replay = fields.StrictBoolean(
        allow_none=True,
        metadata={
            "description": "Whether a revision gets traffic only if its newest judged replay passed. Once a revision"
            " serves, deploys without a preview are refused. Revisions that have served are exempt"
        },
    )
    traffic_requires_replay = fields.StrictBoolean(
        load_default=False,
        metadata={
            "description": "Refuse the `traffic` of this request unless the newest judged replay of each revision"
            " passed, except the serving one. The setting is unchanged"
        },
    )
    traffic = fields.ListOf(
        fields.Nested(TrafficShare),
        max_items=shares.MOST,
        allow_none=True,
        metadata={
            "description": f"Deployed revisions, each at most once. The percentages must add up to {shares.WHOLE}"
        },
    )


class DeploymentSearch(fields.Page):
    name = fields.StrictString()
    name_contains = fields.StrictString()
    replayed_at = fields.StrictString(
        metadata={
            "description": "The `bench` of a replay: finds the deployment whose runs are replayed at it"
        }
    )
    status = fields.OneOf(*map(str, DeploymentStatus))
    deployment_type = DeploymentType()
    deployment_ids = fields.QueryList(fields.UuidField(), max_items=1000)
    image_version = fields.StrictString()
    tag_value_ids = fields.StrictString()
    agent_id = fields.StrictString()
    agent_environment = fields.OneOf(*ENVIRONMENTS)
    remote_reconciled = fields.QueryBoolean()


class DeploymentDelete(fields.Schema):
    delete_tracing_project = fields.QueryBoolean(load_default=False)


class DeploymentsDelete(DeploymentDelete):
    deployment_ids = fields.QueryList(fields.UuidField(), max_items=100, required=True)


@bp.operation(
    "POST /v2/deployments",
    "Create a deployment",
    role="deploy",
    answer=DEPLOYMENT.schema,
    body=DeploymentCreate,
    status=201,
    errors=(400, 409),
    idempotent=True,
)
def create_deployment(body: dict[str, Any]) -> Response:
    """Create a deployment and its first revision. From a repository, the revision is built at once.

    Otherwise the revision waits for its source: request an upload URL, PUT an archive there, and send its `object_path`
    in a PATCH of the deployment.
    """
    _require_one_name(body)
    refuse_unsupported(body, source=body["source"])
    require_repository(body)
    config = body.get("source_config") or {}
    if config.get("custom_url"):
        raise Invalid(
            "custom_url is set by this service.", loc=("body", "source_config", "custom_url"), status=400
        )
    _check_webhooks(body, rules={}, name=body.get("name") or "")
    with connection() as conn:
        keep = once(conn)
        deployment_id = deployments.create(
            conn,
            caller().organization_id,
            name=body.get("name"),
            source=body["source"],
            source_config={**config, "deployment_type": config.get("deployment_type") or DEFAULT_TYPE},
            revision_config=body.get("source_revision_config") or {},
            secrets=body.get("secrets") or (),
            agent=body.get("agent"),
            pool=body.get("pool") or "default",
            limit_changes=body.get("limits"),
            inbox=body.get("inbox"),
            by=actor(conn),
        )
        transitions = deployments.begin(conn, deployment_id)
        row = deployments.get(conn, caller().organization_id, deployment_id)
        record_action(conn, Action.DEPLOYMENT_CREATED, row["name"], deployment_id=deployment_id)
        answer = keep(jsonify(deployment_record(row)), 201)
    revision_events.announce(transitions)
    return answer


def _check_webhooks(body: dict[str, Any], *, rules: Mapping[str, Any], name: str) -> None:
    """Raise Invalid if a webhook of `inbox` or `limits` may not be called by the deployment's rules for webhooks."""
    url_of = partial(webhooks.deployment_url, settings().url, name)
    for field, webhook in (("inbox", "webhook"), ("limits", WEBHOOK)):
        check_webhook((body.get(field) or {}).get(webhook), ("body", field, webhook), rules, url_of)


def _require_one_name(body: dict[str, Any]) -> None:
    if not body.get("name") and not body.get("agent"):
        raise Invalid("this field is required", loc=("body", "name"), kind="missing")
    if body.get("name") and body.get("agent"):
        raise Invalid("must not be given with agent: the service chooses the name", loc=("body", "name"))


@bp.operation(
    "GET /v2/deployments",
    "List deployments, newest first",
    role="read",
    answer=resource_page_schema(DEPLOYMENT.schema),
    query=DeploymentSearch,
)
def list_deployments(query: dict[str, Any]) -> Response:
    """List the deployments that match every filter. Empty filters are ignored."""
    query = {name: value for name, value in query.items() if value != []}
    limit, offset = query.pop("limit"), query.pop("offset")
    query.pop("remote_reconciled", None)  # accepted and ignored: this service reconciles nothing
    with connection() as conn:
        rows = deployments.search(conn, caller().organization_id, filters=query, limit=limit, offset=offset)
    return resource_page([deployment_record(row) for row in rows], offset=offset)


@bp.operation(
    "DELETE /v2/deployments",
    "Delete deployments",
    role="deploy",
    slow=True,
    answer=DELETED,
    also=(207,),
    query=DeploymentsDelete,
)
def delete_deployments(query: dict[str, Any]) -> tuple[Response, int]:
    """Delete several deployments. Answers 200 if all were deleted, else 207: `failed` lists the others and why."""
    deleted: list[UUID] = []
    failed: list[dict[str, Any]] = []
    for deployment_id in dict.fromkeys(query["deployment_ids"]):
        try:
            _delete(deployment_id)
        except NotFound as error:
            failed.append({"id": deployment_id, "detail": error.message})
        else:
            deleted.append(deployment_id)
    return jsonify(deleted=deleted, failed=failed), 207 if failed else 200


@bp.operation(
    "GET /v2/deployments/<deployment_id>",
    "Get a deployment",
    role="read",
    answer=DEPLOYMENT.schema,
    errors=(304, 404),
)
def get_deployment(deployment_id: UUID) -> Response:
    """Return a deployment. A deleted one is returned with status AWAITING_DELETE until nothing is left of it.

    Answers 304 if If-None-Match holds the record's ETag.
    """
    with connection() as conn:
        row = deployments.get(conn, caller().organization_id, deployment_id)
    return conditional(deployment_record(row))


@bp.operation(
    "PATCH /v2/deployments/<deployment_id>",
    "Update a deployment",
    role="deploy",
    answer=DEPLOYMENT.schema,
    body=DeploymentPatch,
    errors=(400, 404, 409),
    idempotent=True,
)
def change_deployment(deployment_id: UUID, body: dict[str, Any]) -> Response:
    """Change a deployment. A source, its configuration, secrets or a resource_spec create a new revision.

    The new revision is the latest one at once. Fields that are null or empty stay unchanged. `secrets` replaces the
    whole set; `secret_changes` sets single secrets, or removes those whose value is null. `traffic` splits new runs,
    by thread, over deployed revisions. The percentages add up to 100. `require_replay` is the deployment's setting
    from this request on, also for its source and `traffic`. `inbox` replaces the rules for questions; null restores
    those of langgraph.json.
    """
    new_split = [Share(**share) for share in body.get("traffic") or ()]
    if body.get("inbox") or (body.get("limits") or {}).get(WEBHOOK):
        with connection() as conn:
            row = deployments.get(conn, caller().organization_id, deployment_id)
            rules = webhooks.rules_of(conn, row["active_revision_id"])
        _check_webhooks(body, rules=rules, name=row["name"])
    with connection() as conn:
        keep = once(conn)
        change = change_of(conn, deployment_id, body)
        _, transitions = deployments.change(
            conn, caller().organization_id, deployment_id, change, by=actor(conn)
        )
        exempt: list[int] = []
        if body.get("traffic") is not None:
            exempt = traffic.split(
                conn,
                caller().organization_id,
                deployment_id,
                new_split,
                require_replay=body["traffic_requires_replay"],
            )
        row = deployments.get(conn, caller().organization_id, deployment_id)
        _record_changes(conn, row, body, without_replay=exempt)
        response = keep(jsonify(deployment_record(row)))
    revision_events.announce(transitions)
    for share in new_split:
        if share.percent:
            calls.announce(share.revision_id, row["pool"])
    return response


def _record_changes(
    conn: Connection, row: Row, body: Mapping[str, Any], *, without_replay: Sequence[int]
) -> None:
    """Record a new split of the traffic, and the changed settings. The end of a revision is recorded when it is built.

    `without_replay` are numbers of revisions that a required replay exempted.
    """
    if body.get("traffic") is not None:
        record_action(
            conn,
            Action.TRAFFIC_SPLIT,
            row["name"],
            deployment_id=row["id"],
            traffic=DEPLOYMENT.show(row)["traffic"],
            without_replay=without_replay or None,
        )
    settings_changed = sorted(name for name in SETTINGS if name in body)
    if settings_changed:
        record_action(
            conn, Action.DEPLOYMENT_CHANGED, row["name"], deployment_id=row["id"], fields=settings_changed
        )


def change_of(conn: Connection, deployment_id: UUID, body: dict[str, Any]) -> Change:
    """Return the change that a request body describes. Raises NotFound, and Invalid (400) for unsupported changes."""
    refuse_unsupported(body, source=body.get("revision_source"))
    current = deployment_record(deployments.get(conn, caller().organization_id, deployment_id))
    return Change(
        display_name=body.get("display_name"),
        source=body.get("revision_source"),
        source_config=changeable_config(body.get("source_config"), current["source_config"]),
        revision_config=body.get("source_revision_config") or {},
        secrets=body.get("secrets") or (),
        secret_changes={item["name"]: item["value"] for item in body.get("secret_changes") or ()},
        tracked_packages=body.get("tracked_packages") or (),
        pool=body.get("pool"),
        limits=body.get("limits") or {},
        require_replay=body.get("require_replay"),
        changes_inbox="inbox" in body,
        inbox=body.get("inbox"),
    )


@bp.operation(
    "DELETE /v2/deployments/<deployment_id>",
    "Delete a deployment",
    role="deploy",
    slow=True,
    query=DeploymentDelete,
    status=204,
    errors=(404,),
)
def delete_deployment(deployment_id: UUID) -> None:
    """Delete a deployment. It leaves the lists and its name becomes free at once. Its runs are cancelled."""
    load_query(DeploymentDelete)
    _delete(deployment_id)


def _delete(deployment_id: UUID) -> None:
    with connection() as conn:
        name = deployments.get(conn, caller().organization_id, deployment_id)["name"]
        transitions = deletion.delete(conn, caller().organization_id, deployment_id)
        record_action(conn, Action.DEPLOYMENT_DELETED, name, deployment_id=deployment_id)
    forget(deployment_id)
    revision_events.announce(transitions)
    _cancel_runs(deployment_id)


def _cancel_runs(deployment_id: UUID) -> None:
    """Cancel runs within the request, so that clients and runners notice soon. Upkeep cancels the remaining runs."""
    for _ in range(CANCELLED_BATCHES):
        with connection() as conn:
            stopped = deletion.stop_runs(conn, deployment_id)
        if not stopped:
            return
        signals.publish_cancels(stopped, settings().event_retention_seconds)


def deployment_record(row: Row) -> dict[str, Any]:
    """Return a deployment's record, with its URL as `custom_url` once a revision serves."""
    address = deployment_address(settings(), base_url(), row["name"], row["mount_prefix"])
    custom_url = None if row["active_revision_id"] is None else address
    return {**DEPLOYMENT.show(row), "source_config": {**row["source_config"], "custom_url": custom_url}}
