"""Token usage and cost of an organization's runs, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from flask import Response, jsonify

from shared.errors import Invalid
from shared.figures import usage
from shared.figures.usage import DIMENSIONS
from shared.infra.postgres import database_time
from shared.infra.replica import read
from shared.records import COUNT, ID, TEXT_OR_NULL, JsonSchema, listed, record
from web.gate.context import caller
from web.schemas.fields import DateField, OneOf, QueryList, Schema
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("usage", section="Figures")

DAYS = timedelta(days=30)
MOST_DAYS = timedelta(days=800)
CSV = "text/csv; charset=utf-8"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet executes text that begins so

COST: JsonSchema = {
    "type": ["number", "null"],
    "description": "Cost by the prices in the service's settings. Null if a model has no price",
}
OF_DIMENSIONS: dict[str, JsonSchema] = {
    "day": {"type": "string", "format": "date"},
    "key_id": TEXT_OR_NULL,
    "key": TEXT_OR_NULL,
    "deployment_id": ID,
    "deployment": TEXT_OR_NULL,
    "model": {"type": "string"},
}
ROW = record(
    "UsageRow", tuple(OF_DIMENSIONS), **OF_DIMENSIONS, **dict.fromkeys(usage.COUNTS, COUNT), cost=COST
)
USAGE = record("Usage", usage=listed(ROW))


class UsageSpan(Schema):
    until = DateField()
    by = QueryList(
        OneOf(*DIMENSIONS), max_items=len(DIMENSIONS), load_default=lambda: ["deployment", "model"]
    )
    format = OneOf("json", "csv", load_default="json")


UsageQuery = UsageSpan.from_dict({"from": DateField()}, name="UsageQuery")


@bp.operation(
    "GET /v2/usage",
    "Get tokens and their cost by day, key, deployment and model",
    role="read",
    slow=True,
    answer=USAGE,
    query=UsageQuery,
    media=("application/json", "text/csv"),
)
def get_usage() -> Response:
    """Return the usage of runs that ended on the days (UTC) `from` to `until`, both inclusive.

    By default `until` is today and `from` 30 days earlier. `by` holds any of `day`, `key`, `deployment` and `model`;
    the answer has their columns. By model, `runs` counts the runs that called the model. The key is null for runs of
    crons and of users of a deployment's own authorization.
    """
    asked: dict[str, Any] = load_query(UsageQuery)  # type: ignore[arg-type]
    until = asked.get("until") or database_time().date()
    since = asked.get("from") or until - min(DAYS, until - date.min)
    if not timedelta(0) <= until - since <= MOST_DAYS:
        raise Invalid(f"must be at most {MOST_DAYS.days} days before until", loc=("query", "from"))
    by = [name for name in DIMENSIONS if name in asked["by"]]
    rows = read(usage.usage, caller().organization_id, since=since, until=until, by=by)
    rows = [{name: _shown(value) for name, value in row.items()} for row in rows]
    if asked["format"] == "json":
        return jsonify(usage=rows)
    columns = [column for name in by for column in DIMENSIONS[name]]
    return Response(as_csv([*columns, *usage.COUNTS, "cost"], rows), content_type=CSV)


def _shown(value: Any) -> Any:
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
