"""`runyard env`: a deployment's variables. The service stores their values as secrets and never returns them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from cli.client.access import read_env
from cli.client.client import Client
from cli.client.names import version
from cli.commands import JSON_EVENTS_HELP, Service, command, new_app
from cli.deployments.deploy import NoWait, Timeout, follow_to_end
from cli.deployments.following import WAIT_SECONDS
from cli.deployments.report import choose_report
from cli.deployments.target import Name, NameOption, complete_name, find_by_name, one_name, resolve_deployment
from cli.errors import BadUsage, CommandFailed
from cli.output import Output, printable

app = new_app("List, set and remove variables of a deployment.")


@app.command("list")
@command
def list_variables(client: Client, out: Output, name: Name = None, option: NameOption = None) -> None:
    """List the names of a deployment's variables. Their values cannot be read."""
    names = _names(resolve_deployment(client, one_name(name, option)))
    if out.as_json:
        out.json(names)
    elif names:
        typer.echo("\n".join(map(printable, names)))
    else:
        typer.echo("It has no variables. `runyard env set NAME=VALUE` sets one.", err=True)


@app.command("set")
@command(json_help=JSON_EVENTS_HELP)
def set_variables(
    service: Service,
    out: Output,
    name: Name = None,
    assignments: list[str] | None = Argument(
        None,
        help="Variable and value; VARIABLE=- reads the value from stdin, which keeps it out of the shell's history.",
        metavar="VARIABLE=VALUE…",
    ),
    env_file: Path | None = Option(None, help="Also set the variables of this file.", metavar="FILE"),
    option: NameOption = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_SECONDS,
) -> None:
    """Set variables of a deployment in a new revision. Other variables keep their values.

    Exit codes are those of `deploy`.
    """
    if env_file is not None and not env_file.is_file():
        raise BadUsage(f"{env_file} does not exist.")
    if name is not None and "=" in name:
        name, assignments = None, [name, *(assignments or [])]
    name = one_name(name, option)
    changes: dict[str, str | None] = {**(read_env(env_file) if env_file else {}), **_parse(assignments or [])}
    if not changes:
        raise BadUsage("Say what to set: NAME=VALUE, or --env-file FILE.")
    with service.open() as client:
        deployment = resolve_deployment(client, name)
        _change(client, deployment, changes, out, seconds=None if no_wait else timeout)


def _parse(assignments: list[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict. Reads the value `-` from stdin. Raises BadUsage."""
    values: dict[str, str] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise BadUsage(f"{text!r} is not NAME=VALUE.")
        values[name] = sys.stdin.read().rstrip("\n") if value == "-" else value
    return values


@app.command("unset")
@command(json_help=JSON_EVENTS_HELP)
def unset_variables(
    client: Client,
    out: Output,
    names: list[str] = Argument(
        help="Deployment and names of variables. Without a deployment: variables of this directory's deployment.",
        metavar="[DEPLOYMENT] VARIABLE…",
        autocompletion=complete_name,
    ),
    option: NameOption = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_SECONDS,
) -> None:
    """Remove variables of a deployment in a new revision. Other variables keep their values.

    Exit codes are those of `deploy`.
    """
    # The first of several words names the deployment if a deployment has that name; otherwise it is a variable.
    if option is None and len(names) > 1 and (deployment := find_by_name(client, names[0])) is not None:
        names = names[1:]
    else:
        deployment = resolve_deployment(client, option)
    unknown = sorted(set(names) - set(_names(deployment)))
    if unknown:
        raise CommandFailed(f"{deployment['name']} has no variable {', '.join(unknown)}.")
    _change(client, deployment, dict.fromkeys(names), out, seconds=None if no_wait else timeout)


def _names(deployment: Mapping[str, Any]) -> list[str]:
    return sorted(secret["name"] for secret in deployment.get("secrets") or [])


def _change(
    client: Client,
    deployment: dict[str, Any],
    changes: Mapping[str, str | None],
    out: Output,
    *,
    seconds: float | None,
) -> None:
    """Create a revision with these changes and report it until it has ended. Raises CommandFailed.

    The value None removes a variable. `seconds` is the timeout; None does not wait.
    """
    body = [{"name": name, "value": value} for name, value in changes.items()]
    report = choose_report(as_json=out.as_json)
    record = deployment | client.change(deployment["id"], {"secret_changes": body})
    what = ", ".join(name if value is not None else f"no {name}" for name, value in changes.items())
    report.step(f"{version(record.get('latest_revision_number'))} of {deployment['name']}: {printable(what)}")
    follow_to_end(client, record, record["latest_revision_id"], report, seconds=seconds)
