"""A deployment's own API, as the commands that look at its threads and runs call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from cli.api.addresses import address_of
from cli.api.client import Client
from cli.deployments.deployments import chosen
from cli.errors import CommandFailed
from cli.options import open_client

Deployment = Annotated[
    str | None,
    typer.Option(
        "--name",
        "-n",
        help="The deployment: its name, its id, or the end of it. Default: what deploy makes of this directory.",
        metavar="NAME|ID",
        show_default=False,
    ),
]
Thread = Annotated[
    str | None,
    typer.Option("--thread", "-t", help="The run's thread.", metavar="ID", show_default=False),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.", metavar="N")]


@contextmanager
def served(url: str | None, key: str | None, org: str | None, name: str | None) -> Iterator[Client]:
    """The API of the deployment that was named. Raises CommandFailed when it does not serve."""
    with open_client(url, key, org) as client:
        found = chosen(client, name)
        require_serving(found)
        address = address_of(client.url, found)
        with client.at(address) as api:
            yield api


def require_serving(found: dict[str, Any]) -> None:
    """Raises CommandFailed for a deployment that has no revision that serves."""
    if not found.get("active_revision_id"):
        raise CommandFailed(
            f"{found['name']} does not serve yet. `runyard status {found['name']}` tells why."
        )


def echo_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
