"""Assistants, the crons that create runs, runs, and deliveries of their ends to webhooks."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key, thread_key
from shared.models.statuses import LIVE_RUN_STATUSES, has_ended, is_one_of, is_unsuccessful

# A named configuration of a graph. The configuration itself is in the versions.
ASSISTANT = Table(
    "assistant",
    METADATA,
    deployment_key(primary=True),
    column("assistant_id", Uuid, primary_key=True),
    column("version", BigInteger, server_default="1"),  # the active version
    column("last_version", BigInteger, server_default="1"),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    Index("ix_assistant_created_at", "deployment_id", "created_at"),
)


ASSISTANT_VERSION = Table(
    "assistant_version",
    METADATA,
    column("deployment_id", Uuid, primary_key=True),
    column("assistant_id", Uuid, primary_key=True),
    column("version", BigInteger, primary_key=True),
    column("graph_id", Text),
    column("config", JSON, server_default=EMPTY),
    column("context", JSON, server_default=EMPTY),
    column("metadata", JSONB, server_default=EMPTY),
    column("name", Text),
    column("description", Text, nullable=True),
    column("created_at", TIME, server_default=NOW),
    ForeignKeyConstraint(
        ["deployment_id", "assistant_id"],
        ["assistant.deployment_id", "assistant.assistant_id"],
        ondelete="CASCADE",
    ),
    Index("ix_assistant_version_metadata", "metadata", postgresql_using="gin"),
)


# A schedule that creates runs. See shared/crons.
CRON = Table(
    "cron",
    METADATA,
    column("cron_id", Uuid, primary_key=True),
    deployment_key(),
    column("assistant_id", Uuid),
    column("thread_id", Uuid, nullable=True),
    column("user_id", Text),
    # the user of its runs, if the deployment has its own authorization; encrypted
    column("auth_user", LargeBinary, nullable=True),
    column("schedule", Text),
    column("timezone", Text, nullable=True),
    column("end_time", TIME, nullable=True),
    column("next_run_date", TIME),
    column("payload", JSON),
    column("metadata", JSONB, server_default=EMPTY),
    column("on_run_completed", Text, nullable=True),
    column("enabled", Boolean),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    thread_key(),
    ForeignKeyConstraint(
        ["deployment_id", "assistant_id"],
        ["assistant.deployment_id", "assistant.assistant_id"],
        ondelete="CASCADE",
    ),
    Index("ix_cron_deployment_id", "deployment_id", "created_at"),
    Index("ix_cron_due", "next_run_date", postgresql_where=text("enabled")),
)


# A retry or cancellation of all runs that matched a search (shared/runs/bulk.py).
BULK_OPERATION = Table(
    "bulk_operation",
    METADATA,
    column("id", Uuid, primary_key=True),
    deployment_key(),
    column("action", Text),
    column("criteria", JSONB),
    column("revision_id", Uuid, nullable=True),  # of the new runs; NULL: the one that serves
    column("force", Boolean),
    column("rate", Double),  # runs per second
    column("status", Text, server_default="running"),
    column("created_by", JSONB(none_as_null=True), nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("ended_at", TIME, nullable=True),
    column("total", BigInteger),  # number of its runs; the others by outcome
    column("done", BigInteger, server_default="0"),
    column("skipped", BigInteger, server_default="0"),
    column("failed", BigInteger, server_default="0"),
    Index("ix_bulk_operation_deployment_id", "deployment_id", "id"),
    Index("ix_bulk_operation_open", "id", postgresql_where=text("ended_at IS NULL")),
)


BULK_RUN = Table(
    "bulk_run",
    METADATA,
    # no foreign key: checking it for 100,000 runs takes longer than inserting them. Removals delete the runs first
    column("operation_id", Uuid, primary_key=True),
    column("position", BigInteger, primary_key=True, autoincrement=False),
    column("run_id", Uuid),
    column("thread_id", Uuid),
    column("outcome", Text, nullable=True),  # NULL: the run waits
    column("detail", Text, nullable=True),
    column("new_run_id", Uuid, nullable=True),
    column("ended_at", TIME, nullable=True),
    # `bulk.next` would otherwise read all runs that are handled already
    Index("ix_bulk_run_waiting", "operation_id", "position", postgresql_where=text("outcome IS NULL")),
)


# One execution of a graph. Everything it needs is frozen into the row at its creation.
RUN = Table(
    "run",
    METADATA,
    column("run_id", Uuid, primary_key=True),
    column("deployment_id", Uuid),
    column("thread_id", Uuid),
    column("assistant_id", Uuid),
    column("revision_id", Uuid),
    column("graph_id", Text),
    column("status", Text),
    column("metadata", JSONB, server_default=EMPTY),
    # for a rollback: the thread's metadata that the creation replaced, and the thread's previous config as text;
    # NULL: the creation replaced nothing
    column("metadata_before", JSONB(none_as_null=True), nullable=True),
    column("input", JSON, nullable=True),
    column("kwargs", JSON),  # everything the graph host needs, except the input
    # events that readers add to those of `kwargs`: `stream_mode` and `subgraphs`; NULL: none
    column("joined", JSONB(none_as_null=True), nullable=True),
    column("multitask_strategy", Text, server_default="enqueue"),
    # stateless with on_completion=delete: its end deletes thread and run, and checkpoints are kept in memory only
    column("temporary", Boolean, server_default="false"),
    column("pool", Text),
    column("key_id", Text, server_default=""),  # the API key of its creator, or empty
    # the user of the deployment's own auth: see shared/figures/usage.py
    column("user_name", Text, nullable=True),
    # number of ancestor runs, each of which created the next: see shared/runs/nesting.py
    column("depth", BigInteger, server_default="0"),
    column("error", JSON(none_as_null=True), nullable=True),
    # tokens by model, as the models' messages report them; only of the attempt that ended the run
    column("usage", JSONB(none_as_null=True), nullable=True),
    # times of nodes, model and tool calls of the attempt that ended the run: see shared/runs/timeline.py
    column("spans", JSON(none_as_null=True), nullable=True),
    column("created_seq", BigInteger),  # order of creation within the thread
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    column("started_at", TIME, nullable=True),
    column("ended_at", TIME, nullable=True),
    # claim and lease of the runner: see shared/runs/claims.py
    column("attempt", BigInteger, server_default="0"),
    column("owner", Text, nullable=True),
    column("lease_until", TIME, nullable=True),
    column("timeout_seconds", Double, nullable=True),  # from its first claim; NULL: the setting
    column("deadline_at", TIME, nullable=True),
    column("not_before", TIME, nullable=True),  # the run may not start earlier
    column("notified_at", TIME, nullable=True),  # last notification of runners
    column("notifications", BigInteger, server_default="0"),  # repeated ones, without effect so far
    column("seq_reserved", BigInteger, server_default="0"),  # event numbers up to this one are reserved
    column("cancel_requested", Text, nullable=True),  # interrupt or rollback
    column("cancel_reason", Text, nullable=True),
    column("deaths", BigInteger, server_default="0"),  # lost attempts that count against the limit
    column("last_death", Text, nullable=True),  # how the host of the previous attempt died
    # level of isolation from other runs: see workers/runner/quarantine.py
    column("quarantine", BigInteger, server_default="0"),
    # earlier, lost attempts: number, worker, times and reason; NULL: none. See shared/runs/claims.py
    column("attempts", JSONB(none_as_null=True), nullable=True),
    column("webhook", Text, nullable=True),  # URL to call at its end: see shared/runs/webhooks.py
    thread_key(),
    Index(
        "uq_run_thread_running",
        "deployment_id",
        "thread_id",
        unique=True,
        postgresql_where=text("status = 'running'"),
    ),
    Index("ix_run_thread", "deployment_id", "thread_id", "created_seq"),
    # the backlog of a pool by deployment and key: see shared/sql/rules.sql
    Index(
        "ix_run_waiting",
        "pool",
        "deployment_id",
        "key_id",
        "depth",
        "run_id",
        postgresql_where=text("status = 'pending'"),
    ),
    # pending nested runs by depth, deployment and key: see shared/runs/nesting.py
    Index(
        "ix_run_waiting_nested",
        "pool",
        "depth",
        "deployment_id",
        "key_id",
        "run_id",
        postgresql_where=text("status = 'pending' AND depth > 0"),
    ),
    Index(
        "ix_run_failed",
        "deployment_id",
        "ended_at",
        postgresql_where=text(is_unsuccessful()),
    ),
    # ended runs, newest first: see shared/runs/read.py
    Index("ix_run_ended", "deployment_id", "run_id", postgresql_where=text(has_ended())),
    # the runs of a cron
    Index(
        "ix_run_cron",
        "deployment_id",
        text("left(metadata ->> 'cron_id', 36)"),  # shortened, because callers may write texts of any length
        "run_id",
        postgresql_where=text("metadata ? 'cron_id'"),
    ),
    Index("ix_run_running", "lease_until", postgresql_where=text("status = 'running'")),
    # runs that wait for another attempt: few of all pending runs
    Index("ix_run_again", "not_before", postgresql_where=text("status = 'pending' AND attempt > 0")),
    # an assistant's A2A tasks by their last change, and the later runs of a task: see shared/runs/a2a_tasks.py
    Index(
        "ix_run_a2a_changed",
        "deployment_id",
        "assistant_id",
        "updated_at",
        "run_id",
        postgresql_where=text("metadata ? 'a2a'"),
    ),
    Index(
        "ix_run_a2a_task",
        "deployment_id",
        "thread_id",
        text(
            "left((metadata -> 'a2a') ->> 'task_id', 80)"
        ),  # shortened, because callers may write texts of any length
        "created_seq",
        postgresql_where=text("(metadata -> 'a2a') ? 'task_id'"),
    ),
    # earlier and next live runs of a thread, at a cost that does not depend on the thread's ended runs
    Index(
        "ix_run_live",
        "deployment_id",
        "thread_id",
        "created_seq",
        postgresql_where=text(is_one_of(LIVE_RUN_STATUSES)),
    ),
)


# A person's feedback on a run. A second one of the same source under the same key replaces the first: see
# shared/runs/feedback.py.
RUN_FEEDBACK = Table(
    "run_feedback",
    METADATA,
    column("run_id", Uuid, ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    column("key", Text, primary_key=True),
    column("source", Text, primary_key=True),
    column("deployment_id", Uuid),
    column("score", Double, nullable=True),
    column("value", JSON(none_as_null=True), nullable=True),
    column("comment", Text, nullable=True),
    column("correction", JSON(none_as_null=True), nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    Index("ix_run_feedback_key", "deployment_id", "key", "run_id"),  # runs by feedback
)


# A delivery of a run's end to `url`. See shared/runs/webhooks.py.
WEBHOOK_DELIVERY = Table(
    "webhook_delivery",
    METADATA,
    column("delivery_id", Uuid, primary_key=True),
    deployment_key(),
    column("run_id", Uuid, nullable=True),  # NULL: it reports a budget
    column("url", Text),
    column("status", Text),  # the run's status, `rollback`, or the type of another event
    column("run", JSON),  # a copy of the run's row at its end, because the row may be deleted
    column("values", JSON(none_as_null=True), nullable=True),
    column("error", JSON(none_as_null=True), nullable=True),
    column("attempt", BigInteger, server_default="0"),
    column("due_at", TIME, server_default=NOW),  # during an attempt: the end of its lease
    column("owner", Text, nullable=True),
    column("failure", Text, nullable=True),  # error of the last attempt; NULL: it succeeded
    column("response_status", BigInteger, nullable=True),  # HTTP status of the receiver's last response
    column("created_at", TIME, server_default=NOW),
    column("ended_at", TIME, nullable=True),  # delivered, or out of attempts
    Index("ix_webhook_delivery_due", "deployment_id", "due_at", postgresql_where=text("ended_at IS NULL")),
    Index("ix_webhook_delivery_busy", "deployment_id", postgresql_where=text("owner IS NOT NULL")),
    Index("ix_webhook_delivery_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index("ix_webhook_delivery_created_at", "deployment_id", "created_at", "delivery_id"),
)
