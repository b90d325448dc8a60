"""Records of deployments and revisions."""

from __future__ import annotations

from typing import Any

from shared.deployments import limits
from shared.deployments.project_rules import EXPIRY_ACTIONS
from shared.figures import budgets
from shared.infra.encryption import MASK
from shared.infra.postgres import Row
from shared.models import DeploymentStatus, RevisionStatus, status_of_deployment
from shared.records import (
    ANYTHING,
    BOOLEAN,
    COUNT_OR_NULL,
    ID,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    JsonSchema,
    Record,
    RecordField,
    listed,
    one_of,
    or_null,
    record,
)

SOURCES = ("github", "external_docker", "internal_docker", "internal_source", "internal_template")
ENVIRONMENTS = ("development", "staging", "production")

SOURCE = one_of(*SOURCES)
REVISION_STATUS: JsonSchema = {"title": "RevisionStatus", **one_of(*RevisionStatus)}
NUMBER: JsonSchema = {
    "type": "integer",
    "minimum": 1,
    "description": "Number of the revision within its deployment, from 1",
}
SHARE = record(
    "RevisionShare",
    revision_id=ID,
    revision_number=NUMBER,
    percent={"type": "integer", "minimum": 1, "maximum": 100},
)
SECRET = record("MaskedSecret", name=TEXT, value=TEXT)
AGENT = record(agent_id=TEXT, environment=one_of(*ENVIRONMENTS))
SECONDS: JsonSchema = {"type": "number", "exclusiveMinimum": 0}
ON_EXPIRY = record("QuestionExpiry", ("answer",), action=one_of(*EXPIRY_ACTIONS), answer=ANYTHING)
INBOX_RULES = record(
    "DeploymentInbox",
    ("webhook", "remind_after_seconds", "expire_after_seconds", "on_expiry"),
    webhook=TEXT,
    remind_after_seconds=SECONDS,
    expire_after_seconds=SECONDS,
    on_expiry=ON_EXPIRY,
)
# What its runs have used today (UTC), if it has a budget of the day, and models that budgets in dollars count as 0.
USED_TODAY = record(
    "UsedToday", tokens=COUNT_OR_NULL, cost=budgets.AMOUNT_OR_NULL, unpriced_models=listed(TEXT)
)
COMMIT_MESSAGE = "commit_message"
NAMES_OR_NULL = or_null(listed(TEXT))
CHANGES = record(
    "RevisionChanges",
    source=record(
        archive_digest=TEXT_OR_NULL,
        repo_url=TEXT_OR_NULL,
        repo_ref=TEXT_OR_NULL,
        repo_commit_sha=TEXT_OR_NULL,
        commit_message=TEXT_OR_NULL,
    ),
    redeployed_number=COUNT_OR_NULL,
    variables_set=NAMES_OR_NULL,
    variables_unset=NAMES_OR_NULL,
)


def _agent(row: Row) -> dict[str, Any] | None:
    return {"agent_id": row["agent_id"], "environment": row["agent_environment"]} if row["agent_id"] else None


def _secrets(row: Row) -> list[dict[str, Any]]:
    return [{"name": name, "value": MASK} for name in row["secret_names"]]


def _traffic(row: Row) -> list[dict[str, Any]]:
    """Return the revisions that new runs get, each with its percentage of threads."""
    if row["traffic"] is not None:
        return list(row["traffic"])
    if row["active_revision_id"] is None:
        return []
    number = row["active_revision_number"]
    return [{"revision_id": row["active_revision_id"], "revision_number": number, "percent": 100}]


def _changes(row: Row) -> dict[str, Any]:
    """Return a revision's changes as in the API. The variables are None for revisions without a record."""
    changes = row["changes"] or {}
    config = row["source_revision_config"]
    return {
        "source": {
            "archive_digest": row["archive_digest"],
            "repo_url": row["repo_url"],
            "repo_ref": config.get("repo_ref"),
            "repo_commit_sha": config.get("repo_commit_sha"),
            COMMIT_MESSAGE: changes.get(COMMIT_MESSAGE),
        },
        "redeployed_number": changes.get("redeployed_number"),
        "variables_set": changes.get("variables_set"),
        "variables_unset": changes.get("variables_unset"),
    }


