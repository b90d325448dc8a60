"""`runyard completion`: the script that makes a shell complete; and the words it offers for deployments and contexts."""

from __future__ import annotations

import io
import os
import re
import threading
from contextlib import redirect_stderr
from typing import Annotated, Literal

import typer
from typer._completion_shared import get_completion_script, install

from cli.api import contexts
from cli.api.access import find_key, find_tenant, find_url
from cli.api.client import Client
from shared.settings import Settings

PROGRAM, VARIABLE = "runyard", "_RUNYARD_COMPLETE"
LIMIT_SECONDS = 1.0  # timeout: the shell blocks until the completion returns
MOST = 100
PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # shells' completion scripts may evaluate special characters


def command(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="The shell: bash, zsh or fish.", metavar="SHELL")
    ],
    is_installed: Annotated[
        bool, typer.Option("--install", help="Install the script for your user instead of printing it.")
    ] = False,
) -> None:
    """Print the script that makes a shell complete commands, options and names, or install it."""
    if is_installed:
        _, path = install(shell=shell, prog_name=PROGRAM)
        typer.echo(f"Installed {path}. Start a new {shell} to use it.")
    else:
        typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def deployment_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of deployments that begin with `incomplete`.

    Returns an empty list without a key, or if the service does not answer in time. Prints nothing.
    """
    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(ctx, incomplete, found), daemon=True)
    with redirect_stderr(io.StringIO()):
        asking.start()
        asking.join(LIMIT_SECONDS)
    return list(found)


def _ask(ctx: typer.Context, incomplete: str, found: list[str]) -> None:
    try:
        contexts.requested.set(ctx.find_root().params.get("context"))
        settings, given = Settings.from_env(os.environ), ctx.params
        url = find_url(given.get("url"), settings)
        key = find_key(given.get("api_key"), settings, url=url)
        with Client(url, key, tenant=find_tenant(given.get("org"))) as client:
            answer = client.get("/v2/deployments", {"name_contains": incomplete, "limit": MOST})
        names = [row["name"] for row in answer["resources"]]
        found += sorted(name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name))
    except Exception:  # the outermost loop: a shell must not print a traceback between the words of a command
        return


def context_names(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`. Prints nothing."""
    try:
        return sorted(name for name in contexts.load().by_name if name.startswith(incomplete))
    except Exception:  # the outermost loop: a shell must not print a traceback while it completes
        return []
