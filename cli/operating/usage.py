"""`runyard usage`: show the tokens that an organization's runs used, and their cost."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.deployments.logs import moment
from cli.errors import BadUsage
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, printable

DIMENSIONS = ("day", "key", "deployment", "model")
COUNTS = ("runs", "input_tokens", "output_tokens", "total_tokens")
HEADS = {"runs": "runs", "input_tokens": "input", "output_tokens": "output", "total_tokens": "total"}


def command(
    by: Annotated[
        str, typer.Option(help="Groups, separated by commas: day, key, deployment, model.", metavar="LIST")
    ] = "deployment,model",
    since: Annotated[
        str | None,
        typer.Option(
            help="First day: 2026-01-31, or an age such as 30d. Default: 30 days ago.", metavar="TIME"
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show the tokens that runs used and their cost by RUNYARD_MODEL_PRICES."""
    with sentences(as_json=as_json):
        wanted = {"by": ",".join(_dimensions(by))}
        if since is not None:
            wanted["from"] = datetime.fromisoformat(moment(since)).date().isoformat()
        if as_csv and as_json:
            raise BadUsage("--csv and --json are two forms of one answer: choose one.")
        with open_client(url, api_key, org) as client:
            rows = client.get("/v2/usage", wanted)["usage"]
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        elif as_csv:
            _write(rows, wanted["by"].split(","))
        elif rows:
            console().print(shown(rows, wanted["by"].split(",")))
        else:
            typer.echo("No run has ended in this time.")


def _dimensions(by: str) -> list[str]:
    """Return the dimensions in `--by` in the order of the columns. Raises BadUsage."""
    asked = [word.strip() for word in by.split(",") if word.strip()]
    unknown = [word for word in asked if word not in DIMENSIONS]
    if unknown or not asked:
        raise BadUsage(f"--by takes any of {', '.join(DIMENSIONS)}, not {by!r}.")
    return [name for name in DIMENSIONS if name in asked]


def shown(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> Table:
    """Return the table of the rows, with a total below several rows unless they are split by model."""
    table = Table(box=None, pad_edge=False)
    for name in by:
        table.add_column(name.capitalize(), no_wrap=True)
    for name in (*HEADS.values(), "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_name(row, name) for name in by), *_numbers(row))
    if len(rows) > 1 and "model" not in by:  # a run counts in the row of each model that it called
        total = {name: sum(row[name] for row in rows) for name in COUNTS}
        costs = [row["cost"] for row in rows if row["cost"] is not None]
        table.add_row(
            "Total", *[""] * (len(by) - 1), *_numbers({**total, "cost": sum(costs) if costs else None})
        )
    return table


def _name(row: Mapping[str, Any], dimension: str) -> str:
    """Return the name of a dimension's value; its id if the object is deleted, or a dash if there is neither."""
    return printable(str(row[dimension] or row.get(f"{dimension}_id") or "-"))


def _numbers(row: Mapping[str, Any]) -> list[str]:
    cost = "-" if row["cost"] is None else f"{row['cost']:,.2f}"
    return [*(f"{row[name]:,}" for name in COUNTS), cost]


def _write(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> None:
    """Write the rows as CSV to stdout, with ids beside names and values as the API returns them."""
    ids = {"key": ("key_id", "key"), "deployment": ("deployment_id", "deployment")}
    columns = [column for name in by for column in ids.get(name, (name,))]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow([*columns, *COUNTS, "cost"])
    for row in rows:
        table.writerow([row[name] for name in (*columns, *COUNTS, "cost")])
