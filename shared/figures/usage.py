"""Token usage and its cost, by day, key, deployment, model, user and node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Table, select

from shared.errors import Invalid
from shared.infra.postgres import Row
from shared.models import API_KEY, DEPLOYMENT
from shared.setting_values import Prices
from shared.sql import statement

# The dimensions of a query, and the columns of each in an answer.
DIMENSIONS = {
    "day": ("day",),
    "key": ("key_id", "key"),
    "deployment": ("deployment_id", "deployment"),
    "source": ("source",),
    "model": ("model",),
    "user": ("user", "is_rest"),
    "node": ("node", "is_rest"),
}
DETAILS = ("user", "node")
_WITH_DETAILS = ("day", "deployment", "model")  # dimensions that may be combined with a detail
_GROUPED = {"day": "day", "key": "key_id", "deployment": "deployment_id", "source": "source"}
TOKENS = ("input_tokens", "output_tokens", "total_tokens")
COUNTS = ("runs", *TOKENS)
MOST_ROWS = 100_000
MAX_NAME, DIGEST_LENGTH = 200, 16  # of users, nodes and models
STUDIO_USER = "StudioUser"  # `kind` in the document of the user of the platform's tools
MOST_TOKENS = 10**12
MOST_COST = Decimal(10**15)  # of a run
MOST_NAMES = 1_000  # users or nodes in an answer; the others are one row

_USAGE = statement("figures.usage")
_DETAIL = statement("figures.detail")


def user_name(user: Mapping[str, Any] | None) -> str | None:
    """Return the name under which a user's usage is counted: the identity, with a digest in place of a long end.

    None without a user, and for tools of the platform that act at a deployment.
    """
    if user is None or user.get("kind") == STUDIO_USER:
        return None
    identity = str(user["identity"])
    if len(identity) <= MAX_NAME:
        return identity
    digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{identity[: MAX_NAME - DIGEST_LENGTH]}{digest}"


def usage(
    conn: Connection, organization_id: UUID, *, since: date, until: date, by: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the token usage of an organization between two days: a row for each combination of the dimensions in `by`.

    With the dimension `model`, `runs` counts the runs that called it; otherwise all runs. By `user` or `node`, the
    MOST_NAMES with the most tokens have rows of their own. A row with `is_rest` is the sum of the others, and one without
    a name that of runs without a user or of calls outside of nodes. Raises Invalid above MOST_ROWS rows, and for
    dimensions that cannot be combined.
    """
    columns = [column for name, column in _GROUPED.items() if name in by]
    span = {"organization_id": organization_id, "since": since, "until": until, "limit": MOST_ROWS + 1}
    grouped = {f"by_{name}": name in by for name in _GROUPED}
    detail = _detail_of(by)
    if detail is None:
        rows = _USAGE.rows(conn, **span, **grouped)
    else:
        rows = [
            {**row, detail: row["name"]}
            for row in _DETAIL.rows(conn, **span, **grouped, kind=detail, names=MOST_NAMES)
        ]
        columns += DIMENSIONS[detail]
    if len(rows) > MOST_ROWS:
        raise Invalid("returns too many rows: ask for fewer days or dimensions", loc=("query", "by"))
    if "model" in by:
        sums = [_row_of_model(row, columns) for row in rows if row["model"]]
    else:
        sums = _merged_models(rows, columns)
    return _with_names(conn, organization_id, sums, by)


def _detail_of(by: Sequence[str]) -> str | None:
    """Return the one detail among the dimensions, if any. Raises Invalid for dimensions that cannot be combined with it."""
    detail = next((name for name in DETAILS if name in by), None)
    if detail is not None and not set(by) <= {detail, *_WITH_DETAILS}:
        raise Invalid(f"{detail} can be combined with {', '.join(_WITH_DETAILS)} only", loc=("query", "by"))
    return detail


