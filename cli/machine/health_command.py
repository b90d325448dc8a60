"""Typer command of `runyard health`. The checks are in `cli/machine/health.py`."""

from __future__ import annotations

import typer
from typer import Argument, Option

from cli.commands import command
from cli.errors import BadUsage
from cli.machine import health


@command
def health_command(
    kind: str = Argument(
        help="Process: web, runner, builder or beat; or database.", metavar="PROCESS", show_default=False
    ),
    ready: bool = Option(False, "--ready", help="Check readiness for work instead of liveness."),
    pid: int | None = Option(
        None, "--pid", help="Check only the process with this id.", metavar="PID", show_default=False
    ),
    wait: float = Option(0, "--wait", help="Seconds to repeat a failed check.", min=0, metavar="SECONDS"),
) -> None:
    """Check liveness or readiness of this machine's processes. Exit code 1: a check failed or no process was found.

    A process is live while its event loop responds; the check contacts no server. A web process is ready when it
    reaches a database with its tables, a runner or builder when it reaches the database and does not drain, a beat
    when it sends notifications. `database` checks that DATABASE_URL has the tables of this release.
    """
    if kind not in health.KINDS:
        raise BadUsage(f"There is no process {kind!r}. There are: {', '.join(health.KINDS)}.")
    if kind in ("web", health.DATABASE) and pid is not None:
        raise BadUsage("Only runner, builder and beat are chosen by --pid.")
    raise typer.Exit(health.report(kind, is_ready=ready, pid=pid, wait_seconds=wait))
