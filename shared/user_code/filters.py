"""Filters that authorization handlers return, as conditions in SQL on a record's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.infra.postgres import Driver

Filter = Mapping[str, Any]


def condition(filter: Filter | None, column: str, *, prefix: str = "f") -> tuple[str, dict[str, Any]]:
    """SQL that holds for the records a filter lets through, with `:name` parameters, and their values.

    `column` is a JSONB column as it stands in the statement. Raises Denied (500) for a filter that says
    something else than the contract knows.
    """
    raise NotImplementedError


def require_thread(
    conn: Connection | Driver,
    deployment_id: UUID,
    thread_id: UUID,
    filter: Filter | None,
    *,
    lock: bool = False,
) -> None:
    """Raise NotFound when the thread is not there or hidden by the filter, as if there were none.

    `lock`: it stays as it is until the transaction ends. Without a filter nothing is looked at.
    """
    raise NotImplementedError


def require_assistant(
    conn: Connection | Driver, deployment_id: UUID, assistant_id: UUID, filter: Filter | None
) -> None:
    """The same of an assistant's active version."""
    raise NotImplementedError


def require_cron(
    conn: Connection | Driver, deployment_id: UUID, cron_id: UUID, filter: Filter | None
) -> None:
    """The same of a cron."""
    raise NotImplementedError