def _row_of_model(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    counts = {name: row[name] for name in COUNTS}
    key = {name: row[name] for name in columns}
    return {**key, "model": row["model"], **counts, "cost": cost({row["model"]: counts})}


def _merged_models(rows: Iterable[Row], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Merge rows that differ only in their model. The row without a model holds the number of runs."""
    models: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        models.setdefault(tuple(row[name] for name in columns), {})[row["model"]] = row
    return [
        {
            **dict(zip(columns, key, strict=True)),
            "runs": by_model[""]["runs"] if "" in by_model else 0,
            **{name: sum(row[name] for row in by_model.values()) for name in TOKENS},
            "cost": cost({model: dict(row) for model, row in by_model.items() if model}),
        }
        for key, by_model in models.items()
    ]


def _with_names(
    conn: Connection, organization_id: UUID, rows: Sequence[Mapping[str, Any]], by: Sequence[str]
) -> list[dict[str, Any]]:
    """Add the names of keys and deployments. None for deleted ones and for runs without a key."""
    names = {
        "deployment": _names(conn, DEPLOYMENT, organization_id) if "deployment" in by else {},
        "key": _names(conn, API_KEY, organization_id) if "key" in by else {},
    }
    columns = [column for name in DIMENSIONS if name in by for column in DIMENSIONS[name]]

    def value(row: Mapping[str, Any], column: str) -> Any:
        if column in names:
            return names[column].get(row[f"{column}_id"])
        return row[column] if column == "is_rest" else row[column] or None

    return [
        {column: value(row, column) for column in columns} | {name: row[name] for name in (*COUNTS, "cost")}
        for row in rows
    ]


def _names(conn: Connection, table: Table, organization_id: UUID) -> dict[Any, str]:
    query = select(table.c.id, table.c.name).where(table.c.organization_id == organization_id)
    return {row.id: row.name for row in conn.execute(query)}


# Costs of tokens, by the prices in the settings. A process configures its prices once, when it starts.

A_MILLION = 1_000_000

EXACT_DIGITS = 60  # more than a count of tokens times a price has

_prices: dict[str, tuple[Decimal, Decimal]] = {}


def configure_prices(prices: Prices) -> None:
    """Use these prices from now on."""
    global _prices
    _prices = {model: (Decimal(repr(first)), Decimal(repr(second))) for model, first, second in prices}


def _prices_of(model: str) -> tuple[Decimal, Decimal] | None:
    """Return the prices of a million input and output tokens, by the model's name or the longest matching `prefix*`."""
    if model in _prices:
        return _prices[model]
    fitting = [name for name in _prices if name.endswith("*") and model.startswith(name[:-1])]
    return _prices[max(fitting, key=len)] if fitting else None


def cost(usage: Mapping[str, Any] | None) -> float | None:
    """Return the total cost of token counts by model, rounded to six decimals.

    None without usage, or if a model has no price.
    """
    if not usage or not isinstance(usage, Mapping):
        return None
    total, unpriced = exact_cost(usage)
    return None if unpriced else float(round(total, 6))


def exact_cost(usage: Mapping[str, Any]) -> tuple[Decimal, list[str]]:
    """Return the exact cost of token counts by model, and the models without a price, which count as 0."""
    costs = {model: _cost_of_model(model, counts) for model, counts in usage.items()}
    with localcontext(prec=EXACT_DIGITS):
        total = sum((each for each in costs.values() if each is not None), Decimal(0))
    return min(total, MOST_COST), [model for model, each in costs.items() if each is None]


def total_tokens(usage: Mapping[str, Any] | None) -> int:
    """Return the tokens of token counts by model."""
    counts = usage.values() if isinstance(usage, Mapping) else ()
    return sum(int(_number(each.get("total_tokens"))) for each in counts if isinstance(each, Mapping))


def _cost_of_model(model: str, counts: Any) -> Decimal | None:
    prices = _prices_of(model)
    if prices is None or not isinstance(counts, Mapping):
        return None
    used = (_number(counts.get("input_tokens")), _number(counts.get("output_tokens")))
    with localcontext(prec=EXACT_DIGITS):
        costs = (Decimal(tokens) * price for tokens, price in zip(used, prices, strict=True))
        return sum(costs, Decimal(0)) / A_MILLION


def _number(value: Any) -> float:
    """Return a count from a graph host, which may send any value. 0 if it is not a number."""
    return min(max(value, 0), MOST_TOKENS) if isinstance(value, int | float) else 0
