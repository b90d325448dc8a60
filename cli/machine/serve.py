"""`runyard up`, `demo`, `process` and `health`: start the service or one process of it, try it, probe it."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from typing import Annotated, Any

import httpx
import typer
from typer import Argument, Option

from cli import PROJECT
from cli.client.client import AS_STUDIO, Client
from cli.client.names import address_in, served_at
from cli.commands import command
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from cli.deployments.report import PrintLine
from cli.errors import BadUsage, CommandFailed
from cli.machine import health, procfile
from cli.machine.supervisor import Lines
from cli.machine.up import addresses, run_service, serve, settings_for
from shared.settings import Settings, unknown_variables

EXAMPLE = PROJECT / "examples" / "chat"
NAME = "chat"
QUESTION = "What can you do?"
LINE = 100  # maximum characters printed of an event

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


@command(needs_server=True)
def up(port: Port = None, host: Host = None) -> None:
    """Start the service: servers, database, every process. Ctrl-C stops it.

    PostgreSQL and Valkey come along and keep their data in RUNYARD_DATA_DIR (.runyard), unless DATABASE_URL and
    REDIS_URL name others. docs/reference/settings.md lists all settings.
    """
    raise typer.Exit(serve(settings_for(port, host)))


@command(needs_server=True)
def demo(
    keep: bool = Option(False, "--keep", help="Go on serving until Ctrl-C."),
    port: Port = None,
    host: Host = None,
) -> None:
    """Start the service, deploy an example, and stream one run of it."""
    lines, settings = Lines(), settings_for(port, host)
    if "RUNYARD_LOG_LEVEL" not in os.environ:
        settings = replace(settings, log_level="WARNING")  # keep the output to the events of the run

    def on_ready(settings: Settings) -> int | None:
        logging.getLogger("httpx").setLevel(logging.WARNING)
        try:
            run_example(settings, lines.say)
        except CommandFailed as error:
            lines.say(f"Error: {error}")
            return 1
        for row in addresses(settings, [NAME]):
            lines.say(row)
        return None if keep else 0

    raise typer.Exit(run_service(settings, lines, on_ready))


@command(needs_server=True)
def process(
    name: str = Argument(help="Process: release, web, runner, builder or beat.", metavar="PROCESS"),
) -> None:
    """Execute one process of the service, for containers, systemd and Kubernetes.

    Start `release` first: it migrates the database and ends. The other processes serve until SIGTERM. The settings name
    the servers and keys; unlike `runyard up`, this command creates none. The command replaces itself by the process, which
    keeps the process id.
    """
    line = procfile.line_of(name)
    environment = procfile.environment_of(line, os.environ)
    for text in unknown_variables(os.environ):
        typer.echo(text, err=True)
    os.chdir(PROJECT)
    os.execve(line.argv[0], line.argv, environment)


@command
def health_command(
    kind: str = Argument(help="Process: web, runner, builder or beat; or database.", metavar="PROCESS"),
    ready: bool = Option(False, "--ready", help="Check readiness for work instead of liveness."),
    pid: int | None = Option(None, help="Check only the process with this id.", metavar="PID"),
    wait: float = Option(0, help="Seconds to repeat a failed check.", min=0, metavar="SECONDS"),
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


def run_example(settings: Settings, print_line: PrintLine) -> None:
    """Deploy the example and stream one run of it with the public SDK. Raises CommandFailed if no event arrives."""
    assert settings.api_key is not None
    project = Project.read(EXAMPLE)
    with Client(settings.url, settings.api_key) as client:
        record = deploy_project(client, project, NAME, print_line)
    print_line("")
    print_line(f"{NAME} is DEPLOYED. One run of it, streamed with langgraph_sdk:")
    graph_id = next(iter(project.config["graphs"]))
    address = served_at(settings.url, NAME, address_in(record))
    count = stream(address, settings.api_key, graph_id, print_line)
    if not count:
        raise CommandFailed("The run ended without an event. The lines above tell why.")


def stream(url: str, key: str, graph_id: str, print_line: PrintLine) -> int:
    """Run the graph on a new thread and print each event on arrival. Returns the number of events."""
    from langgraph_sdk import get_sync_client  # its import takes half a second

    started = time.monotonic()
    client = get_sync_client(url=url, api_key=key, headers=AS_STUDIO)
    count, failed = 0, None
    try:
        thread = client.threads.create()
        chunks = client.runs.stream(
            thread["thread_id"],
            graph_id,
            input={"messages": [{"role": "user", "content": QUESTION}]},
            stream_mode=["updates", "messages-tuple"],
        )
        for chunk in chunks:
            count += 1
            print_line(
                f"  {time.monotonic() - started:6.3f} s  {chunk.event:<10} {_essence(chunk.event, chunk.data)}"
            )
            failed = chunk.data if chunk.event == "error" else failed
    except httpx.HTTPError as error:
        raise CommandFailed(f"The run failed: {error}") from error
    if failed:
        raise CommandFailed(f"The run failed: {failed}")
    return count


def _essence(event: str, data: Any) -> str:
    """Return the text of a message, or the JSON of another event, shortened to LINE."""
    if event.startswith("messages") and isinstance(data, list) and data:
        text = repr(data[0].get("content", ""))
    else:
        text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= LINE else text[: LINE - 1] + "…"
