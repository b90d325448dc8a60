"""Figures of an organization's runs: a series over time, and an overview by deployment."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.deployments import deployments
from shared.figures import reading
from shared.figures.reading import COUNTS, KINDS, WINDOWS
from shared.infra.replica import read
from shared.models import DeploymentStatus
from shared.records import COUNT, COUNT_OR_NULL, ID, TEXT, TIME, JsonSchema, listed, one_of, record
from web.gate.context import caller
from web.schemas.fields import OneOf, Schema, StrictString, UuidField
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("metrics", section="Figures")

SECONDS: JsonSchema = {"type": "number", "minimum": 0}
SECONDS_OR_NULL: JsonSchema = {"type": ["number", "null"], "minimum": 0}
POINT = record(
    "FigurePoint",
    (),
    at=TIME,
    **dict.fromkeys(COUNTS, COUNT),
    **{f"{kind}_{share}": SECONDS_OR_NULL for kind in KINDS for share in reading.SHARES},
)
SERIES = record("FigureSeries", (), step_seconds=COUNT, **{"from": TIME, "until": TIME}, points=listed(POINT))
IN_OVERVIEW = record(
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
OVERVIEW = record("Overview", (), **{"from": TIME, "until": TIME}, deployments=listed(IN_OVERVIEW))


class OverviewQuery(Schema):
    window = OneOf(*WINDOWS, load_default="hour")


class SeriesQuery(OverviewQuery):
    deployment_id = UuidField()
    key_id = StrictString(max_length=255)


@bp.operation(
    "GET /v2/metrics/series",
    "Get the figures of runs as a time series",
    role="read",
    slow=True,
    answer=SERIES,
    query=SeriesQuery,
    errors=(404,),
)
def get_series() -> Response:
    """Return the figures of 60 minutes, 24 hours or 168 hours. The last point is the current, incomplete step.

    A run counts as created in the step of its creation. All its other figures belong to the step in which it ends:
    status, attempts, tokens, and the seconds for which it waited, for which it ran, and until its first token. Seconds
    are null if no run of the step has them.
    """
    asked: dict[str, Any] = load_query(SeriesQuery)
    window = WINDOWS[asked.pop("window")]
    organization_id = caller().organization_id

    def series(conn: Connection) -> Any:
        if "deployment_id" in asked:
            deployments.get(conn, organization_id, asked["deployment_id"])
        return reading.series(conn, organization_id, window, **asked)

    return jsonify(read(series))


@bp.operation(
    "GET /v2/metrics/overview",
    "Get the figures of each deployment, in a window and now",
    role="read",
    slow=True,
    answer=OVERVIEW,
    query=OverviewQuery,
)
def get_overview() -> Response:
    """Return the figures of each deployment. `failed` counts errors and timeouts. GET /v2/workers returns the pools."""
    window = WINDOWS[load_query(OverviewQuery)["window"]]
    return jsonify(read(reading.overview, caller().organization_id, window))
