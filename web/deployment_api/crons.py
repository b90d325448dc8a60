"""Crons: schedules that create runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from marshmallow import ValidationError
from uuid_utils.compat import uuid7

from shared import assistants
from shared.crons import records as crons
from shared.crons import schedule as schedules
from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.records import COUNT, OBJECT, TIME, listed, record, selection
from shared.runs.read import STRATEGIES
from shared.user_code import filters
from shared.user_code.authorization import Ask, Granted
from web.deployment_api.assistants import CONFIG_BYTES, METADATA_BYTES, ConfigField, refuse_two_configurations
from web.deployment_api.runs.run_request import STREAM_MODES, NodeNames, check_webhooks
from web.gate.context import (
    allow,
    allow_all,
    deployment,
    metadata_of,
    settings,
    unchecked_deployment,
    user,
    user_document,
)
from web.http.responses import PAGE_HEADERS, page, select_fields
from web.schemas import fields
from web.schemas.openapi_examples import GRAPH, MESSAGES
from web.schemas.operations import RouteGroup

bp = RouteGroup("crons", section="Crons", switches=("disable_runs",))

FIRINGS = record("CronFirings", firings=listed(TIME))


class Moment(fields.Field):
    """A time in ISO 8601; without an offset it is UTC."""

    type_rule = fields.Rule("must be a time in ISO 8601", "datetime_parsing")
    json_schema: ClassVar[dict[str, Any]] = {"type": "string", "format": "date-time"}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        try:
            return schedules.moment_of(value)
        except (TypeError, ValueError):
            raise ValidationError([self.type_rule]) from None


IN_THE_FUTURE = {"description": "Must be in the future"}


class EndTime(fields.Field):
    """The end of a cron, stored as sent. `shared/crons/records.py` refuses an end in the past."""

    json_schema = Moment.json_schema

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        Moment().deserialize(value)
        return value


class Input(fields.Field):
    """An object, or an array of objects."""

    type_rule = fields.Rule("must be an object or an array of objects", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"anyOf": [OBJECT, {"type": "array", "items": OBJECT}]}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        listed = value if isinstance(value, list) else [value]
        if all(isinstance(item, dict) for item in listed):
            return value
        raise ValidationError([self.type_rule])


class CronContent(fields.Schema):
    timezone = fields.StrictString(max_length=100, allow_none=True)
    end_time = EndTime(allow_none=True, metadata=IN_THE_FUTURE)
    input = Input(allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    config = ConfigField(max_bytes=CONFIG_BYTES)
    context = fields.JsonObject(max_bytes=CONFIG_BYTES)
    webhook = fields.StrictString(min_length=1, max_length=65_536, allow_none=True)
    interrupt_before = NodeNames(allow_none=True)
    interrupt_after = NodeNames(allow_none=True)
    enabled = fields.StrictBoolean()
    stream_mode = fields.ItemOrList(fields.OneOf(*STREAM_MODES), allow_none=True)
    stream_subgraphs = fields.StrictBoolean()
    stream_resumable = fields.StrictBoolean()
    durability = fields.OneOf("sync", "async", "exit", allow_none=True)


class NewCron(CronContent):
    example: ClassVar[dict[str, Any]] = {"assistant_id": GRAPH, "schedule": "0 9 * * 1-5", "input": MESSAGES}

    assistant_id = fields.StrictString(required=True, min_length=1)
    schedule = fields.StrictString(required=True, min_length=1)
    end_time = EndTime(metadata=IN_THE_FUTURE)


class CronCreate(NewCron):
    on_run_completed = fields.OneOf("delete", "keep", allow_none=True)


class ThreadCronCreate(NewCron):
    multitask_strategy = fields.OneOf(*STRATEGIES, allow_none=True)


class CronPatch(CronContent):
    example: ClassVar[dict[str, Any]] = {"enabled": False}

    schedule = fields.StrictString(min_length=1)
    on_run_completed = fields.OneOf("delete", "keep", allow_none=True)
    multitask_strategy = fields.OneOf(*STRATEGIES, allow_none=True)


class CronFilter(fields.Schema):
    assistant_id = fields.UuidField(allow_none=True)
    thread_id = fields.UuidField(allow_none=True)
    metadata = fields.Filter()


class CronSearch(CronFilter):
    enabled = fields.StrictBoolean(allow_none=True)
    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)
    sort_by = fields.OneOf(*crons.SORTABLE, load_default="created_at", allow_none=True)
    sort_order = fields.OneOf("asc", "desc", load_default="desc", allow_none=True)
    select = fields.ListOf(fields.OneOf(*crons.RECORD.selectable, "now"), allow_none=True)


class FiringsQuery(fields.Schema):
    count = fields.QueryInteger(minimum=1, maximum=100, load_default=5)


@bp.operation(
    "POST /runs/crons",
    "Create a cron that runs on a new thread each time",
    role="run",
    body=CronCreate,
    answer=crons.RECORD.schema,
    errors=(400, 404, 409, 429),
)
def create_cron(body: dict[str, Any]) -> Response:
    """Create a cron. `schedule` has five fields, or six with seconds last, and is read in `timezone` (default UTC).

    A schedule that fires more often than every ten seconds is refused, unless the operator allows it.
    """
    return _create(body, None)


@bp.operation(
    "POST /threads/<thread_id>/runs/crons",
    "Create a cron on a thread",
    role="run",
    body=ThreadCronCreate,
    answer=crons.RECORD.schema,
    errors=(400, 404, 409, 429),
)
def create_thread_cron(thread_id: UUID, body: dict[str, Any]) -> Response:
    return _create(body, thread_id)


def _create(body: dict[str, Any], thread_id: UUID | None) -> Response:
    _check(body)
    cron_id = uuid7()
    granted, of_threads, of_assistants = _allow_create(body, cron_id, thread_id)
    if metadata := metadata_of(granted):
        body["metadata"] = metadata
    with connection() as conn:
        row = crons.create(
            conn,
            deployment(),
            body,
            thread_id=thread_id,
            cron_id=cron_id,
            user=user_document(),
            of_threads=of_threads,
            of_assistants=of_assistants,
            min_seconds=settings().min_cron_seconds,
        )
        return jsonify(crons.RECORD.show(row))


def _allow_create(
    body: dict[str, Any], cron_id: UUID, thread_id: UUID | None
) -> tuple[Granted, filters.Filter | None, filters.Filter | None]:
    """Authorize a cron, and reading its thread and its assistant. Raises Denied.

    Returns the grant for the cron, the filter for the thread and the filter for the assistant. Every caller may read a
    graph's default assistant, so the handlers are not asked about it.
    """
    identified = user()
    value = {
        "payload": crons.payload(body, cron_id),
        "schedule": body["schedule"],
        "cron_id": cron_id,
        "thread_id": thread_id,
        "user_id": None if identified is None else identified.identity,
        "end_time": body.get("end_time"),
        "metadata": body.get("metadata", {}),
    }
    asks = [Ask("crons", "create", value)]
    if thread_id is not None:
        asks.append(Ask("threads", "read", {"thread_id": thread_id}))
    assistant_id = assistants.named_id(body["assistant_id"])
    if not _may_everybody_read(assistant_id):
        asks.append(Ask("assistants", "read", {"assistant_id": assistant_id}))
    granted, *reads = allow_all(asks)
    filter_of = dict(zip((ask.resource for ask in asks[1:]), (read.filter for read in reads), strict=True))
    return granted, filter_of.get("threads"), filter_of.get("assistants")


def _may_everybody_read(assistant_id: UUID) -> bool:
    """Return whether the deployment has no authorization, or the assistant is the default one of a graph."""
    if user() is None:
        return True
    with connection() as conn:
        return assistant_id in map(assistants.default_id, assistants.graph_ids(conn, unchecked_deployment()))


def _check(body: dict[str, Any]) -> None:
    check_webhooks([body.get("webhook")])
    refuse_two_configurations(body)


@bp.operation(
    "GET /runs/crons/<cron_id>", "Get a cron", role="read", answer=crons.RECORD.schema, errors=(404,)
)
def get_cron(cron_id: UUID) -> Response:
    granted = allow("crons", "read", cron_id=cron_id)
    with connection() as conn:
        filters.require_cron(conn, deployment().id, cron_id, granted.filter)
        return jsonify(crons.RECORD.show(crons.get(conn, deployment().id, cron_id)))


@bp.operation(
    "GET /runs/crons/<cron_id>/firings",
    "List the next firing times of a cron",
    role="read",
    query=FiringsQuery,
    answer=FIRINGS,
    errors=(404,),
)
def get_firings(cron_id: UUID, query: dict[str, Any]) -> Response:
    """List the next times at which the cron fires, none of them after its `end_time`. A disabled cron has none."""
    count = query["count"]
    granted = allow("crons", "read", cron_id=cron_id)
    with connection() as conn:
        filters.require_cron(conn, deployment().id, cron_id, granted.filter)
        return jsonify(firings=crons.firings(conn, deployment().id, cron_id, count=count))


@bp.operation(
    "PATCH /runs/crons/<cron_id>",
    "Update a cron",
    role="run",
    body=CronPatch,
    answer=crons.RECORD.schema,
    errors=(400, 404),
)
def change_cron(cron_id: UUID, body: dict[str, Any]) -> Response:
    """Change a cron. Metadata is merged. `end_time: null` removes the end. A new schedule or time zone starts now."""
    _check(body)
    if not body:
        raise Invalid("Request body cannot be empty", status=400)
    changes = {name: body.get(name) for name in ("schedule", "end_time", "enabled", "on_run_completed")}
    sent = {"metadata": body["metadata"]} if "metadata" in body else {}
    granted = allow("crons", "update", cron_id=cron_id, **changes, payload=body, **sent)
    with connection() as conn:
        row = crons.update(
            conn,
            deployment().id,
            cron_id,
            body,
            visible=granted.filter,
            stamped=metadata_of(granted),  # a handler may add metadata to a request without any
            min_seconds=settings().min_cron_seconds,
        )
        return jsonify(crons.RECORD.show(row))


@bp.operation(
    "DELETE /runs/crons/<cron_id>", "Delete a cron, but not its runs", role="run", status=204, errors=(404,)
)
def delete_cron(cron_id: UUID) -> None:
    granted = allow("crons", "delete", cron_id=cron_id)
    with connection() as conn:
        filters.require_cron(conn, deployment().id, cron_id, granted.filter, lock=True)
        crons.delete(conn, deployment().id, cron_id)


@bp.operation(
    "POST /runs/crons/search",
    "Search crons",
    role="read",
    slow=True,
    body=CronSearch,
    answer=listed(selection(crons.RECORD.schema)),
    headers=PAGE_HEADERS,
)
def search_crons(body: dict[str, Any]) -> Response:
    body = {name: value for name, value in body.items() if value is not None}
    select = body.pop("select", None)
    paging = {name: body.pop(name) for name in ("limit", "offset", "sort_by", "sort_order") if name in body}
    visible = _allow_search(body, limit=paging["limit"], offset=paging["offset"])

    rows, total = read(crons.search, deployment().id, visible=visible, **paging, **body)
    records = select_fields([crons.RECORD.show(row) for row in rows], select)
    return page(records, offset=paging["offset"], limit=paging["limit"], total=total)


def _allow_search(criteria: dict[str, Any], *, limit: int, offset: int) -> crons.Visible:
    """Authorize a search. Narrows the metadata of `criteria`, in place, as the handler requires. Raises Denied.

    Returns the filters for crons and for the threads they are on.
    """
    named = {name: criteria.get(name) for name in ("assistant_id", "thread_id")}
    value = {**named, "limit": limit, "offset": offset, "metadata": criteria.get("metadata", {})}
    of_crons, of_threads = allow_all([Ask("crons", "search", value), Ask("threads", "search", {})])
    if metadata := metadata_of(of_crons):
        criteria["metadata"] = metadata
    return crons.Visible(of_crons.filter, of_threads.filter)


@bp.operation("POST /runs/crons/count", "Count crons", role="read", slow=True, body=CronFilter, answer=COUNT)
def count_crons(body: dict[str, Any]) -> Response:
    body = {name: value for name, value in body.items() if value is not None}
    visible = _allow_search(body, limit=0, offset=0)
    return jsonify(read(crons.count, deployment().id, visible=visible, **body))
