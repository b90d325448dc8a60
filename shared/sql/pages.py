"""Pages of searches with their totals. To count all matches in a large table takes longer than to find a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, Select, func, select

from shared.infra.postgres import Row
from shared.sql import Conn, Statement

MOST_COUNTED = 10_000

R = TypeVar("R", bound=Row)


def statement_page(
    conn: Conn, found: Statement, counted: Statement, values: Mapping[str, Any], *, limit: int, offset: int
) -> tuple[Sequence[Row], int]:
    """Return a page of the rows of a statement, and their total. `counted` returns as `n` the number of rows up to `:most`."""
    return _page(
        lambda limit: found.rows(conn, **values, limit=limit, offset=offset),
        lambda most: counted.rows(conn, **values, most=most)[0]["n"],
        limit=limit,
        offset=offset,
    )


def select_page(
    conn: Connection,
    found: Select[*tuple[Any, ...]],
    counted: Select[*tuple[Any, ...]],
    *,
    limit: int,
    offset: int,
) -> tuple[Sequence[RowMapping], int]:
    """Return a page of the rows of a query, and their total. `counted` selects the same rows to count them."""
    return _page(
        lambda limit: conn.execute(found.limit(limit).offset(offset)).mappings().all(),
        lambda most: count(conn, counted, most=most),
        limit=limit,
        offset=offset,
    )


def count(conn: Connection, counted: Select[*tuple[Any, ...]], *, most: int | None = None) -> int:
    """Return the number of rows of a query, counted up to `most`."""
    return conn.execute(select(func.count()).select_from(counted.limit(most).subquery())).scalar_one()


def _page(
    find: Callable[[int], Sequence[R]], count: Callable[[int], int], *, limit: int, offset: int
) -> tuple[Sequence[R], int]:
    """Return a page, and the total number of rows.

    The total is exact up to MOST_COUNTED. Above, it is one more than the last row of the page if there are further pages.
    """
    rows = find(limit + 1)
    last = offset + len(rows)
    has_more, is_beyond_the_end = len(rows) > limit, offset > 0 and not rows
    if is_beyond_the_end or (has_more and last < MOST_COUNTED):
        return rows[:limit], count(MOST_COUNTED)
    return rows[:limit], last
