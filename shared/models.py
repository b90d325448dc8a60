"""Every table and status word of the service, in one scroll.

Columns that hold what users sent and nobody queries are `json` (kept as sent); what is searched is
`jsonb`. Everything below a deployment carries its `deployment_id`.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        str: Text,
        int: BigInteger,
    }


class RevisionStatus(enum.StrEnum):
    CREATING = "CREATING"
    QUEUED = "QUEUED"
    AWAITING_BUILD = "AWAITING_BUILD"
    BUILDING = "BUILDING"
    AWAITING_DEPLOY = "AWAITING_DEPLOY"
    DEPLOYING = "DEPLOYING"
    DEPLOYED = "DEPLOYED"
    CREATE_FAILED = "CREATE_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    SKIPPED = "SKIPPED"
    INTERRUPTED = "INTERRUPTED"
    UNKNOWN = "UNKNOWN"


REVISION_ENDS = frozenset(
    {
        RevisionStatus.DEPLOYED,
        RevisionStatus.CREATE_FAILED,
        RevisionStatus.BUILD_FAILED,
        RevisionStatus.DEPLOY_FAILED,
        RevisionStatus.SKIPPED,
        RevisionStatus.INTERRUPTED,
    }
)


class DeploymentStatus(enum.StrEnum):
    AWAITING_DATABASE = "AWAITING_DATABASE"
    READY = "READY"
    UNUSED = "UNUSED"
    AWAITING_DELETE = "AWAITING_DELETE"
    AWAITING_FINAL_DELETE = "AWAITING_FINAL_DELETE"
    UNKNOWN = "UNKNOWN"


class RunStatus(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


class ThreadStatus(enum.StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


NOW = func.now()
EMPTY = text("'{}'")


def _deployment_key(*, primary: bool = False) -> Mapped[UUID]:
    return mapped_column(ForeignKey("deployment.id", ondelete="CASCADE"), primary_key=primary)


class Organization(Base):
    __tablename__ = "organization"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
        Index("uq_organization_name", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )


class ApiKey(Base):
    """`id` is the public part of the key; of the rest only a SHA-256 is kept."""

    __tablename__ = "api_key"
    id: Mapped[str] = mapped_column(String(8), primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    name: Mapped[str]
    role: Mapped[str] = mapped_column(server_default="admin")
    secret_hash: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    max_concurrent_runs: Mapped[int | None]  # of the runs it creates; see shared/key_limits.py

    __table_args__ = (
        Index("ix_api_key_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
    )


class IdempotentAnswer(Base):
    """What a request under an Idempotency-Key was answered (shared/idempotency.py); `answer` is encrypted."""

    __tablename__ = "idempotent_answer"
    id: Mapped[bytes] = mapped_column(primary_key=True)  # SHA-256 of whose key it is, and the key
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    digest: Mapped[bytes]  # SHA-256 of the request
    answer: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("ix_idempotent_answer_created_at", "created_at"),)


class OAuthProvider(Base):
    """Where users give consent, and who we are there; `client_secret` is encrypted."""

    __tablename__ = "oauth_provider"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_id: Mapped[str]  # its name within the organization, chosen by the caller
    name: Mapped[str]
    client_id: Mapped[str]
    client_secret: Mapped[bytes | None]
    auth_url: Mapped[str]
    token_url: Mapped[str]
    uses_pkce: Mapped[bool] = mapped_column(server_default="false")
    code_challenge_method: Mapped[str | None]
    provider_type: Mapped[str | None]
    token_endpoint_auth_method: Mapped[str]
    mcp_server_url: Mapped[str | None]
    is_dynamic_client: Mapped[bool] = mapped_column(server_default="false")
    issuer: Mapped[str | None]  # as discovery named it
    revocation_url: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("uq_oauth_provider_organization_id_provider_id", "organization_id", "provider_id", unique=True),
    )


def _provider_key() -> Mapped[UUID]:
    return mapped_column(ForeignKey("oauth_provider.id", ondelete="CASCADE"))


class OAuthGrant(Base):
    """What a user consented to: the tokens, encrypted. `agent_id` None: for all agents of the user."""

    __tablename__ = "oauth_grant"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_key: Mapped[UUID] = _provider_key()
    user_id: Mapped[str]
    agent_id: Mapped[str | None]
    requested: Mapped[list[str]] = mapped_column(JSON)
    scopes: Mapped[list[str]] = mapped_column(JSON)  # as granted
    access_token: Mapped[bytes]
    refresh_token: Mapped[bytes | None]
    expires_at: Mapped[datetime | None]
    refreshing_until: Mapped[datetime | None]  # somebody asks for new tokens now
    account_label: Mapped[str | None]
    is_default: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("ix_oauth_grant_provider_key_user_id", "provider_key", "user_id"),
        Index("ix_oauth_grant_organization_id", "organization_id"),
    )


class OAuthRequest(Base):
    """A consent that was asked for; its id is the `auth_id`. See the states in shared/grants.py."""

    __tablename__ = "oauth_request"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    provider_key: Mapped[UUID] = _provider_key()
    status: Mapped[str] = mapped_column(server_default="pending")
    state_hash: Mapped[bytes] = mapped_column(unique=True)  # SHA-256
    verifier: Mapped[bytes | None]  # of PKCE, encrypted
    redirect_uri: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSON)
    user_id: Mapped[str]
    agent_id: Mapped[str | None]
    is_default: Mapped[bool]
    is_another: Mapped[bool]  # consent for one more account, beside those there are
    grant_id: Mapped[UUID | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]

    __table_args__ = (Index("ix_oauth_request_expires_at", "expires_at"),)


class Deployment(Base):
    __tablename__ = "deployment"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    organization_id: Mapped[UUID] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    name: Mapped[str]
    display_name: Mapped[str | None]
    source: Mapped[str]
    source_config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    status: Mapped[DeploymentStatus] = mapped_column(Text)
    pool: Mapped[str] = mapped_column(server_default="default")
    # what it may take; NULL: what the runners' settings say. See shared/limits.py
    max_concurrent_runs: Mapped[int | None]
    hosts_per_runner: Mapped[int | None]
    run_timeout_seconds: Mapped[float | None] = mapped_column(Double)
    memory_mb: Mapped[int | None]
    agent_id: Mapped[str | None]
    agent_environment: Mapped[str | None]
    latest_revision_id: Mapped[UUID | None]
    active_revision_id: Mapped[UUID | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
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
        Index("ix_deployment_limited", "id", postgresql_where=text("max_concurrent_runs IS NOT NULL")),
    )


class Worker(Base):
    """A runner or builder process, by the name it has in leases; it says so itself every few seconds."""

    __tablename__ = "worker"
    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]  # runner or builder
    pool: Mapped[str | None]  # a runner's
    host_name: Mapped[str]
    pid: Mapped[int]
    version: Mapped[str]
    isolation: Mapped[int]
    state: Mapped[str]  # ready or draining
    slots: Mapped[int]
    running: Mapped[int]
    ended_a_minute: Mapped[int]
    heard_seconds: Mapped[float] = mapped_column(Double)  # since the last message came through
    hosts: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Revision(Base):
    """One build of a deployment. `archive_digest` is set once its source has been uploaded."""

    __tablename__ = "revision"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = _deployment_key()
    number: Mapped[int]  # 1, 2, 3 … within the deployment
    status: Mapped[RevisionStatus] = mapped_column(Text)
    status_message: Mapped[str | None]
    source: Mapped[str]
    source_revision_config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    archive_digest: Mapped[str | None]
    python_version: Mapped[str | None]
    requirements: Mapped[str | None]  # the resolved set, one `name==version` a line
    manifest: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # langgraph.json as it was read
    build_id: Mapped[UUID | None]  # the revision whose build it uses, when it is not its own
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    # who builds it; see reliability of the claim in shared/deployments.py
    attempt: Mapped[int] = mapped_column(server_default="0")
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    rung_at: Mapped[datetime | None]
    rings: Mapped[int] = mapped_column(server_default="0")
    seq_reserved: Mapped[int] = mapped_column(server_default="0")

    __table_args__ = (
        Index("uq_revision_deployment_id_number", "deployment_id", "number", unique=True),
        Index("ix_revision_status", "status", "lease_until"),
    )


class Secret(Base):
    """An environment variable of a revision; `value` is encrypted (shared/encryption.py)."""

    __tablename__ = "secret"
    revision_id: Mapped[UUID] = mapped_column(ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]


class Upload(Base):
    """A place an archive may be put once, by whoever holds the token."""

    __tablename__ = "upload"
    object_path: Mapped[str] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = _deployment_key()
    token_hash: Mapped[bytes]
    expires_at: Mapped[datetime]
    digest: Mapped[str | None]  # set when the archive has arrived whole
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Archive(Base):
    """An uploaded source archive by its SHA-256; the bytes are in `archive_chunk`."""

    __tablename__ = "archive"
    digest: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class ArchiveChunk(Base):
    __tablename__ = "archive_chunk"
    digest: Mapped[str] = mapped_column(ForeignKey("archive.digest", ondelete="CASCADE"), primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class Graph(Base):
    """What a revision's graph looks like, taken once when it was built."""

    __tablename__ = "graph"
    revision_id: Mapped[UUID] = mapped_column(ForeignKey("revision.id", ondelete="CASCADE"), primary_key=True)
    graph_id: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str | None]
    drawings: Mapped[dict[str, Any]] = mapped_column(JSON)  # xray depth ("0", "1", … "all") → drawing
    schemas: Mapped[dict[str, Any]] = mapped_column(JSON)  # the six schemas of the contract
    subgraphs: Mapped[dict[str, Any]] = mapped_column(JSON)  # namespace → schemas, all depths


