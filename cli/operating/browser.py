"""`runyard open`: open the console, or a deployment's page in it, in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Any

import typer
from typer import Option

from cli.client.access import find_url
from cli.commands import Service, command, settings
from cli.deployments.target import NameOrConsole, one_name, resolve_deployment
from cli.output import Output


@command
def open_console(
    service: Service,
    out: Output,
    name: NameOrConsole = None,
    option: str | None = Option(None, "--deployment", hidden=True),  # for older scripts
    print_only: bool = Option(False, "--print", help="Print the address without opening a browser."),
) -> None:
    """Open the console, or a deployment's page in it, in a browser.

    The command prints the address. Without a display it opens no browser. The console asks for an API key, but not under
    `runyard dev`.
    """
    name = one_name(name, option)
    if name is None:
        result = {"url": f"{find_url(service.url, settings())}/"}
    else:
        with service.open() as client:
            record = resolve_deployment(client, name)
            result = {"name": record["name"], "url": _page_of(client.url, record)}
    if out.as_json:
        out.json(result)
        return
    typer.echo(result["url"])
    if not print_only and sys.stdout.isatty() and has_screen(os.environ):
        webbrowser.open(result["url"])


def _page_of(url: str, record: Mapping[str, Any]) -> str:
    return f"{url}/o/{record['tenant_id']}/host/deployments/{record['id']}"


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether the user would see a browser. Returns False in CI, through SSH, and without a display."""
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    return platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
