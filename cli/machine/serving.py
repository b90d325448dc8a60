"""`runyard up` and `demo`: the whole service on this machine, and an example that runs on it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Annotated

import typer

from cli.errors import CommandFailed
from cli.machine import demo as demonstration
from cli.machine.up import up as bring_up
from cli.options import sentences, settings
from cli.output import Lines
from shared.settings import Settings


def up() -> None:
    """Start the service: servers, database, every process. Ctrl-C stops it.

    PostgreSQL and Valkey come along and keep their data in RUNYARD_DATA_DIR (.runyard), unless DATABASE_URL and
    REDIS_URL name others. RUNYARD_HOST and RUNYARD_PORT say where it listens; docs/settings.md lists all settings.
    """
    with sentences():
        lines = Lines()

        def visit(settings: Settings) -> None:
            for row in demonstration.addresses(settings, []):
                lines.say(row)

        raise typer.Exit(bring_up(settings(), lines, visit))


def demo(keep: Annotated[bool, typer.Option("--keep", help="Go on serving until Ctrl-C.")] = False) -> None:
    """Start the service, deploy an example, and stream one run of it."""
    with sentences():
        lines, chosen = Lines(), settings()
        if "RUNYARD_LOG_LEVEL" not in os.environ:
            chosen = replace(chosen, log_level="WARNING")  # the events are what there is to see

        def visit(settings: Settings) -> int | None:
            logging.getLogger("httpx").setLevel(logging.WARNING)
            try:
                demonstration.demo(settings, lines.say)
            except CommandFailed as error:
                lines.say(f"Error: {error}")
                return 1
            for row in demonstration.addresses(settings, [demonstration.NAME]):
                lines.say(row)
            return None if keep else 0

        raise typer.Exit(bring_up(chosen, lines, visit))