class LogLine(Base):
    """A line of a revision's build log or of its deployment's log."""

    __tablename__ = "log_line"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    deployment_id: Mapped[UUID] = _deployment_key()
    revision_id: Mapped[UUID | None]
    run_id: Mapped[UUID | None]
    kind: Mapped[str]  # build or deploy
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    level: Mapped[str]
    message: Mapped[str]

    __table_args__ = (
        Index("ix_log_line_deployment_id_kind_at", "deployment_id", "kind", "at", "id"),
        Index("ix_log_line_revision_id_kind_at", "revision_id", "kind", "at", "id"),
    )


class Assistant(Base):
    """A named configuration of a graph; its content is in its versions."""

    __tablename__ = "assistant"
    deployment_id: Mapped[UUID] = _deployment_key(primary=True)
    assistant_id: Mapped[UUID] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(server_default="1")  # the active one
    last_version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class AssistantVersion(Base):
    __tablename__ = "assistant_version"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    assistant_id: Mapped[UUID] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    graph_id: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    context: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    name: Mapped[str]
    description: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            ondelete="CASCADE",
        ),
        Index("ix_assistant_version_metadata", "metadata", postgresql_using="gin"),
    )


class Thread(Base):
    """A conversation. `state` is its newest state as the API shows it, without `values`."""

    __tablename__ = "thread"
    deployment_id: Mapped[UUID] = _deployment_key(primary=True)
    thread_id: Mapped[UUID] = mapped_column(primary_key=True)
    status: Mapped[ThreadStatus] = mapped_column(Text, server_default=ThreadStatus.IDLE)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    config: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY)
    values: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    state: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    interrupts: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    # status and error when nothing is live: what the last run that ended made them; NULL: as the state says
    rest_status: Mapped[ThreadStatus | None] = mapped_column(Text)
    rest_error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    last_seq: Mapped[int] = mapped_column(server_default="0")  # created_seq of its newest run
    # how long after its last change it is deleted or thinned out: see shared/expiry.py
    ttl_minutes: Mapped[float | None] = mapped_column(Double)
    ttl_strategy: Mapped[str | None]
    swept_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    state_updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("ix_thread_updated_at", "deployment_id", "updated_at"),
        Index("ix_thread_created_at", "deployment_id", "created_at"),
        Index("ix_thread_ttl", "updated_at", postgresql_where=text("ttl_minutes IS NOT NULL")),
        Index("ix_thread_status", "deployment_id", "status", "updated_at"),
        Index(
            "ix_thread_metadata",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
        ),
    )


