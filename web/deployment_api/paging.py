"""Pages of lists, with pagination headers, and records with selected fields."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify

PAGE_HEADERS = ("X-Pagination-Total", "X-Pagination-Next")


def page(rows: list[Any], *, offset: int, limit: int, total: int) -> Response:
    """Return a page of a list. Headers hold the total and, unless this is the last page, the offset of the next."""
    response = jsonify(rows)
    response.headers["X-Pagination-Total"] = str(total)
    if offset + len(rows) < total and rows:
        response.headers["X-Pagination-Next"] = str(offset + limit)
    return response


def selected(rows: list[dict[str, Any]], select: list[str] | None) -> list[dict[str, Any]]:
    """Return the records with only the fields in `select`; without `select`, unchanged."""
    if not select:
        return rows
    return [{name: row[name] for name in select if name in row} for row in rows]
