"""Typer commands `runyard up` and `runyard demo`."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Annotated

import typer

from cli.errors import CommandFailed
from cli.machine import demo as demonstration
from cli.machine.up import up as bring_up
from cli.options import sentences
from cli.output import Lines
from shared.settings import Settings, check_public

Port = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", min=1, max=65535, help="The port to listen on. Default: RUNYARD_PORT, else 8123."
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="The address to listen on. Default: RUNYARD_LISTEN_HOST, else 127.0.0.1.", metavar="ADDRESS"
    ),
]


def up(port: Port = None, host: Host = None) -> None:
    """Start the service: servers, database, every process. Ctrl-C stops it.

    PostgreSQL and Valkey come along and keep their data in RUNYARD_DATA_DIR (.runyard), unless DATABASE_URL and
    REDIS_URL name others. docs/settings.md lists all settings.
    """
    with sentences():
        raise typer.Exit(serve(settings_for(port, host)))


def settings_for(port: int | None, host: str | None) -> Settings:
    """Return the settings from the environment, overridden by the options. Raises BadSetting."""
    check_public(os.environ)
    options = {"RUNYARD_PORT": str(port or ""), "RUNYARD_LISTEN_HOST": host or ""}
    return Settings.from_env({**os.environ, **{name: value for name, value in options.items() if value}})


def serve(settings: Settings) -> int:
    """Run the service and print its addresses. Returns the exit code."""
    lines = Lines()

    def visit(settings: Settings) -> None:
        for row in demonstration.addresses(settings, []):
            lines.say(row)

    return bring_up(settings, lines, visit)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Go on serving until Ctrl-C.")] = False,
    port: Port = None,
    host: Host = None,
) -> None:
    """Start the service, deploy an example, and stream one run of it."""
    with sentences():
        lines, chosen = Lines(), settings_for(port, host)
        if "RUNYARD_LOG_LEVEL" not in os.environ:
            chosen = replace(chosen, log_level="WARNING")  # keep the output to the events of the run

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
