"""Replays of past runs on a revision, and their cases. See shared/replays."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Double, ForeignKey, Index, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import METADATA, NOW, TIME, column, deployment_key

REPLAY = Table(
    "replay",
    METADATA,
    column("id", Uuid, primary_key=True),
    deployment_key(),
    # the hidden deployment that its cases run at (shared/replays/benches.py)
    column("bench_id", Uuid, ForeignKey("deployment.id", ondelete="CASCADE")),
    column("revision_id", Uuid),
    column("preview", Text, nullable=True),  # the name by which the revision was chosen
    column("criteria", JSONB),
    column("sample", BigInteger),
    column("seed", BigInteger),
    column("tools", Text),
    column("live_tools", JSONB),
    column("models", Text),
    column("network", Boolean),
    column("concurrency", BigInteger),
    column("max_tokens", BigInteger, nullable=True),
    column("max_cost", Double, nullable=True),
    column("max_minutes", Double, nullable=True),
    column("rule", Text, nullable=True),
    column("status", Text, server_default="preparing"),
    column("reason", Text, nullable=True),
    column("verdict", Text, nullable=True),
    column("summary", JSONB(none_as_null=True), nullable=True),
    column("counts", JSONB(none_as_null=True), nullable=True),  # of its cases; NULL until it has ended
    # used by the judged cases
    column("used_tokens", Double, server_default="0"),
    column("used_cost", Double, server_default="0"),
    column("created_by", JSONB(none_as_null=True), nullable=True),
    column("created_at", TIME, server_default=NOW),
    column("ended_at", TIME, nullable=True),
    Index("ix_replay_bench_id", "bench_id"),
    Index("ix_replay_deployment_id", "deployment_id", "id"),
    Index("ix_replay_open", "id", postgresql_where=text("ended_at IS NULL")),
)


REPLAY_CASE = Table(
    "replay_case",
    METADATA,
    column("replay_id", Uuid, ForeignKey("replay.id", ondelete="CASCADE"), primary_key=True),
    column("position", BigInteger, primary_key=True, autoincrement=False),
    column("run_id", Uuid),
    column("thread_id", Uuid),
    column("case_run_id", Uuid, nullable=True),  # NULL: the case waits, or is skipped
    column("case_thread_id", Uuid, nullable=True),
    column("outcome", Text, nullable=True),  # NULL: the case waits or runs
    column("reason", Text, nullable=True),
    column("report", JSONB(none_as_null=True), nullable=True),  # of the graph host
    column("comparison", JSONB(none_as_null=True), nullable=True),
    # the small part of the comparison that lists and the summary read: 10,000 comparisons can be 500 MB
    column("figures", JSONB(none_as_null=True), nullable=True),
    column("ended_at", TIME, nullable=True),
    Index("ix_replay_case_open", "replay_id", "position", postgresql_where=text("outcome IS NULL")),
    Index("ix_replay_case_outcome", "replay_id", "outcome", "position"),
    Index(
        "ix_replay_case_started",
        "replay_id",
        "position",
        postgresql_where=text("outcome IS NULL AND case_run_id IS NOT NULL"),
    ),
    Index(
        "ix_replay_case_run",
        "case_run_id",
        postgresql_where=text("case_run_id IS NOT NULL"),
    ),
)
