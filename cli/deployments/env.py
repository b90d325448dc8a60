"""`runyard env`: a deployment's variables. The service stores their values as secrets and never returns them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import completion
from cli.api.access import read_env
from cli.api.client import Client
from cli.api.ids import version
from cli.deployments.deploy import run_to_end
from cli.deployments.deployments import Name, NameOption, chosen, existing, one_name
from cli.deployments.following import WAIT_SECONDS
from cli.deployments.report import choose
from cli.deployments.served import echo_json
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, new_app, open_client, sentences
from cli.output import printable

app = new_app("List, set and remove variables of a deployment.")

JsonLines = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for each event, as `deploy` does.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Exit without waiting until it serves.")]
Timeout = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds to wait for the revision to serve; then exit 3.", metavar="SECONDS"),
]


@app.command("list")
def list_variables(
    name: Name = None,
    option: NameOption = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List the names of a deployment's variables. Their values cannot be read."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        names = names_of(chosen(client, one_name(name, option)))
        if as_json:
            echo_json(names)
        elif names:
            typer.echo("\n".join(map(printable, names)))
        else:
            typer.echo("It has no variables. `runyard env set NAME=VALUE` sets one.", err=True)


def names_of(found: Mapping[str, Any]) -> list[str]:
    return sorted(secret["name"] for secret in found.get("secrets") or [])


@app.command("set")
def set_variables(
    name: Name = None,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Variable and value; VARIABLE=- reads the value from stdin, which keeps it out of the shell's history.",
            metavar="VARIABLE=VALUE…",
            show_default=False,
        ),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(help="Also set the variables of this file.", metavar="FILE", show_default=False),
    ] = None,
    option: NameOption = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: JsonLines = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Set variables of a deployment in a new revision. Other variables keep their values.

    Exit codes are those of `deploy`.
    """
    with sentences(as_json=as_json):
        if env_file is not None and not env_file.is_file():
            raise BadUsage(f"{env_file} does not exist.")
        if name is not None and "=" in name:
            name, assignments = None, [name, *(assignments or [])]
        name = one_name(name, option)
        changes: dict[str, str | None] = {
            **(read_env(env_file) if env_file else {}),
            **parsed(assignments or []),
        }
        if not changes:
            raise BadUsage("Say what to set: NAME=VALUE, or --env-file FILE.")
        with open_client(url, api_key, org) as client:
            change(
                client, chosen(client, name), changes, as_json=as_json, seconds=None if no_wait else timeout
            )


def parsed(assignments: list[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict. Reads the value `-` from stdin. Raises BadUsage."""
    found: dict[str, str] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise BadUsage(f"{text!r} is not NAME=VALUE.")
        found[name] = sys.stdin.read().rstrip("\n") if value == "-" else value
    return found


@app.command("unset")
def unset_variables(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Deployment and names of variables. Without a deployment: variables of this directory's deployment.",
            metavar="[DEPLOYMENT] VARIABLE…",
            show_default=False,
            autocompletion=completion.deployment_names,
        ),
    ],
    option: NameOption = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: JsonLines = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Remove variables of a deployment in a new revision. Other variables keep their values.

    Exit codes are those of `deploy`.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found, names = _named(client, names, option)
        unknown = sorted(set(names) - set(names_of(found)))
        if unknown:
            raise CommandFailed(f"{found['name']} has no variable {', '.join(unknown)}.")
        change(client, found, dict.fromkeys(names), as_json=as_json, seconds=None if no_wait else timeout)


def _named(client: Client, names: list[str], option: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the deployment and the variable names.

    The first of several words names the deployment if a deployment has that name; otherwise it is a variable.
    """
    if option is None and len(names) > 1 and (found := existing(client, names[0])) is not None:
        return found, names[1:]
    return chosen(client, option), names


def change(
    client: Client,
    found: dict[str, Any],
    changes: Mapping[str, str | None],
    *,
    as_json: bool,
    seconds: float | None,
) -> None:
    """Create a revision with these changes and report it until it has ended. Raises CommandFailed.

    The value None removes a variable. `seconds` is the timeout; None does not wait.
    """
    body = [{"name": name, "value": value} for name, value in changes.items()]
    report = choose(as_json=as_json, quiet=False)
    record = found | client.change(found["id"], {"secret_changes": body})
    what = ", ".join(name if value is not None else f"no {name}" for name, value in changes.items())
    report.step(f"{version(record.get('latest_revision_number'))} of {found['name']}: {printable(what)}")
    run_to_end(client, record, record["latest_revision_id"], report, seconds=seconds)
