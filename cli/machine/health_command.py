"""Typer command of `runyard health`. The checks are in `cli/machine/health.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.errors import BadUsage
from cli.machine import health
from cli.options import sentences


def command(
    kind: Annotated[
        str,
        typer.Argument(
            help="Process: web, runner, builder or beat; or database.", metavar="PROCESS", show_default=False
        ),
    ],
    ready: Annotated[
        bool, typer.Option("--ready", help="Check readiness for work instead of liveness.")
    ] = False,
    pid: Annotated[
        int | None,
        typer.Option("--pid", help="Check only the process with this id.", metavar="PID", show_default=False),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to repeat a failed check.", min=0, metavar="SECONDS")
    ] = 0,
) -> None:
    """Check liveness or readiness of this machine's processes. Exit code 1: a check failed or no process was found.

    A process is live while its event loop responds; the check contacts no server. A web process is ready when it
    reaches a database with its tables, a runner or builder when it reaches the database and does not drain, a beat
    when it sends notifications. `database` checks that DATABASE_URL has the tables of this release.
    """
    with sentences():
        if kind not in health.KINDS:
            raise BadUsage(f"There is no process {kind!r}. There are: {', '.join(health.KINDS)}.")
        if kind in ("web", health.DATABASE) and pid is not None:
            raise BadUsage("Only runner, builder and beat are chosen by --pid.")
    raise typer.Exit(health.report(kind, is_ready=ready, pid=pid, wait_seconds=wait))
