"""`runyard open`: the page of a deployment, in a browser where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.deployments import Name, chosen
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.served import echo_json


def command(
    name: Name = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the address alone.")] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Open a deployment's page: status, address, revisions and build logs. It asks for an API key.

    Prints the address, too; where no browser can be shown, that is all.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        address = page_of(client.url, found)
        if as_json:
            echo_json({"name": found["name"], "url": address})
            return
        typer.echo(address)
        if not print_only and sys.stdout.isatty() and has_screen(os.environ):
            webbrowser.open(address)


def page_of(url: str, found: Mapping[str, Any]) -> str:
    return f"{url}/o/{found['tenant_id']}/host/deployments/{found['id']}"


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser would be seen by who typed the command: not on a server, nor through SSH."""
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    return platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
