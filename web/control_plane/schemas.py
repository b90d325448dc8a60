"""JSON Schemas of the records that the control plane returns."""

from __future__ import annotations

from shared import fleet
from shared.access.api_keys import ROLES
from shared.deployments.logs import LEVELS
from shared.models import DeploymentStatus, RevisionStatus
from shared.records import (
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
    ID,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    JsonSchema,
    listed,
    mapped,
    one_of,
    or_null,
    record,
)
from web.control_plane.sources import ENVIRONMENTS, SOURCES


def page(item: JsonSchema) -> JsonSchema:
    """Return the schema of a page of a list. `offset` is the offset of the next page."""
    return record(f"{item['title']}Page", resources=listed(item), offset=COUNT)


SOURCE = one_of(*SOURCES)
NUMBER: JsonSchema = {
    "type": "integer",
    "minimum": 1,
    "description": "Number of the revision within its deployment, from 1",
}
REVISION_STATUS: JsonSchema = {"title": "RevisionStatus", **one_of(*RevisionStatus)}
SECRET = record("MaskedSecret", name=TEXT, value=TEXT)

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
REVISION = record(
    "Revision",
    id=ID,
    number=NUMBER,
    created_at=TIME,
    updated_at=TIME,
    status=REVISION_STATUS,
    status_message=TEXT_OR_NULL,
    source=SOURCE,
    source_revision_config=OBJECT,
    created_by=or_null(record(key_id=TEXT, name=TEXT)),
    changes=CHANGES,
    preview=TEXT_OR_NULL,
)
PREVIEW = record(
    "Preview",
    name=TEXT,
    url=TEXT_OR_NULL,
    revision_id=ID_OR_NULL,
    revision_number=COUNT_OR_NULL,
    latest_revision_id=ID_OR_NULL,
    latest_revision_status=or_null(REVISION_STATUS),
    created_at=TIME,
    updated_at=TIME,
)
SHARE = record(
    "RevisionShare",
    revision_id=ID,
    revision_number=NUMBER,
    percent={"type": "integer", "minimum": 1, "maximum": 100},
)

LIMITS = record(
    "DeploymentLimits",
    max_concurrent_runs=COUNT_OR_NULL,
    hosts_per_runner=COUNT_OR_NULL,
    run_timeout_seconds={"type": ["number", "null"], "minimum": 0},
    memory_mb=COUNT_OR_NULL,
    max_tokens_per_day=COUNT_OR_NULL,
    max_run_tokens=COUNT_OR_NULL,
)

DEPLOYMENT = record(
    "Deployment",
    id=ID,
    tenant_id=ID,
    name=TEXT,
    display_name=TEXT_OR_NULL,
    source=SOURCE,
    source_config=OBJECT,
    source_revision_config=OBJECT,
    secrets=listed(SECRET),
    secret_references=listed(OBJECT),
    status=one_of(*DeploymentStatus),
    latest_revision_id=ID_OR_NULL,
    latest_revision_number=COUNT_OR_NULL,
    latest_revision_status=or_null(REVISION_STATUS),
    active_revision_id=ID_OR_NULL,
    active_revision_number=COUNT_OR_NULL,
    traffic=listed(SHARE),
    image_version=TEXT_OR_NULL,
    is_preview=BOOLEAN,
    is_managed_deep_agent=BOOLEAN,
    agent=or_null(record(agent_id=TEXT, environment=one_of(*ENVIRONMENTS))),
    pool=TEXT,
    limits=LIMITS,
    created_at=TIME,
    updated_at=TIME,
)

REFUSED_DELETE = record(id=ID, detail=TEXT)
DELETED = record("DeletedDeployments", deleted=listed(ID), failed=listed(REFUSED_DELETE))

UPLOAD_PLACE = record(
    "UploadPlace",
    ("upload_headers",),
    upload_url={"type": "string", "format": "uri"},
    object_path=TEXT,
    upload_headers=mapped(TEXT),
)
UPLOADED = record("UploadedArchive", object_path=TEXT, sha256=TEXT, size=COUNT)

LOG_LINE = record(
    "LogLine",
    id=TEXT,
    timestamp={"type": "number", "description": "Milliseconds since 1970-01-01T00:00:00Z"},
    level=one_of(*LEVELS),
    message=TEXT,
    run_id=ID_OR_NULL,
)
LOG_LINES = record("LogLines", logs=listed(LOG_LINE), next_offset=TEXT_OR_NULL)

NOTHING_LISTED = record("EmptyPage", resources=listed(OBJECT, max_items=0), offset=COUNT)
NOTHING = listed(OBJECT, max_items=0)

ORGANIZATION = record("Organization", id=ID, name=TEXT, created_at=TIME)
API_KEY = record(
    "ApiKey",
    id=TEXT,
    name=TEXT,
    role=one_of(*ROLES),
    created_at=TIME,
    expires_at=TIME_OR_NULL,
    revoked_at=TIME_OR_NULL,
    last_used_at=TIME_OR_NULL,
    max_concurrent_runs=COUNT_OR_NULL,
    max_tokens_per_day=COUNT_OR_NULL,
    max_run_tokens=COUNT_OR_NULL,
)
ME = record(
    "Me",
    role=one_of(*ROLES),
    organization=record(id=ID, name=TEXT),
    key=or_null(record(id=TEXT, name=TEXT)),
    version=TEXT,
    dev=BOOLEAN,
)
NEW_API_KEY = record("NewApiKey", **API_KEY["properties"], key=TEXT)

SECONDS: JsonSchema = {"type": "number", "minimum": 0}
GRAPH_HOST = record(
    "GraphHost",
    revision_id=ID,
    revision_number=COUNT,
    deployment_id=ID,
    deployment=TEXT,
    pid=COUNT,
    runs=COUNT,
    memory_mb=COUNT,
    memory_limit_mb=COUNT,
    age_seconds=SECONDS,
    idle_seconds=SECONDS,
    is_healthy=BOOLEAN,
)
WORKER = record(
    "Worker",
    id=TEXT,
    kind=one_of("runner", "builder"),
    pool=TEXT_OR_NULL,
    host_name=TEXT,
    pid=COUNT,
    version=TEXT,
    isolation={"type": "integer", "enum": [0, 1, 2]},
    bounds_tasks=BOOLEAN,
    bounds_memory=BOOLEAN,
    state=one_of(*fleet.STATES),
    slots=COUNT,
    running=COUNT,
    ended_a_minute=COUNT,
    heard_seconds=SECONDS,
    silent_seconds=SECONDS,
    host_count=COUNT,
    hosts=listed(GRAPH_HOST),
    started_at=TIME,
    seen_at=TIME,
)
WORKER_POOL = record(
    "Pool",
    name=TEXT,
    runners=COUNT,
    draining=COUNT,
    silent=COUNT,
    slots=COUNT,
    hosts=COUNT,
    running=COUNT,
    pending=COUNT,
    oldest_wait_seconds=SECONDS,
    ended_a_minute=COUNT,
)
WORKERS = record("Workers", workers=listed(WORKER), pools=listed(WORKER_POOL))
