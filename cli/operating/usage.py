"""`runyard usage`: show the tokens that an organization's runs used, and their cost."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import typer
from rich.table import Table
from typer import Option

from cli.commands import Service, command
from cli.deployments.logs import as_moment
from cli.errors import BadUsage
from cli.output import Column, Output, table

DIMENSIONS = ("day", "key", "deployment", "source", "model", "user", "node")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet executes text that begins so
DETAILS = ("user", "node")  # an answer has rows of those with the most tokens, and one of the others
COUNTS = ("runs", "input_tokens", "output_tokens", "total_tokens")
HEADS = {"runs": "runs", "input_tokens": "input", "output_tokens": "output", "total_tokens": "total"}


@command
def usage(
    service: Service,
    out: Output,
    by: str = Option(
        "deployment,model",
        help="Groups, separated by commas: day, key, deployment, source, model; or user or node, with any of day,"
        " deployment, model.",
        metavar="LIST",
    ),
    since: str | None = Option(
        None, help="First day: 2026-01-31, or an age such as 30d. Default: 30 days ago.", metavar="TIME"
    ),
    as_csv: bool = Option(False, "--csv", help="Print CSV."),
) -> None:
    """Show the tokens that runs used and their cost by RUNYARD_MODEL_PRICES."""
    dimensions = _dimensions(by)
    query = {"by": ",".join(dimensions)}
    if since is not None:
        query["from"] = datetime.fromisoformat(as_moment(since)).date().isoformat()
    if as_csv and out.as_json:
        raise BadUsage("--csv and --json are two forms of one answer: choose one.")
    with service.open() as client:
        rows = client.get("/v2/usage", query)["usage"]
    if as_csv:
        _write(rows, dimensions)
    elif rows or out.as_json:
        out.show(rows, lambda: usage_table(rows, dimensions))
    else:
        typer.echo("No run that used tokens has ended in this time.")


def _dimensions(by: str) -> list[str]:
    """Return the dimensions in `--by` in the order of the columns. Raises BadUsage."""
    words = [word.strip() for word in by.split(",") if word.strip()]
    unknown = [word for word in words if word not in DIMENSIONS]
    if unknown or not words:
        raise BadUsage(f"--by takes any of {', '.join(DIMENSIONS)}, not {by!r}.")
    return [name for name in DIMENSIONS if name in words]


def usage_table(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> Table:
    """Return the table of the rows, with a total below several rows unless they are split by model."""
    groups = [Column(name.capitalize(), partial(_name, name), no_wrap=True) for name in by]
    numbers = [Column(head, partial(_count, name), no_wrap=True) for name, head in HEADS.items()]
    numbers.append(Column("cost", _cost, no_wrap=True))
    result = table(rows, [*groups, *numbers])
    # A run counts in the row of each model and node that it called, so their rows have no sum.
    if len(rows) > 1 and not {"model", "node"} & set(by):
        costs = [row["cost"] for row in rows if row["cost"] is not None]
        sums = {name: sum(row[name] for row in rows) for name in COUNTS}
        total = {**sums, "cost": sum(costs) if costs else None}
        result.add_row("Total", *[""] * (len(by) - 1), *(column.cell(total) for column in numbers))
    return result


def _name(dimension: str, row: Mapping[str, Any]) -> str:
    """Return the name of a dimension's value; its id if the object is deleted, or a dash if there is neither."""
    if dimension in DETAILS and row["is_rest"]:
        return "(others)"
    return str(row[dimension] or row.get(f"{dimension}_id") or "-")


def _count(name: str, row: Mapping[str, Any]) -> str:
    return f"{row[name]:,}"


def _cost(row: Mapping[str, Any]) -> str:
    return "-" if row["cost"] is None else f"{row['cost']:,.2f}"


def _write(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> None:
    """Write the rows as CSV to stdout, with ids beside names and values as the API returns them."""
    ids = {
        "key": ("key_id", "key"),
        "deployment": ("deployment_id", "deployment"),
        **{name: (name, "is_rest") for name in DETAILS},
    }
    columns = [column for name in by for column in ids.get(name, (name,))]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*columns, *COUNTS, "cost"])
    for row in rows:
        out.writerow([_cell(row[name]) for name in (*columns, *COUNTS, "cost")])


def _cell(value: Any) -> Any:
    """Return a value for CSV. Users choose their names, and a spreadsheet would execute some."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
