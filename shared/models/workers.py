"""Runner and builder processes, the leaders among them, and the time of the last backup."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Double, Table, Text, false

from shared.models.base import METADATA, NOW, TIME, column

HEARTBEAT_SECONDS = 5.0
# Time for two missed heartbeats, plus half an interval in which the second may arrive late.
SILENT_SECONDS = 2.5 * HEARTBEAT_SECONDS


def is_silent() -> str:
    """Return the SQL condition that a worker has missed two heartbeats."""
    return f"seen_at < now() - interval '{SILENT_SECONDS} seconds'"


# A runner or builder process. `id` is its name as an owner of leases. The process updates its row with each heartbeat.
WORKER = Table(
    "worker",
    METADATA,
    column("id", Text, primary_key=True),
    column("kind", Text),  # runner or builder
    column("pool", Text, nullable=True),  # of a runner
    column("host_name", Text),
    column("pid", BigInteger),
    column("version", Text),
    column("isolation", BigInteger),
    # the kernel limits the number of tasks, and the memory, of user code
    column("bounds_tasks", Boolean, server_default=false()),
    column("bounds_memory", Boolean, server_default=false()),
    column("state", Text),  # ready or draining
    column("slots", BigInteger),
    column("running", BigInteger),
    column("ended_a_minute", BigInteger),
    column("heard_seconds", Double),  # since its last canary message came back
    column("hosts", JSON),
    column("drain_requested_at", TIME, nullable=True),  # by an operator, until resumed
    column("started_at", TIME, server_default=NOW),
    column("seen_at", TIME, server_default=NOW),
)


# The process that holds a role which only one process may have at a time. See shared/fleet.py.
LEADER = Table(
    "leader",
    METADATA,
    column("role", Text, primary_key=True),
    column("owner", Text),
    column("lease_until", TIME),
)


# A single row, for the metric of the backup's age. Written when a backup file is complete, and not by a restore.
LAST_BACKUP = Table(
    "last_backup",
    METADATA,
    column("is_last", Boolean, primary_key=True),  # always true
    column("made_at", TIME, server_default=NOW),
    column("bytes", BigInteger),
)
