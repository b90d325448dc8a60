"""`runyard limits`: the pool and the limits of a deployment, changed without a deploy."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.deployments.deployments import Name, chosen
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, printable

PANEL = "Limits"


def _not_empty(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("it must not be empty.")
    return value


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("it must be a finite number of seconds; 0 is the service's default.")
    return value


Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="Pool whose runners execute the runs.",
        metavar="NAME",
        callback=_not_empty,
        rich_help_panel=PANEL,
    ),
]
MaxConcurrentRuns = Annotated[
    int | None,
    typer.Option(min=0, help="Runs at the same time; 0: no limit.", metavar="N", rich_help_panel=PANEL),
]
HostsPerRunner = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Graph host processes on each runner; 0: the runner's default.",
        metavar="N",
        rich_help_panel=PANEL,
    ),
]
RunTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds that a run may take; 0: the service's default.",
        metavar="SECONDS",
        callback=_finite,
        rich_help_panel=PANEL,
    ),
]
MemoryMb = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Memory of a graph host process in MiB, at most the runner's RUNYARD_HOST_MEMORY_MB; 0: that value.",
        metavar="MB",
        rich_help_panel=PANEL,
    ),
]
MaxTokensPerDay = Annotated[
    int | None,
    typer.Option(
        min=0, help="Tokens of all runs in a day (UTC); 0: no limit.", metavar="N", rich_help_panel=PANEL
    ),
]
MaxRunTokens = Annotated[
    int | None,
    typer.Option(min=0, help="Tokens of one run; 0: no limit.", metavar="N", rich_help_panel=PANEL),
]


def given_limits(**limits: float | None) -> dict[str, Any]:
    """Return the limits that are set on the command line, by their names in the API."""
    return {name: value for name, value in limits.items() if value is not None}


def limits(
    name: Name = None,
    pool: Pool = None,
    max_concurrent_runs: MaxConcurrentRuns = None,
    hosts_per_runner: HostsPerRunner = None,
    run_timeout: RunTimeout = None,
    memory_mb: MemoryMb = None,
    max_tokens_per_day: MaxTokensPerDay = None,
    max_run_tokens: MaxRunTokens = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show the pool and the limits of a deployment, or change them without a deploy.

    No revision is created. A change applies to runs that start after it; budgets of tokens also apply to running runs.
    `0` removes a limit.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        changes = given_limits(
            max_concurrent_runs=max_concurrent_runs,
            hosts_per_runner=hosts_per_runner,
            run_timeout_seconds=run_timeout,
            memory_mb=memory_mb,
            max_tokens_per_day=max_tokens_per_day,
            max_run_tokens=max_run_tokens,
        )
        body = ({"pool": pool} if pool else {}) | ({"limits": changes} if changes else {})
        if body:
            found = client.change(found["id"], body)
        shown = {"pool": found.get("pool"), **(found.get("limits") or {})}
        if as_json:
            typer.echo(json.dumps({"id": found["id"], "name": found["name"], **shown}, indent=2))
            return
        table = Table(box=None, pad_edge=False, show_header=False)
        for label, value in shown.items():
            table.add_row(label, Text(printable("-" if value is None else str(value))))
        console().print(table)