class Run(Base):
    """One execution of a graph. Everything it needs was frozen in when it was created."""

    __tablename__ = "run"
    run_id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID]
    thread_id: Mapped[UUID]
    assistant_id: Mapped[UUID]
    revision_id: Mapped[UUID]
    graph_id: Mapped[str]
    status: Mapped[RunStatus] = mapped_column(Text)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    # what its creation took from the thread's metadata, for a rollback; NULL: nothing
    metadata_before: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    input: Mapped[Any | None] = mapped_column(JSON)
    kwargs: Mapped[dict[str, Any]] = mapped_column(JSON)  # all but the input, as the API shows it
    multitask_strategy: Mapped[str] = mapped_column(server_default="enqueue")
    # stateless with on_completion=delete: thread and run go when it ends, checkpoints stay in memory
    temporary: Mapped[bool] = mapped_column(server_default="false")
    pool: Mapped[str]
    key_id: Mapped[str] = mapped_column(server_default="")  # of the API key it was created with, if any
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_seq: Mapped[int]  # order of creation within the thread
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    # who executes it: see shared/runs.py
    attempt: Mapped[int] = mapped_column(server_default="0")
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    timeout_seconds: Mapped[float | None] = mapped_column(Double)  # from its first claim; NULL: the setting
    deadline_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    rung_at: Mapped[datetime | None]
    rings: Mapped[int] = mapped_column(server_default="0")
    seq_reserved: Mapped[int] = mapped_column(server_default="0")
    cancel_requested: Mapped[str | None]  # interrupt or rollback
    cancel_reason: Mapped[str | None]
    deaths: Mapped[int] = mapped_column(server_default="0")  # attempts that were lost
    last_death: Mapped[str | None]  # how the host of the previous attempt died: the next gets its own
    idempotency_key: Mapped[str | None]
    webhook: Mapped[str | None]  # who is told of its end: see shared/webhooks.py

    __table_args__ = (
        ForeignKeyConstraint(
            ["deployment_id", "thread_id"],
            ["thread.deployment_id", "thread.thread_id"],
            ondelete="CASCADE",
        ),
        Index(
            "uq_run_thread_running",
            "deployment_id",
            "thread_id",
            unique=True,
            postgresql_where=text("status = 'running'"),
        ),
        Index("ix_run_thread", "deployment_id", "thread_id", "created_seq"),
        # who waits in a pool, and for whom: see shared/queueing.py
        Index(
            "ix_run_pending",
            "pool",
            "deployment_id",
            "key_id",
            "run_id",
            postgresql_where=text("status = 'pending'"),
        ),
        Index(
            "ix_run_failed",
            "deployment_id",
            "ended_at",
            postgresql_where=text("status IN ('error', 'timeout', 'interrupted')"),
        ),
        Index("ix_run_running", "lease_until", postgresql_where=text("status = 'running'")),
        # what is ahead of a run and what comes next, however many runs the thread has seen
        Index(
            "ix_run_live",
            "deployment_id",
            "thread_id",
            "created_seq",
            postgresql_where=text("status IN ('pending', 'running')"),
        ),
        Index(
            "uq_run_idempotency_key",
            "deployment_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )


def _of_thread() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["deployment_id", "thread_id"],
        ["thread.deployment_id", "thread.thread_id"],
        ondelete="CASCADE",
    )


class Checkpoint(Base):
    """A thread's state after one step. `data` is opaque here: only graph hosts decode it.

    Small channel values are inside `data`; large ones are in `checkpoint_blob`, by channel and version
    as listed in `blobs`.
    """

    __tablename__ = "checkpoint"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[UUID] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    parent_checkpoint_id: Mapped[str | None]
    run_id: Mapped[UUID | None]
    type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    blobs: Mapped[dict[str, str]] = mapped_column(JSON, server_default=EMPTY)  # channel → version
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (_of_thread(),)


class CheckpointBlob(Base):
    __tablename__ = "checkpoint_blob"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[UUID] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = (_of_thread(),)


class CheckpointWrite(Base):
    """What a task of the step after a checkpoint has written so far."""

    __tablename__ = "checkpoint_write"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[UUID] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[UUID | None]  # the run that wrote it first: a rollback takes it away
    channel: Mapped[str]
    type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    task_path: Mapped[str] = mapped_column(server_default="")

    __table_args__ = (_of_thread(),)


class StoreItem(Base):
    """A value under a namespace (`path`: each label followed by a dot) and a key: see shared/store.py."""

    __tablename__ = "store_item"
    deployment_id: Mapped[UUID] = _deployment_key(primary=True)
    path: Mapped[str] = mapped_column(Text(collation="C"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[dict[str, Any]] = mapped_column(JSONB)
    ttl_minutes: Mapped[float | None] = mapped_column(Double)
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())

    __table_args__ = (
        Index("ix_store_item_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    )


class Cron(Base):
    """A schedule that creates runs: see shared/crons.py."""

    __tablename__ = "cron"
    cron_id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = _deployment_key()
    assistant_id: Mapped[UUID]
    thread_id: Mapped[UUID | None]
    user_id: Mapped[str]
    schedule: Mapped[str]
    timezone: Mapped[str | None]
    end_time: Mapped[datetime | None]
    next_run_date: Mapped[datetime]
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=EMPTY)
    on_run_completed: Mapped[str | None]
    enabled: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        _of_thread(),
        ForeignKeyConstraint(
            ["deployment_id", "assistant_id"],
            ["assistant.deployment_id", "assistant.assistant_id"],
            ondelete="CASCADE",
        ),
        Index("ix_cron_deployment_id", "deployment_id", "created_at"),
        Index("ix_cron_due", "next_run_date", postgresql_where=text("enabled")),
    )


class WebhookDelivery(Base):
    """That a run ended, to be told to the address in `url`: see shared/webhooks.py."""

    __tablename__ = "webhook_delivery"
    delivery_id: Mapped[UUID] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = _deployment_key()
    run_id: Mapped[UUID]
    url: Mapped[str]
    status: Mapped[str]  # the run's, or the word rollback
    run: Mapped[dict[str, Any]] = mapped_column(JSON)  # its row as it ended: it may be gone by now
    values: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    attempt: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[datetime] = mapped_column(server_default=NOW)  # of an attempt under way: its lease's end
    owner: Mapped[str | None]
    failure: Mapped[str | None]  # what became of the last attempt
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    ended_at: Mapped[datetime | None]  # delivered or given up

    __table_args__ = (
        Index(
            "ix_webhook_delivery_due", "deployment_id", "due_at", postgresql_where=text("ended_at IS NULL")
        ),
        Index("ix_webhook_delivery_busy", "deployment_id", postgresql_where=text("owner IS NOT NULL")),
        Index("ix_webhook_delivery_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_webhook_delivery_deployment_id", "deployment_id"),
    )
