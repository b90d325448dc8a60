"""Runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Double, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base, of_thread
from shared.models.statuses import RunStatus, has_ended, is_live, is_unsuccessful


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
    # what its creation took from the thread's metadata, and the thread's config as text, for a rollback;
    # NULL: nothing
    metadata_before: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    input: Mapped[Any | None] = mapped_column(JSON)
    kwargs: Mapped[dict[str, Any]] = mapped_column(JSON)  # all but the input, as the API shows it
    multitask_strategy: Mapped[str] = mapped_column(server_default="enqueue")
    # stateless with on_completion=delete: thread and run go when it ends, checkpoints stay in memory
    temporary: Mapped[bool] = mapped_column(server_default="false")
    pool: Mapped[str]
    key_id: Mapped[str] = mapped_column(server_default="")  # of the API key it was created with, if any
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    # tokens by model, as the models' messages report them; of the attempt that ended the run, not of those before
    usage: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    created_seq: Mapped[int]  # order of creation within the thread
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    # who executes it: see shared/runs/claims.py
    attempt: Mapped[int] = mapped_column(server_default="0")
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    timeout_seconds: Mapped[float | None] = mapped_column(Double)  # from its first claim; NULL: the setting
    deadline_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    notified_at: Mapped[datetime | None]
    notifications: Mapped[int] = mapped_column(server_default="0")
    seq_reserved: Mapped[int] = mapped_column(server_default="0")
    cancel_requested: Mapped[str | None]  # interrupt or rollback
    cancel_reason: Mapped[str | None]
    deaths: Mapped[int] = mapped_column(server_default="0")  # attempts that were lost and count
    last_death: Mapped[str | None]  # how the host of the previous attempt died
    quarantine: Mapped[int] = mapped_column(
        server_default="0"
    )  # with whom it shares a host: workers/runner/quarantine.py
    # those before, which were lost: number, worker, times and reason; NULL: none. See shared/runs/claims.py
    attempts: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB(none_as_null=True))
    webhook: Mapped[str | None]  # called when it ends: see shared/runs/webhooks.py

    __table_args__ = (
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
            postgresql_where=text(is_unsuccessful()),
        ),
        # all that ended, newest first: see shared/runs/search.py
        Index("ix_run_ended", "deployment_id", "run_id", postgresql_where=text(has_ended())),
        # those of a cron
        Index(
            "ix_run_cron",
            "deployment_id",
            text("(metadata ->> 'cron_id')"),
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
