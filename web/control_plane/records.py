"""Rows as the control plane shows them, and the page a list is answered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, jsonify
from sqlalchemy import RowMapping

from shared.deployments import limits, revision_changes
from shared.infra.encryption import MASK
from shared.infra.postgres import Row
from web.addresses import deployment_address
from web.context import base_url, settings

MAX_OFFSET = 2**62  # the database counts in 64 bits


def deployment_record(row: RowMapping) -> dict[str, Any]:
    """A deployment; its secrets by name alone, its address once it serves."""
    agent = {"agent_id": row["agent_id"], "environment": row["agent_environment"]}
    serves = row["active_revision_id"] is not None
    address = deployment_address(settings(), base_url(), row["name"], row["mount_prefix"])
    return {
        "id": row["id"],
        "tenant_id": row["organization_id"],
        "name": row["name"],
        "display_name": row["display_name"],
        "source": row["source"],
        "source_config": {**row["source_config"], "custom_url": address if serves else None},
        "source_revision_config": row["source_revision_config"] or {},
        "secrets": [{"name": name, "value": MASK} for name in row["secret_names"]],
        "secret_references": [],
        "status": row["status"],
        "latest_revision_id": row["latest_revision_id"],
        "latest_revision_number": row["latest_revision_number"],
        "latest_revision_status": row["latest_revision_status"],
        "active_revision_id": row["active_revision_id"],
        "active_revision_number": row["active_revision_number"],
        "traffic": _traffic(row),
        "image_version": None,
        "is_preview": False,
        "is_managed_deep_agent": False,
        "agent": agent if row["agent_id"] else None,
        "pool": row["pool"],
        "limits": limits.record(row),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def _traffic(row: RowMapping) -> list[dict[str, Any]]:
    """Which revisions new runs get, and how many of a hundred threads each."""
    if row["traffic"] is not None:
        return list(row["traffic"])
    if row["active_revision_id"] is None:
        return []
    number = row["active_revision_number"]
    return [{"revision_id": row["active_revision_id"], "revision_number": number, "percent": 100}]


def revision_record(row: Row) -> dict[str, Any]:
    """A revision, with what became of it."""
    return {
        "id": row["id"],
        "number": row["number"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["status"],
        "status_message": row["status_message"],
        "source": row["source"],
        "source_revision_config": {"tracked_packages": [], **row["source_revision_config"]},
        "created_by": row["created_by"],
        "changes": revision_changes.record(row),
        "preview": row["preview"],
    }


def log_record(row: RowMapping) -> dict[str, Any]:
    """A line of a log; its time in milliseconds, with the microseconds that order it."""
    return {
        "id": str(row["id"]),
        "timestamp": round(row["at"].timestamp() * 1000, 3),
        "level": row["level"],
        "message": row["message"],
        "run_id": row["run_id"],
    }


def page(records: Sequence[Mapping[str, Any]], *, offset: int) -> Response:
    """A page of a list; `offset` in the answer is where the next page begins."""
    return jsonify(resources=records, offset=offset + len(records))
