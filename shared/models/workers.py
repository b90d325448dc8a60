"""Runner and builder processes, and which of them leads."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Double, Table, Text, false

from shared.models.base import METADATA, NOW, TIME, column

HEARTBEAT_SECONDS = 5.0
# Two heartbeats were missed, and the second has had half an interval to arrive late.
SILENT_SECONDS = 2.5 * HEARTBEAT_SECONDS


def is_silent(alias: str | None = None) -> str:
    """The SQL condition that a worker, called so in the statement, has missed two heartbeats."""
    seen_at = "seen_at" if alias is None else f"{alias}.seen_at"
    return f"{seen_at} < now() - interval '{SILENT_SECONDS} seconds'"


# A runner or builder process, by the name it has in leases; it says so itself every few seconds.
WORKER = Table(
    "worker",
    METADATA,
    column("id", Text, primary_key=True),
    column("kind", Text),  # runner or builder
    column("pool", Text, nullable=True),  # a runner's
    column("host_name", Text),
    column("pid", BigInteger),
    column("version", Text),
    column("isolation", BigInteger),
    column("bounds_tasks", Boolean, server_default=false()),  # of user code, by the kernel
    column("bounds_memory", Boolean, server_default=false()),
    column("state", Text),  # ready or draining
    column("slots", BigInteger),
    column("running", BigInteger),
    column("ended_a_minute", BigInteger),
    column("heard_seconds", Double),  # since the last message came through
    column("hosts", JSON),
    column("drain_requested_at", TIME, nullable=True),  # by an operator
    column("started_at", TIME, server_default=NOW),
    column("seen_at", TIME, server_default=NOW),
)


# Which process does what only one at a time does: see shared/leadership.py.
LEADER = Table(
    "leader",
    METADATA,
    column("role", Text, primary_key=True),
    column("owner", Text),
    column("lease_until", TIME),
)
