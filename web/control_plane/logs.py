"""Logs: lines of a revision's build, and of what its deployment says while it serves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, jsonify
from marshmallow import ValidationError

from shared import deployments, revision_log
from shared.database import connection
from web.auth import caller
from web.control_plane.records import log_record
from web.control_plane.revisions import find_revision
from web.openapi import operation
from web.validation import (
    Field,
    OneOf,
    Rule,
    Schema,
    StrictInteger,
    StrictString,
    load,
    uuid_path,
)

bp = Blueprint("logs", __name__)


class TimeField(Field):
    """A time in ISO 8601; one without a zone is UTC."""

    type_rule = Rule("must be a time in ISO 8601", "datetime_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            at = datetime.fromisoformat(value.strip())
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise ValidationError([self.type_rule]) from error


class LogSearch(Schema):
    order = OneOf("asc", "desc", allow_none=True)
    limit = StrictInteger(minimum=1, maximum=1000, allow_none=True)
    offset = StrictString(max_length=1024, allow_none=True)
    level = OneOf(*revision_log.LEVELS, allow_none=True)
    query = StrictString(max_length=1024, allow_none=True)
    start_time = TimeField(allow_none=True)
    end_time = TimeField(allow_none=True)


@bp.post("/v1/projects/<deployment_id>/revisions/<revision_id>/build_logs")
@operation("Read a revision's build log", body=LogSearch, errors=(404,))
def search_build_logs(deployment_id: str, revision_id: str) -> Response:
    """`level` means that level and above; `start_time` and `end_time` are inclusive.

    `next_offset` continues from the last line, oldest first also beyond the end of what there is by now.
    """
    return _of_revision(deployment_id, revision_id, revision_log.BUILD)


@bp.post("/v1/projects/<deployment_id>/revisions/<revision_id>/deploy_logs")
@operation("Read what one revision of a deployment logs", body=LogSearch, errors=(404,))
def search_revision_logs(deployment_id: str, revision_id: str) -> Response:
    return _of_revision(deployment_id, revision_id, revision_log.DEPLOY)


@bp.post("/v1/projects/<deployment_id>/deploy_logs")
@operation("Read what a deployment logs", body=LogSearch, errors=(404,))
def search_deployment_logs(deployment_id: str) -> Response:
    key = uuid_path(deployment_id, "deployment_id")
    with connection() as conn:
        deployments.require(conn, caller().organization_id, key)
    return _lines(key, None, revision_log.DEPLOY)


def _of_revision(deployment_id: str, revision_id: str, kind: str) -> Response:
    with connection() as conn:
        row = find_revision(conn, deployment_id, revision_id)
    return _lines(row["deployment_id"], row["id"], kind)


def _lines(deployment_id: UUID, revision_id: UUID | None, kind: str) -> Response:
    asked = {name: value for name, value in load(LogSearch, optional=True).items() if value is not None}
    with connection() as conn:
        rows, next_offset = revision_log.lines(conn, deployment_id, kind, revision_id=revision_id, **asked)
    return jsonify(logs=[log_record(row) for row in rows], next_offset=next_offset)