# Reads `deployment d LEFT JOIN revision r`, where `r` is the latest revision.
DEPLOYMENT = Record(
    "Deployment",
    {
        "id": RecordField(ID),
        "tenant_id": RecordField(ID, ("organization_id",)),
        "name": RecordField(TEXT),
        "display_name": RecordField(TEXT_OR_NULL),
        "source": RecordField(SOURCE),
        "source_config": RecordField(OBJECT),
        "source_revision_config": RecordField(OBJECT, value=lambda row: row["source_revision_config"] or {}),
        "secrets": RecordField(listed(SECRET), ("secret_names",), _secrets),
        "secret_references": RecordField(listed(OBJECT), (), lambda row: []),
        "status": RecordField(one_of(*DeploymentStatus)),
        "latest_revision_id": RecordField(ID_OR_NULL),
        "latest_revision_number": RecordField(COUNT_OR_NULL),
        "latest_revision_status": RecordField(or_null(REVISION_STATUS)),
        "active_revision_id": RecordField(ID_OR_NULL),
        "active_revision_number": RecordField(COUNT_OR_NULL),
        "traffic": RecordField(
            listed(SHARE), ("traffic", "active_revision_id", "active_revision_number"), _traffic
        ),
        # The lowest role of a key that the deployment's API accepts. None: it accepts no keys, or no revision serves.
        "least_key_role": RecordField(or_null(one_of("read", "run"))),
        "image_version": RecordField(TEXT_OR_NULL, (), lambda row: None),
        "is_preview": RecordField(BOOLEAN, (), lambda row: False),
        "is_managed_deep_agent": RecordField(BOOLEAN, (), lambda row: False),
        "agent": RecordField(or_null(AGENT), ("agent_id", "agent_environment"), _agent),
        "pool": RecordField(TEXT),
        "limits": RecordField(limits.RECORD.schema, limits.RECORD.columns, limits.RECORD.show),
        "used_today": RecordField(USED_TODAY),
        "inbox": RecordField(or_null(INBOX_RULES)),
        "require_replay": RecordField(BOOLEAN),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
    table="d",
    internal=["mount_prefix"],
    expressions={
        "source_revision_config": "r.source_revision_config",
        "status": status_of_deployment("d"),
        "latest_revision_number": "r.number",
        "latest_revision_status": "r.status",
        "active_revision_number": "(SELECT a.number FROM revision a WHERE a.id = d.active_revision_id)",
        "traffic": """CASE WHEN d.traffic IS NOT NULL THEN (
            SELECT json_agg(json_build_object('revision_id', o.id, 'revision_number', o.number,
                                              'percent', share.percent) ORDER BY o.number)
            FROM jsonb_to_recordset(d.traffic) AS share(revision_id uuid, percent integer)
            JOIN revision o ON o.id = share.revision_id) END""",
        "used_today": """(SELECT json_build_object('tokens', max(s.tokens), 'cost', max(s.cost), 'unpriced_models', (
                SELECT coalesce(json_agg(a.name ORDER BY a.name), '[]') FROM budget_alert a
                WHERE a.kind = 'deployment' AND a.id = CAST(d.id AS text) AND a.day = utc_date(now()) AND a.percent = 0))
            FROM spent_tokens s
            WHERE s.kind = 'deployment' AND s.id = CAST(d.id AS text) AND s.day = utc_date(now()))""",
        "least_key_role": """(SELECT CASE WHEN a.user_code ->> 'auth' IS NULL THEN 'read'
            WHEN a.user_code -> 'auth' ->> 'disable_studio_auth' = 'true' THEN NULL ELSE 'run' END
            FROM revision a WHERE a.id = d.active_revision_id)""",
        "mount_prefix": "(SELECT a.manifest -> 'http' ->> 'mount_prefix' FROM revision a"
        " WHERE a.id = d.active_revision_id)",
        "secret_names": "coalesce((SELECT json_agg(s.name ORDER BY s.name) FROM secret s"
        " WHERE s.revision_id = r.id), '[]')",
    },
)

REVISION = Record(
    "Revision",
    {
        "id": RecordField(ID),
        "number": RecordField(NUMBER),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
        "status": RecordField(REVISION_STATUS),
        "status_message": RecordField(TEXT_OR_NULL),
        "source": RecordField(SOURCE),
        "source_revision_config": RecordField(
            OBJECT, value=lambda row: {"tracked_packages": [], **row["source_revision_config"]}
        ),
        "created_by": RecordField(or_null(record(key_id=TEXT, name=TEXT))),
        "changes": RecordField(
            CHANGES,
            ("changes", "source_revision_config", "archive_digest", "repo_url"),
            _changes,
        ),
        "preview": RecordField(TEXT_OR_NULL),
    },
    table="r",
    expressions={
        "repo_url": "(SELECT d.source_config ->> 'repo_url' FROM deployment d WHERE d.id = r.deployment_id)"
    },
)

PREVIEW = Record(
    "Preview",
    {
        "name": RecordField(TEXT),
        # web sets it, because the address depends on the request
        "url": RecordField(TEXT_OR_NULL, (), lambda row: None),
        "revision_id": RecordField(ID_OR_NULL),
        "revision_number": RecordField(COUNT_OR_NULL),
        "latest_revision_id": RecordField(ID_OR_NULL),
        "latest_revision_status": RecordField(or_null(REVISION_STATUS)),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
    table="p",
    internal=["mount_prefix"],
    expressions={
        "revision_number": "r.number",
        "latest_revision_id": "n.id",
        "latest_revision_status": "n.status",
        "mount_prefix": "r.manifest -> 'http' ->> 'mount_prefix'",
    },
)
