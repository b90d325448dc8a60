"""What every table is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, ForeignKey, ForeignKeyConstraint, MetaData, Text, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        str: Text,
        int: BigInteger,
    }


NOW = func.now()
EMPTY = text("'{}'")


def deployment_key(*, primary: bool = False) -> Mapped[UUID]:
    return mapped_column(ForeignKey("deployment.id", ondelete="CASCADE"), primary_key=primary)


def of_thread() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["deployment_id", "thread_id"],
        ["thread.deployment_id", "thread.thread_id"],
        ondelete="CASCADE",
    )
