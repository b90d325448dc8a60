"""Threads and their checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Double, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base, deployment_key, of_thread
from shared.models.statuses import ThreadStatus

# A thread with a time to live that was not thinned out since its last change, and when that time is over: an index
# takes only what depends on no session's time zone.
EXPIRES = "ttl_minutes IS NOT NULL AND (swept_at IS NULL OR swept_at < updated_at)"
EXPIRES_AT = (
    "((updated_at AT TIME ZONE 'UTC') + make_interval(secs => least(ttl_minutes, '50000000') * '60'))"
)


class Thread(Base):
    """A conversation. `state` is its newest state as the API shows it, without `values`."""

    __tablename__ = "thread"
    deployment_id: Mapped[UUID] = deployment_key(primary=True)
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
    # who watches it by the protocol: see shared/protocol/watching.py
    protocol_until: Mapped[datetime | None]
    protocol_end_given: Mapped[int] = mapped_column(server_default="0")
    # how long after its last change it is deleted or thinned out: see shared/removal/expiry.py
    ttl_minutes: Mapped[float | None] = mapped_column(Double)
    ttl_strategy: Mapped[str | None]
    swept_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    state_updated_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("ix_thread_updated_at", "deployment_id", "updated_at"),
        Index("ix_thread_created_at", "deployment_id", "created_at"),
        Index("ix_thread_expires", text(EXPIRES_AT), postgresql_where=text(EXPIRES)),
        Index("ix_thread_status", "deployment_id", "status", "updated_at"),
        Index(
            "ix_thread_metadata",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
        ),
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

    __table_args__ = (of_thread(),)


class CheckpointBlob(Base):
    __tablename__ = "checkpoint_blob"
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[UUID] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = (of_thread(),)


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

    __table_args__ = (of_thread(),)
