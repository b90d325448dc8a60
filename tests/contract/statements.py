"""Execute SQL statements, each in its own transaction, for tests that change or inspect the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from shared.infra.postgres import connection


def execute(statement: str, **values: Any) -> list[Any]:
    """Execute a statement. Returns its rows."""
    with connection() as conn:
        result = conn.execute(text(statement), values)
        return list(result) if result.returns_rows else []


def one(statement: str, **values: Any) -> Any:
    """Return the only row of a query."""
    (row,) = execute(statement, **values)
    return row


def scalar(statement: str, **values: Any) -> Any:
    """Return the only value of a query."""
    (value,) = one(statement, **values)
    return value


def column(statement: str, **values: Any) -> list[Any]:
    """Return the values of a query that selects one column."""
    return [value for (value,) in execute(statement, **values)]
