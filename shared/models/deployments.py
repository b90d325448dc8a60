"""Deployments, revisions, previews and secrets, the source archives of revisions, their graphs and their log lines."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Numeric,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key

DEPLOYMENT = Table(
    "deployment",
    METADATA,
    column("id", Uuid, primary_key=True),
    column("organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE")),
    column("name", Text),
    column("display_name", Text, nullable=True),
    column("source", Text),
    column("source_config", JSON, server_default=EMPTY),
    column("status", Text),
    column("pool", Text, server_default="default"),
    # limits; NULL: the default of the runners' settings. See shared/deployments/limits.py
    column("max_concurrent_runs", BigInteger, nullable=True),
    column("hosts_per_runner", BigInteger, nullable=True),
    column("run_timeout_seconds", Double, nullable=True),
    column("memory_mb", BigInteger, nullable=True),
    # budgets of its runs, users and threads, in tokens and US dollars: see shared/figures/budgets.py
    column("max_tokens_per_day", BigInteger, nullable=True),
    column("max_run_tokens", BigInteger, nullable=True),
    column("max_cost_per_day", Numeric, nullable=True),
    column("max_run_cost", Numeric, nullable=True),
    column("max_user_tokens_per_day", BigInteger, nullable=True),
    column("max_user_cost_per_day", Numeric, nullable=True),
    column("max_thread_tokens_per_day", BigInteger, nullable=True),
    column("max_thread_cost_per_day", Numeric, nullable=True),
    column("budget_webhook", Text, nullable=True),
    column("agent_id", Text, nullable=True),
    column("agent_environment", Text, nullable=True),
    column("latest_revision_id", Uuid, nullable=True),
    column("active_revision_id", Uuid, nullable=True),
    # revisions and their shares of new runs; NULL: the active revision gets all. See shared/deployments/shares.py
    column("traffic", JSONB(none_as_null=True), nullable=True),
    # last change of the revisions that get traffic or have a preview
    column("traffic_at", TIME, nullable=True),
    # whether a revision gets traffic only after a replay passed: see shared/deployments/traffic.py
    column("require_replay", Boolean, server_default="false"),
    # rules for questions to people, in place of those of the revision's langgraph.json: see shared/inbox
    column("inbox", JSONB(none_as_null=True), nullable=True),
    # the deployment whose past runs are replayed at this hidden one: see shared/replays/benches.py
    column("replay_of", Uuid, ForeignKey("deployment.id", ondelete="CASCADE"), nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    column("deleted_at", TIME, nullable=True),
    Index(
        "ix_deployment_created_at",
        "organization_id",
        "created_at",
        postgresql_where=text("deleted_at IS NULL AND replay_of IS NULL"),
    ),
    Index(
        "uq_deployment_organization_id_name",
        "organization_id",
        "name",
        unique=True,
        postgresql_where=text("deleted_at IS NULL"),
    ),
    Index(
        "uq_deployment_organization_id_agent",
        "organization_id",
        "agent_id",
        "agent_environment",
        unique=True,
        postgresql_where=text("deleted_at IS NULL AND agent_id IS NOT NULL"),
    ),
    Index("ix_deployment_replay_of", "replay_of", postgresql_where=text("replay_of IS NOT NULL")),
    Index(
        "ix_deployment_active_bench",
        "id",
        postgresql_where=text("replay_of IS NOT NULL AND max_concurrent_runs IS NOT NULL"),
    ),
    Index("ix_deployment_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
)


# A build of a deployment. `archive_digest` is set when its source has been uploaded.
REVISION = Table(
    "revision",
    METADATA,
    column("id", Uuid, primary_key=True),
    deployment_key(),
    column("number", BigInteger),  # 1, 2, 3 … within the deployment
    column("status", Text),
    column("status_message", Text, nullable=True),
    column("source", Text),
    column("source_revision_config", JSON, server_default=EMPTY),
    column("archive_digest", Text, nullable=True),
    column("python_version", Text, nullable=True),
    column("requirements", Text, nullable=True),  # resolved requirements, one `name==version` per line
    column("manifest", JSON, nullable=True),  # the content of langgraph.json
    # the project's authorization and routes, found by the build: see shared/deployments/user_code.py
    column("user_code", JSON(none_as_null=True), nullable=True),
    # the key that created it, and the variables it set or unset: see shared/deployments/next_revision.py
    column("created_by", JSON(none_as_null=True), nullable=True),
    column("changes", JSON(none_as_null=True), nullable=True),
    column("preview", Text, nullable=True),  # the preview it was created for; NULL: it is to serve
    column("build_id", Uuid, nullable=True),  # another revision whose build it uses
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    # claim and lease of the builder: see shared/deployments/revisions.py
    column("attempt", BigInteger, server_default="0"),
    column("owner", Text, nullable=True),
    column("lease_until", TIME, nullable=True),
    column("not_before", TIME, nullable=True),
    column("notified_at", TIME, nullable=True),  # last notification of builders
    column("notifications", BigInteger, server_default="0"),  # repeated ones, without effect so far
    column("seq_reserved", BigInteger, server_default="0"),  # event numbers up to this one are reserved
    Index("uq_revision_deployment_id_number", "deployment_id", "number", unique=True),
    Index("ix_revision_status", "status", "lease_until"),
)


# A name under which a revision has a separate address. `revision_id` is NULL until its first revision is built.
PREVIEW = Table(
    "preview",
    METADATA,
    deployment_key(primary=True),
    column("name", Text, primary_key=True),
    column("revision_id", Uuid, ForeignKey("revision.id", ondelete="CASCADE"), index=True, nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
)


# An environment variable of a revision; `value` is encrypted (shared/infra/encryption.py).
SECRET = Table(
    "secret",
    METADATA,
    column("revision_id", Uuid, ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True),
    column("name", Text, primary_key=True),
    column("value", LargeBinary),
)


# A path to which the holder of the token may upload an archive once.
UPLOAD = Table(
    "upload",
    METADATA,
    column("object_path", Text, primary_key=True),
    deployment_key(),
    column("token_hash", LargeBinary),
    column("expires_at", TIME),
    column("digest", Text, nullable=True),  # set when the upload is complete
    column("created_at", TIME, server_default=NOW),
)


# An uploaded source archive. `digest` is its SHA-256, and the bytes are in `archive_chunk`.
ARCHIVE = Table(
    "archive",
    METADATA,
    column("digest", Text, primary_key=True),
    column("size", BigInteger),
    column("created_at", TIME, server_default=NOW),
)


ARCHIVE_CHUNK = Table(
    "archive_chunk",
    METADATA,
    column("digest", Text, ForeignKey("archive.digest", ondelete="CASCADE"), primary_key=True),
    column("n", BigInteger, primary_key=True),
    column("data", LargeBinary),
)


# The drawings and schemas of a revision's graph, extracted once by the build.
GRAPH = Table(
    "graph",
    METADATA,
    column("revision_id", Uuid, ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True),
    column("graph_id", Text, primary_key=True),
    column("description", Text, nullable=True),
    column("drawings", JSON),  # xray depth ("0", "1", … "all") → drawing
    column("schemas", JSON),  # the six schemas that the API returns
    column("subgraphs", JSON),  # namespace → schemas, all depths
)


# A file of a revision's components of generative UI, compressed with gzip.
COMPONENT_BUNDLE = Table(
    "component_bundle",
    METADATA,
    column("revision_id", Uuid, ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True),
    column("name", Text, primary_key=True),  # of the set
    column("kind", Text, primary_key=True),  # "js" or "css"
    column("digest", Text),  # the file's name in addresses
    column("content", LargeBinary),
)


# A line of a revision's build log or of its deployment's log.
LOG_LINE = Table(
    "log_line",
    METADATA,
    column("id", BigInteger, Identity(), primary_key=True),
    deployment_key(),
    column("revision_id", Uuid, nullable=True),
    column("run_id", Uuid, nullable=True),
    column("kind", Text),  # build or deploy
    column("at", TIME, server_default=func.clock_timestamp()),
    column("level", Text),
    column("message", Text),
    Index("ix_log_line_deployment_id_kind_at", "deployment_id", "kind", "at", "id"),
    Index("ix_log_line_revision_id_kind_at", "revision_id", "kind", "at", "id"),
    Index("ix_log_line_run_id", "run_id", "at", "id", postgresql_where=text("run_id IS NOT NULL")),
)
