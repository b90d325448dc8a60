"""`runyard open`: open the console, or a deployment's page in it, in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import completion
from cli.api.access import find_url
from cli.deployments.deployments import NAME_FORMS, chosen, one_name
from cli.deployments.served import echo_json
from cli.options import Json, Key, Org, Url, open_client, sentences, settings


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help=f"{NAME_FORMS}. Default: the console's first page.",
            metavar="DEPLOYMENT",
            show_default=False,
            autocompletion=completion.deployment_names,
        ),
    ] = None,
    option: Annotated[str | None, typer.Option("--deployment", hidden=True)] = None,  # for older scripts
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address without opening a browser.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Open the console, or a deployment's page in it, in a browser.

    The command prints the address. Without a display it opens no browser. The console asks for an API key, but not under
    `runyard dev`.
    """
    with sentences(as_json=as_json):
        name = one_name(name, option)
        if name is None:
            found = {"url": f"{find_url(url, settings())}/"}
        else:
            with open_client(url, api_key, org) as client:
                record = chosen(client, name)
                found = {"name": record["name"], "url": page_of(client.url, record)}
        if as_json:
            echo_json(found)
            return
        typer.echo(found["url"])
        if not print_only and sys.stdout.isatty() and has_screen(os.environ):
            webbrowser.open(found["url"])


def page_of(url: str, found: Mapping[str, Any]) -> str:
    return f"{url}/o/{found['tenant_id']}/host/deployments/{found['id']}"


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether the user would see a browser. Returns False in CI, through SSH, and without a display."""
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    return platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
