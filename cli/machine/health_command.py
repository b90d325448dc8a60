"""`runyard health` as the command line explains it; what it does is in `cli/machine/health.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.errors import BadUsage
from cli.machine import health
from cli.options import sentences


def command(
    kind: Annotated[str, typer.Argument(help="web, runner, builder, beat or database.", show_default=False)],
    ready: Annotated[
        bool, typer.Option("--ready", help="Should it be given work? Else: does its loop turn?")
    ] = False,
    pid: Annotated[
        int | None, typer.Option("--pid", help="Of several, this process alone.", show_default=False)
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to try again until it is well.", min=0, metavar="SECONDS")
    ] = 0,
) -> None:
    """Tell whether this machine's processes of a kind are well; exit code 1 when one is not, or there is none.

    It asks no server: liveness says that a process's own loop turns. Ready is a
    web that reaches a database with its tables, a runner or builder that neither
    drains nor is cut off from the database, and a beat that notifies. `database`
    is the one of DATABASE_URL, with the tables of this release: what a process
    waits for before it starts.
    """
    with sentences():
        if kind not in health.KINDS:
            raise BadUsage(f"There is no process {kind!r}. There are: {', '.join(health.KINDS)}.")
        if kind in ("web", health.DATABASE) and pid is not None:
            raise BadUsage("Only runner, builder and beat are chosen by --pid.")
    raise typer.Exit(health.report(kind, is_ready=ready, pid=pid, wait_seconds=wait))
