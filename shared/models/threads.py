"""Threads and their checkpoints, calls that run on a thread of their own, and store items."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    Index,
    LargeBinary,
    Table,
    Text,
    Uuid,
    false,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key, thread_key
from shared.models.statuses import ThreadStatus

# Selects threads with a time to live that were not pruned since their last change, and computes when they expire. UTC
# is explicit because an index expression must not depend on the session's time zone. shared/sql/removal.sql
# repeats both.
EXPIRES = "ttl_minutes IS NOT NULL AND (swept_at IS NULL OR swept_at < updated_at)"
EXPIRES_AT = (
    "((updated_at AT TIME ZONE 'UTC') + make_interval(secs => least(ttl_minutes, '50000000') * '60'))"
)


# A conversation. `state` is the newest state as the API shows it, without `values`.
THREAD = Table(
    "thread",
    METADATA,
    deployment_key(primary=True),
    column("thread_id", Uuid, primary_key=True),
    column("status", Text, server_default=ThreadStatus.IDLE),
    column("metadata", JSONB, server_default=EMPTY),
    column("config", JSON, server_default=EMPTY),
    column("values", JSON(none_as_null=True), nullable=True),
    column("state", JSON(none_as_null=True), nullable=True),
    column("interrupts", JSON(none_as_null=True), nullable=True),
    column("error", JSON(none_as_null=True), nullable=True),
    # status and error while no run is live, set by the last run that ended; a NULL status is derived from the state
    column("rest_status", Text, nullable=True),
    column("rest_error", JSON(none_as_null=True), nullable=True),
    column("last_seq", BigInteger, server_default="0"),  # created_seq of its newest run
    column("is_listed", Boolean, server_default=true()),  # False: the thread of an MCP call
    # a protocol stream watches it until then, and the newest run whose end was sent: see shared/protocol/watching.py
    column("protocol_until", TIME, nullable=True),
    column("protocol_end_given", BigInteger, server_default="0"),
    # time after its last change until it is deleted or pruned: see shared/removal/expiry.py
    column("ttl_minutes", Double, nullable=True),
    column("ttl_strategy", Text, nullable=True),
    column("swept_at", TIME, nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    column("state_updated_at", TIME, server_default=NOW),
    Index("ix_thread_updated_at", "deployment_id", "is_listed", "updated_at"),
    Index("ix_thread_created_at", "deployment_id", "is_listed", "created_at"),
    Index("ix_thread_expires", text(EXPIRES_AT), postgresql_where=text(EXPIRES)),
    Index("ix_thread_status", "deployment_id", "is_listed", "status", "updated_at"),
    Index(
        "ix_thread_metadata",
        "metadata",
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    ),
)


# An MCP call that runs on a thread of its own, because it may ask its client or become a task. The thread is not listed.
# See shared/runs/mcp_calls.py.
MCP_CALL = Table(
    "mcp_call",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("thread_id", Uuid, primary_key=True),
    column("caller", Text),  # the user or the key that may continue the call
    column("is_task", Boolean, server_default=false()),  # the client knows the thread's id
    column("uses", JSONB, server_default=EMPTY),  # name of a question → how often it was answered
    column("answers", JSONB, server_default=EMPTY),  # key of an open question → response; for tasks
    column("end", Text, nullable=True),  # how the client ended a call that waited: declined or cancelled
    column("ended_at", TIME, nullable=True),
    thread_key(),
)


# A thread's state after one step. Only graph hosts decode `data`.
#
# Small channel values are inside `data`. Large ones are in `checkpoint_blob`, and `blobs` lists their channels and
# versions.
CHECKPOINT = Table(
    "checkpoint",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("thread_id", Uuid, primary_key=True),
    column("checkpoint_ns", Text, primary_key=True),
    column("checkpoint_id", Text, primary_key=True),
    column("parent_checkpoint_id", Text, nullable=True),
    column("run_id", Uuid, nullable=True),
    column("type", Text),
    column("data", LargeBinary),
    column("blobs", JSON, server_default=EMPTY),  # channel → version
    column("metadata", JSONB, server_default=EMPTY),
    column("created_at", TIME, server_default=NOW),
    thread_key(),
)


CHECKPOINT_BLOB = Table(
    "checkpoint_blob",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("thread_id", Uuid, primary_key=True),
    column("checkpoint_ns", Text, primary_key=True),
    column("channel", Text, primary_key=True),
    column("version", Text, primary_key=True),
    column("type", Text),
    column("data", LargeBinary),
    thread_key(),
)


# The writes of a task in the step after a checkpoint.
CHECKPOINT_WRITE = Table(
    "checkpoint_write",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("thread_id", Uuid, primary_key=True),
    column("checkpoint_ns", Text, primary_key=True),
    column("checkpoint_id", Text, primary_key=True),
    column("task_id", Text, primary_key=True),
    column("idx", BigInteger, primary_key=True),
    column("run_id", Uuid, nullable=True),  # the run that wrote it first; a rollback of the run deletes it
    column("channel", Text),
    column("type", Text),
    column("data", LargeBinary),
    column("task_path", Text, server_default=""),
    thread_key(),
)


# A value under a namespace and a key. `path` is the namespace, with a dot after each label. See shared/store.py.
STORE_ITEM = Table(
    "store_item",
    METADATA,
    deployment_key(primary=True),
    column("path", Text(collation="C"), primary_key=True),
    column("key", Text, primary_key=True),
    column("value", JSONB),
    column("ttl_minutes", Double, nullable=True),
    column("expires_at", TIME, nullable=True),
    column("created_at", TIME, server_default=func.clock_timestamp()),
    column("updated_at", TIME, server_default=func.clock_timestamp()),
    Index("ix_store_item_updated_at", "deployment_id", "updated_at"),
    Index("ix_store_item_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
