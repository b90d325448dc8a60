"""Records of the control plane, made from rows, and pages of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, jsonify
from sqlalchemy import RowMapping

from shared.deployments import limits, revision_changes
from shared.infra.encryption import MASK
from shared.infra.postgres import Row
from web.gate.addresses import deployment_address
from web.gate.context import base_url, settings

MAX_OFFSET = 2**62  # the database counts in 64 bits


def deployment_record(row: RowMapping) -> dict[str, Any]:
    """Return a deployment's record. Secrets appear without their values, and the URL once a revision serves."""
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
    """Return the revisions that new runs get, each with its percentage of threads."""
    if row["traffic"] is not None:
        return list(row["traffic"])
    if row["active_revision_id"] is None:
        return []
    number = row["active_revision_number"]
    return [{"revision_id": row["active_revision_id"], "revision_number": number, "percent": 100}]


def revision_record(row: Row) -> dict[str, Any]:
    """Return a revision's record."""
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
    """Return the record of a log line. Its time is in milliseconds; the fraction keeps lines in order."""
    return {
        "id": str(row["id"]),
        "timestamp": round(row["at"].timestamp() * 1000, 3),
        "level": row["level"],
        "message": row["message"],
        "run_id": row["run_id"],
    }


def page(records: Sequence[Mapping[str, Any]], *, offset: int) -> Response:
    """Return a page of a list. `offset` in the response is the offset of the next page."""
    return jsonify(resources=records, offset=offset + len(records))
