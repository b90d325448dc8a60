"""`runyard`: the command line. Each command reads its settings, does one thing, and says what went wrong."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cli import demo as demonstration
from cli import deploy as deploying
from cli import logs as log_reading
from cli.client import Client, find_key, find_url
from cli.embedded import CannotStart
from cli.errors import CommandFailed
from cli.output import Lines
from cli.project import CONFIG, Project, deployment_name
from cli.up import up as bring_up
from shared.settings import BadSetting, Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
keys_app = typer.Typer(no_args_is_help=True, help="API keys of this installation.")
app.add_typer(keys_app, name="keys")

Url = Annotated[str | None, typer.Option("--url", help="Where the service is (RUNYARD_URL).")]
Key = Annotated[str | None, typer.Option("--api-key", help="An API key (RUNYARD_API_KEY).")]


@app.callback()
def about() -> None:
    """A self-hosted platform that builds, serves and runs agent graphs. This tool is beta."""


@contextmanager
def sentences() -> Iterator[None]:
    """What goes wrong becomes one sentence and exit code 1."""
    try:
        yield
    except (CommandFailed, CannotStart, BadSetting) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _settings() -> Settings:
    return Settings.from_env(os.environ)


def _client(url: str | None, key: str | None, env_file: Path = Path(".env")) -> Client:
    settings = _settings()
    return Client(find_url(url, settings), find_key(key, settings, env_file))


@app.command()
def up() -> None:
    """Start the service: servers, database, every process. Ctrl-C stops it."""
    with sentences():
        lines = Lines()

        def visit(settings: Settings) -> None:
            for row in demonstration.addresses(settings, []):
                lines.say(row)

        raise typer.Exit(bring_up(_settings(), lines, visit))


@app.command()
def demo(keep: Annotated[bool, typer.Option("--keep", help="Go on serving until Ctrl-C.")] = False) -> None:
    """Start the service, deploy an example, and stream one run of it."""
    with sentences():
        lines, settings = Lines(), _settings()
        if "RUNYARD_LOG_LEVEL" not in os.environ:
            settings = replace(settings, log_level="WARNING")  # the events are what there is to see

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

        raise typer.Exit(bring_up(settings, lines, visit))


@app.command()
def deploy(
    directory: Annotated[Path, typer.Argument(help="The project's directory.")] = Path("."),
    name: Annotated[
        str | None, typer.Option(help="The deployment's name; the directory's by default.")
    ] = None,
    kind: Annotated[str, typer.Option("--type", help="dev or prod; for a new deployment.")] = "dev",
    config: Annotated[str, typer.Option(help="The configuration file in the directory.")] = CONFIG,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the build.")] = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Deploy a project directory, and wait until it serves."""
    with sentences():
        typer.echo("runyard deploy is beta.")
        project = Project.read(directory, config)
        chosen = deployment_name(
            name or project.variables().get("LANGSMITH_DEPLOYMENT_NAME") or project.folder.name
        )
        with _client(url, api_key, project.env_file) as client:
            record = deploying.deploy(client, project, chosen, typer.echo, kind=kind, wait=not no_wait)
        typer.echo(
            f"Deployment {chosen}: {demonstration.address_of(replace(_settings(), url=client.url), record)}"
        )


@app.command("list")
def list_deployments(
    name_contains: Annotated[str, typer.Option(help="Only names with this text.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List the deployments."""
    with sentences(), _client(url, api_key) as client:
        rows = list(client.deployments(name_contains=name_contains))
        if as_json:
            typer.echo(
                json.dumps(
                    [{"id": row["id"], "name": row["name"], "url": _url_of(row)} for row in rows], indent=2
                )
            )
            return
        table = Table("Deployment ID", "Name", "URL")
        for row in rows:
            table.add_row(row["id"], row["name"], _url_of(row) or "-")
        Console().print(table if rows else "There are no deployments.")


@app.command()
def logs(
    name: Annotated[
        str | None, typer.Argument(help="The deployment's name; the directory's by default.")
    ] = None,
    kind: Annotated[str, typer.Option("--type", help="deploy or build.")] = "deploy",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(help="How many of the newest lines.", min=1, max=1000)] = 100,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show a deployment's log lines."""
    with sentences(), _client(url, api_key) as client:
        chosen = deployment_name(name or Path.cwd().name)
        log_reading.show(client, chosen, kind, typer.echo, follow=follow, limit=limit)


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The deployment's name or id.")],
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Delete a deployment with its threads and runs."""
    with sentences(), _client(url, api_key) as client:
        found = client.find(name)
        if not force:
            typer.confirm(f"Delete {name} with all its threads and runs?", abort=True)
        client.delete(found["id"] if found else name)
        typer.echo(f"Deleted {name}.")


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "cli",
    org: Annotated[str, typer.Option(help="The organization's name.")] = "default",
    role: Annotated[str, typer.Option(help="read, run, deploy or admin.")] = "admin",
) -> None:
    """Make an API key and print it: it cannot be shown again."""
    with sentences():
        from cli import keys  # brings the whole database layer along; no other command needs it

        typer.echo(keys.create(_settings(), name=name, organization=org, role=role))


def _url_of(row: dict[str, Any]) -> str | None:
    return (row.get("source_config") or {}).get("custom_url")


if __name__ == "__main__":
    sys.exit(app())
