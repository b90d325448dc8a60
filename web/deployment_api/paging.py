"""Pages of lists, with pagination headers, and records with selected fields."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify

MAX_OFFSET = 2**62  # the database counts in 64 bits


def page(rows: list[Any], *, offset: int, limit: int, total: int) -> Response:
    """A page of a list: the true total, and where the next page begins unless this is the last."""
    response = jsonify(rows)
    response.headers["X-Pagination-Total"] = str(total)
    if offset + len(rows) < total and rows:
        response.headers["X-Pagination-Next"] = str(offset + limit)
    return response


def selected(rows: list[dict[str, Any]], select: list[str] | None) -> list[dict[str, Any]]:
    """Only the fields asked for."""
    if not select:
        return rows
    return [{name: row[name] for name in select if name in row} for row in rows]
