"""Records of the control plane that depend on the request, and pages of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, jsonify
from sqlalchemy import RowMapping

from shared.deployments.records import DEPLOYMENT
from shared.records import COUNT, JsonSchema, listed, record
from web.gate.addresses import deployment_address
from web.gate.context import base_url, settings


def deployment_record(row: RowMapping) -> dict[str, Any]:
    """Return a deployment's record, with its URL as `custom_url` once a revision serves."""
    serves = row["active_revision_id"] is not None
    address = deployment_address(settings(), base_url(), row["name"], row["mount_prefix"])
    custom_url = address if serves else None
    return {**DEPLOYMENT.show(row), "source_config": {**row["source_config"], "custom_url": custom_url}}


def page_schema(item: JsonSchema) -> JsonSchema:
    """Return the schema of a page of a list. `offset` is the offset of the next page."""
    return record(f"{item['title']}Page", resources=listed(item), offset=COUNT)


def page(records: Sequence[Mapping[str, Any]], *, offset: int) -> Response:
    """Return a page of a list. `offset` in the response is the offset of the next page."""
    return jsonify(resources=records, offset=offset + len(records))
