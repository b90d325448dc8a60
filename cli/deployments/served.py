"""Clients of a deployment's own API, for the commands that read its threads and runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from cli.api.addresses import PREVIEW_SIGN, address_in, served_at
from cli.api.client import Client
from cli.deployments.deployments import chosen_with_preview
from cli.errors import CommandFailed
from cli.options import open_client

Thread = Annotated[
    str | None,
    typer.Option(
        "--thread",
        "-t",
        help="Thread of the run: its id or the end of its id.",
        metavar="ID",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Largest number of rows.", metavar="N")]


@contextmanager
def served(url: str | None, key: str | None, org: str | None, name: str | None) -> Iterator[Client]:
    """Open a client of the deployment's or preview's own API. Raises CommandFailed if no revision serves."""
    with open_client(url, key, org) as client:
        address, _ = serving(client, name)
        with client.at(address) as api:
            yield api


def serving(client: Client, name: str | None) -> tuple[str, str]:
    """Return the address of a deployment or preview below the service's, and its name as commands accept it.

    Raises CommandFailed if no revision serves.
    """
    found, preview = chosen_with_preview(client, name)
    if preview is not None:
        if not preview["url"]:
            raise CommandFailed(
                f"The preview {preview['name']} of {found['name']} does not serve yet."
                f" `runyard previews {found['name']}` shows its newest revision."
            )
        target = f"{found['name']}{PREVIEW_SIGN}{preview['name']}"
        return served_at(client.url, target, preview["url"]), target
    if not found.get("active_revision_id"):
        raise CommandFailed(
            f"{found['name']} does not serve yet. `runyard status {found['name']}` tells why."
        )
    return served_at(client.url, found["name"], address_in(found)), found["name"]


def echo_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
