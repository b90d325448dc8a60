"""What the lists of this interface share: the deployment asked for, and pagination headers."""

from __future__ import annotations

from typing import Any

from flask import Response, current_app, g, jsonify

from shared.deployments.deployments import DeploymentRef
from shared.settings import Settings

MAX_OFFSET = 2**62  # the database counts in 64 bits


def deployment() -> DeploymentRef:
    """The deployment whose address was called."""
    found: DeploymentRef = g.deployment
    return found


def settings() -> Settings:
    """The service's settings."""
    found: Settings = current_app.config["SETTINGS"]
    return found


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
