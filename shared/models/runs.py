"""Runs."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Double, Index, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, of_thread
from shared.models.statuses import has_ended, is_live, is_unsuccessful

# One execution of a graph. Everything it needs was frozen in when it was created.
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
    # what its creation took from the thread's metadata, and the thread's config as text, for a rollback;
    # NULL: nothing
    column("metadata_before", JSONB(none_as_null=True), nullable=True),
    column("input", JSON, nullable=True),
    column("kwargs", JSON),  # all but the input, as the API shows it
    column("multitask_strategy", Text, server_default="enqueue"),
    # stateless with on_completion=delete: thread and run go when it ends, checkpoints stay in memory
    column("temporary", Boolean, server_default="false"),
    column("pool", Text),
    column("key_id", Text, server_default=""),  # of the API key it was created with, if any
    # how many runs are above it, each of which called the next: see shared/runs/nesting.py
    column("depth", BigInteger, server_default="0"),
    column("error", JSON(none_as_null=True), nullable=True),
    # tokens by model, as the models' messages report them; of the attempt that ended the run, not of those before
    column("usage", JSONB(none_as_null=True), nullable=True),
    column("created_seq", BigInteger),  # order of creation within the thread
    column("created_at", TIME, server_default=NOW),
    column("updated_at", TIME, server_default=NOW),
    column("started_at", TIME, nullable=True),
    column("ended_at", TIME, nullable=True),
    # who executes it: see shared/runs/claims.py
    column("attempt", BigInteger, server_default="0"),
    column("owner", Text, nullable=True),
    column("lease_until", TIME, nullable=True),
    column("timeout_seconds", Double, nullable=True),  # from its first claim; NULL: the setting
    column("deadline_at", TIME, nullable=True),
    column("not_before", TIME, nullable=True),
    column("notified_at", TIME, nullable=True),
    column("notifications", BigInteger, server_default="0"),
    column("seq_reserved", BigInteger, server_default="0"),
    column("cancel_requested", Text, nullable=True),  # interrupt or rollback
    column("cancel_reason", Text, nullable=True),
    column("deaths", BigInteger, server_default="0"),  # attempts that were lost and count
    column("last_death", Text, nullable=True),  # how the host of the previous attempt died
    column(
        "quarantine", BigInteger, server_default="0"
    ),  # with whom it shares a host: workers/runner/quarantine.py
    # those before, which were lost: number, worker, times and reason; NULL: none. See shared/runs/claims.py
    column("attempts", JSONB(none_as_null=True), nullable=True),
    column("webhook", Text, nullable=True),  # called when it ends: see shared/runs/webhooks.py
    of_thread(),
    Index(
        "uq_run_thread_running",
        "deployment_id",
        "thread_id",
        unique=True,
        postgresql_where=text("status = 'running'"),
    ),
    Index("ix_run_thread", "deployment_id", "thread_id", "created_seq"),
    # who waits in a pool, and for whom: see shared/runs/queue_position.py
    Index(
        "ix_run_waiting",
        "pool",
        "deployment_id",
        "key_id",
        "depth",
        "run_id",
        postgresql_where=text("status = 'pending'"),
    ),
    # the depths, deployments and keys of nested runs that wait: see shared/runs/nesting.py
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
    # all that ended, newest first: see shared/runs/search.py
    Index("ix_run_ended", "deployment_id", "run_id", postgresql_where=text(has_ended())),
    # those of a cron
    Index(
        "ix_run_cron",
        "deployment_id",
        text("left(metadata ->> 'cron_id', 36)"),  # a caller may write any text there
        "run_id",
        postgresql_where=text("metadata ? 'cron_id'"),
    ),
    Index("ix_run_running", "lease_until", postgresql_where=text("status = 'running'")),
    # who waits for a further attempt: few of all that wait
    Index("ix_run_again", "not_before", postgresql_where=text("status = 'pending' AND attempt > 0")),
    # an assistant's A2A tasks, newest first: see shared/runs/a2a_tasks.py
    Index(
        "ix_run_a2a",
        "deployment_id",
        "assistant_id",
        "run_id",
        postgresql_where=text("metadata ? 'a2a'"),
    ),
    # what is ahead of a run and what comes next, however many runs the thread has seen
    Index(
        "ix_run_live",
        "deployment_id",
        "thread_id",
        "created_seq",
        postgresql_where=text(is_live()),
    ),
)
