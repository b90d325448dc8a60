"""`runyard limits`: the pool and the limits of a deployment, changed without a deploy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.client.client import Client
from cli.commands import OptionGroup, command
from cli.deployments.target import Name, resolve_deployment
from cli.output import Output, printable

PANEL = "Limits"


def _not_empty(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("it must not be empty.")
    return value


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("it must be a finite number of seconds; 0 is the service's default.")
    return value


def _limit(help: str, metavar: str = "N", **more: Any) -> Any:
    return typer.Option(min=0, help=help, metavar=metavar, rich_help_panel=PANEL, **more)


@dataclass(frozen=True)
class Limits(OptionGroup):
    """The pool and the limits of a deployment that the command line sets. None leaves a value as it is."""

    pool: Annotated[
        str | None,
        typer.Option(
            help="Pool whose runners execute the runs.",
            metavar="NAME",
            callback=_not_empty,
            rich_help_panel=PANEL,
        ),
    ] = None
    max_concurrent_runs: Annotated[int | None, _limit("Runs at the same time; 0: no limit.")] = None
    hosts_per_runner: Annotated[
        int | None, _limit("Graph host processes on each runner; 0: the runner's default.")
    ] = None
    run_timeout: Annotated[
        float | None,
        _limit("Seconds that a run may take; 0: the service's default.", "SECONDS", callback=_finite),
    ] = None
    memory_mb: Annotated[
        int | None,
        _limit(
            "Memory of a graph host process in MiB, at most the runner's RUNYARD_HOST_MEMORY_MB; 0: that value.",
            "MB",
        ),
    ] = None
    max_tokens_per_day: Annotated[int | None, _limit("Tokens of all runs in a day (UTC); 0: no limit.")] = (
        None
    )
    max_run_tokens: Annotated[int | None, _limit("Tokens of one run; 0: no limit.")] = None

    def body(self) -> dict[str, Any]:
        """Return the fields of a request that sets them; empty if there is nothing to set."""
        limits = {
            "max_concurrent_runs": self.max_concurrent_runs,
            "hosts_per_runner": self.hosts_per_runner,
            "run_timeout_seconds": self.run_timeout,
            "memory_mb": self.memory_mb,
            "max_tokens_per_day": self.max_tokens_per_day,
            "max_run_tokens": self.max_run_tokens,
        }
        limits = {name: value for name, value in limits.items() if value is not None}
        return ({"pool": self.pool} if self.pool else {}) | ({"limits": limits} if limits else {})


@command
def limits(limits: Limits, client: Client, out: Output, name: Name = None) -> None:
    """Show the pool and the limits of a deployment, or change them without a deploy.

    No revision is created. A change applies to runs that start after it; budgets of tokens also apply to running runs.
    `0` removes a limit.
    """
    deployment = resolve_deployment(client, name)
    if body := limits.body():
        deployment = client.change(deployment["id"], body)
    values = {"pool": deployment.get("pool"), **(deployment.get("limits") or {})}

    def draw() -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for label, value in values.items():
            table.add_row(label, Text(printable("-" if value is None else str(value))))
        return table

    out.show({"id": deployment["id"], "name": deployment["name"], **values}, draw)
