"""Figures of an organization's runs: a series over time, an overview by deployment, and token usage with its cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.deployments import deployments
from shared.errors import Invalid
from shared.figures import reading, usage
from shared.figures.reading import COUNTS, KINDS, WINDOWS
from shared.figures.usage import DIMENSIONS
from shared.infra.postgres import database_time
from shared.infra.replica import read
from shared.models import UNSUCCESSFUL_RUN_STATUSES, DeploymentStatus
from shared.records import (
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
    ID,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    JsonSchema,
    listed,
    one_of,
    record,
)
from web.gate.callers import require_role
from web.gate.context import caller
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("figures", section="Figures")

SECONDS: JsonSchema = {"type": "number", "minimum": 0}
SECONDS_OR_NULL: JsonSchema = {"type": ["number", "null"], "minimum": 0}
FIGURES: dict[str, JsonSchema] = {
    **dict.fromkeys(COUNTS, COUNT),
    **{f"{kind}_{share}": SECONDS_OR_NULL for kind in KINDS for share in reading.SHARES},
}
POINT = record("FigurePoint", (), at=TIME, **FIGURES)
SERIES = record(
    "FigureSeries",
    (),
    step_seconds=COUNT,
    **{"from": TIME, "until": TIME},
    points=listed(POINT),
    total=record("FigureTotal", (), **FIGURES),
)
DEPLOYMENT_FIGURES = record(
    "DeploymentFigures",
    id=ID,
    name=TEXT,
    status=one_of(*DeploymentStatus),
    pool=TEXT,
    revision_number=COUNT_OR_NULL,
    runs_a_minute=SECONDS,
    success=COUNT,
    failed=COUNT,
    **dict.fromkeys(reading.OF_OVERVIEW, SECONDS_OR_NULL),
    running=COUNT,
    waiting=COUNT,
    oldest_wait_seconds=SECONDS,
)
OVERVIEW = record("Overview", (), **{"from": TIME, "until": TIME}, deployments=listed(DEPLOYMENT_FIGURES))

FAILURE_STATUS = one_of(*UNSUCCESSFUL_RUN_STATUSES)
FAILURE_REASON = record(
    "FailureReason",
    (),
    deployment_id=ID,
    deployment=TEXT,
    status=FAILURE_STATUS,
    error={"description": "The class of the error", **TEXT_OR_NULL},
    runs=COUNT,
    last_ended_at=TIME,
)
UNRECORDED = record("UnrecordedFailures", (), deployment_id=ID, status=FAILURE_STATUS, runs=COUNT)
FAILURES = record(
    "Failures",
    (),
    **{"from": TIME, "until": TIME},
    reasons=listed(FAILURE_REASON),
    unrecorded=listed(UNRECORDED),
    incomplete=listed(ID),
)


class OverviewQuery(fields.Schema):
    window = fields.OneOf(*WINDOWS, load_default="hour")


class SeriesQuery(OverviewQuery):
    deployment_id = fields.UuidField()
    key_id = fields.StrictString(max_length=255)


@bp.operation(
    "GET /v2/metrics/series",
    "Get the figures of runs as a time series",
    role="read",
    slow=True,
    answer=SERIES,
    query=SeriesQuery,
    errors=(404,),
)
def get_series(query: dict[str, Any]) -> Response:
    """Return the figures of 60 minutes, 24 hours or 168 hours. The last point is the current, incomplete step.

    A run counts as created in the step of its creation. All its other figures belong to the step in which it ends:
    status, attempts, tokens, and the seconds for which it waited, for which it ran, and until its first token. Seconds
    are null if no run of the step has them.
    """
    window = WINDOWS[query.pop("window")]
    organization_id = caller().organization_id

    def series(conn: Connection) -> Any:
        if "deployment_id" in query:
            deployments.get(conn, organization_id, query["deployment_id"])
        return reading.series(conn, organization_id, window, **query)

    return jsonify(read(series))


@bp.operation(
    "GET /v2/metrics/overview",
    "Get the figures of each deployment, in a window and now",
    role="read",
    slow=True,
    answer=OVERVIEW,
    query=OverviewQuery,
)
def get_overview(query: dict[str, Any]) -> Response:
    """Return the figures of each deployment. `failed` counts errors and timeouts. GET /v2/workers returns the pools."""
    window = WINDOWS[query["window"]]
    return jsonify(read(reading.overview, caller().organization_id, window))


@bp.operation(
    "GET /v2/metrics/failures",
    "Get the runs without success in a window, by reason",
    role="read",
    slow=True,
    answer=FAILURES,
    query=OverviewQuery,
)
def get_failures(query: dict[str, Any]) -> Response:
    """Return the runs that ended without success since `from`, by deployment, status and error class.

    A search for runs of a deployment with this `status`, `error` and `since` finds exactly these runs. `unrecorded` counts
    the runs that no search finds: temporary runs, runs that were rolled back, and runs whose thread was deleted. Of a
    deployment in `incomplete` only the 2000 newest runs are counted.
    """
    return jsonify(read(reading.failures, caller().organization_id, WINDOWS[query["window"]]))


DEFAULT_DAYS = timedelta(days=30)
MAX_DAYS = timedelta(days=800)
CSV = "text/csv; charset=utf-8"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet executes text that begins so

COST: JsonSchema = {
    "type": ["number", "null"],
    "description": "Cost by the prices in the service's settings. Null if a model has no price",
}
DIMENSION_COLUMNS: dict[str, JsonSchema] = {
    "day": {"type": "string", "format": "date"},
    "key_id": TEXT_OR_NULL,
    "key": TEXT_OR_NULL,
    "deployment_id": ID,
    "deployment": TEXT_OR_NULL,
    "source": one_of("runs", "replay"),
    "model": {"type": "string"},
    "user": {"description": "Identity in the deployment's own authorization", **TEXT_OR_NULL},
    "node": {"description": "Node of the graph", **TEXT_OR_NULL},
    "is_rest": {"description": "Whether the row is the sum of the other users or nodes", **BOOLEAN},
}
USAGE_ROW = record(
    "UsageRow", tuple(DIMENSION_COLUMNS), **DIMENSION_COLUMNS, **dict.fromkeys(usage.COUNTS, COUNT), cost=COST
)
USAGE = record("Usage", usage=listed(USAGE_ROW))


class UsageSpan(fields.Schema):
    until = fields.DateField()
    by = fields.QueryList(
        fields.OneOf(*DIMENSIONS), max_items=len(DIMENSIONS), load_default=lambda: ["deployment", "model"]
    )
    format = fields.OneOf("json", "csv", load_default="json")


UsageQuery = UsageSpan.from_dict({"from": fields.DateField()}, name="UsageQuery")


@bp.operation(
    "GET /v2/usage",
    "Get tokens and their cost by day, key, deployment, model, user and node",
    role="read",
    slow=True,
    answer=USAGE,
    query=UsageQuery,
    media=("application/json", "text/csv"),
)
def get_usage(query: dict[str, Any]) -> Response:
    """Return the usage of runs that ended on the days (UTC) `from` to `until`, both inclusive.

    By default `until` is today and `from` 30 days earlier. `by` holds any of `day`, `key`, `deployment`, `source` and `model`;
    the answer has their columns. By model, `runs` counts the runs that called the model. The key is null for runs of
    crons and of users of a deployment's own authorization.

    `by` may also hold either `user` or `node`, with any of `day`, `deployment` and `model`. The 1000 users or nodes with
    the most tokens have rows of their own. `is_rest` marks the row of the others. `user` is null for runs without a user,
    `node` for calls outside of nodes. `user` needs the role `run`. These figures leave replays out, and are removed with the deployment.
    """
    until = query.get("until") or database_time().date()
    since = query.get("from") or until - min(DEFAULT_DAYS, until - date.min)
    if not timedelta(0) <= until - since <= MAX_DAYS:
        raise Invalid(f"must be at most {MAX_DAYS.days} days before until", loc=("query", "from"))
    by = [name for name in DIMENSIONS if name in query["by"]]
    if "user" in by:
        require_role(caller(), "run")  # as for the threads of users
    rows = read(usage.usage, caller().organization_id, since=since, until=until, by=by)
    rows = [{name: _as_text(value) for name, value in row.items()} for row in rows]
    if query["format"] == "json":
        return jsonify(usage=rows)
    columns = [column for name in by for column in DIMENSIONS[name]]
    return Response(as_csv([*columns, *usage.COUNTS, "cost"], rows), content_type=CSV)


def _as_text(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table as CSV with a header row. Text that a spreadsheet would execute is quoted."""
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(columns)
    for row in rows:
        table.writerow([_cell(row[name]) for name in columns])
    return written.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
