"""Figures: a row for each run that has ended, and the sums they are folded into (shared/figures)."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Double, ForeignKey, Identity, Index, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import EMPTY, NOW, Base


def organization_key() -> Mapped[UUID]:
    return mapped_column(ForeignKey("organization.id", ondelete="CASCADE"), primary_key=True)


class EndedRun(Base):
    """What is counted of a run, written by the statement that ends it; it goes when it is folded.

    No foreign key: nothing may make the end of a run wait, and a deployment is kept until its rows are folded.
    """

    __tablename__ = "ended_run"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    deployment_id: Mapped[UUID]
    key_id: Mapped[str]
    status: Mapped[str]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime] = mapped_column(server_default=NOW)
    attempts: Mapped[int]
    wait_seconds: Mapped[float | None] = mapped_column(Double)
    duration_seconds: Mapped[float | None] = mapped_column(Double)
    first_token_seconds: Mapped[float | None] = mapped_column(Double)
    usage: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))


class Figure(Base):
    """What one deployment's runs of one key came to in one step of time; every column but the key's can be added.

    `waits`, `durations` and `first_tokens` are histograms: bucket → how many (shared/figures/histograms.py).
    """

    __tablename__ = "figure"
    organization_id: Mapped[UUID] = organization_key()
    step_seconds: Mapped[int] = mapped_column(Integer, primary_key=True)  # 0: ever
    at: Mapped[datetime] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    created: Mapped[int] = mapped_column(server_default="0")
    success: Mapped[int] = mapped_column(server_default="0")
    error: Mapped[int] = mapped_column(server_default="0")
    timeout: Mapped[int] = mapped_column(server_default="0")
    interrupted: Mapped[int] = mapped_column(server_default="0")
    attempts: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    wait_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    duration_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    first_token_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    waits: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=EMPTY)
    durations: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=EMPTY)
    first_tokens: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=EMPTY)

    __table_args__ = (Index("ix_figure_step_seconds_at", "step_seconds", "at"),)


class DailyUsage(Base):
    """Tokens of one model within a day; the row without a model counts the runs, whichever models they called."""

    __tablename__ = "daily_usage"
    organization_id: Mapped[UUID] = organization_key()
    day: Mapped[date] = mapped_column(primary_key=True)
    deployment_id: Mapped[UUID] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    runs: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    total_tokens: Mapped[int] = mapped_column(server_default="0")

    __table_args__ = (Index("ix_daily_usage_day", "day"),)


class SpentTokens(Base):
    """What the runs of a deployment or key with a budget have used on a day, also those that have not ended."""

    __tablename__ = "spent_tokens"
    kind: Mapped[str] = mapped_column(primary_key=True)  # deployment or key
    id: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    tokens: Mapped[int]


class BuildFigure(Base):
    """How many builds ended so, and how long they took; every column but the key can be added."""

    __tablename__ = "build_figure"
    status: Mapped[str] = mapped_column(primary_key=True)
    seconds: Mapped[float] = mapped_column(Double)
    durations: Mapped[dict[str, int]] = mapped_column(JSONB)
