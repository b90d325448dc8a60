"""Metadata, common types and column helpers of all tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, DateTime, ForeignKey, ForeignKeyConstraint, MetaData, Uuid, func, text

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
TIME = DateTime(timezone=True)
NOW = func.now()
EMPTY = text("'{}'")


def column(name: str, *arguments: Any, nullable: bool = False, **options: Any) -> Column[Any]:
    """Return a column that is NOT NULL unless `nullable` is set, unlike SQLAlchemy's default."""
    return Column(name, *arguments, nullable=nullable, **options)


def deployment_key(*, primary: bool = False) -> Column[Any]:
    return column("deployment_id", Uuid, ForeignKey("deployment.id", ondelete="CASCADE"), primary_key=primary)


def thread_key() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["deployment_id", "thread_id"],
        ["thread.deployment_id", "thread.thread_id"],
        ondelete="CASCADE",
    )
