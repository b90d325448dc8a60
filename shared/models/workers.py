"""Runner and builder processes, and which of them leads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Double, false
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import NOW, Base


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
    bounds_tasks: Mapped[bool] = mapped_column(server_default=false())  # of user code, by the kernel
    bounds_memory: Mapped[bool] = mapped_column(server_default=false())
    state: Mapped[str]  # ready or draining
    slots: Mapped[int]
    running: Mapped[int]
    ended_a_minute: Mapped[int]
    heard_seconds: Mapped[float] = mapped_column(Double)  # since the last message came through
    hosts: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    drain_requested_at: Mapped[datetime | None]  # by an operator
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Leader(Base):
    """Which process does what only one at a time does: see shared/leadership.py."""

    __tablename__ = "leader"
    role: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    lease_until: Mapped[datetime]
