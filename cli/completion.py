"""`runyard completion`: the script that makes a shell complete; and the words it offers for deployments and contexts."""

from __future__ import annotations

import io
import re
import threading
from contextlib import redirect_stderr
from typing import Literal

import typer
from typer import Argument, Option
from typer._completion_shared import get_completion_script, install

from cli.client import contexts
from cli.commands import Service

PROGRAM, VARIABLE = "runyard", "_RUNYARD_COMPLETE"
LIMIT_SECONDS = 1.0  # timeout: the shell blocks until the completion returns
MOST = 100
PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # shells' completion scripts may evaluate special characters


def completion(
    shell: Literal["bash", "zsh", "fish"] = Argument(help="The shell: bash, zsh or fish.", metavar="SHELL"),
    is_installed: bool = Option(
        False, "--install", help="Install the script for your user instead of printing it."
    ),
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
    names: list[str] = []
    lookup = threading.Thread(target=_find_names, args=(ctx, incomplete, names), daemon=True)
    with redirect_stderr(io.StringIO()):
        lookup.start()
        lookup.join(LIMIT_SECONDS)
    return list(names)


def _find_names(ctx: typer.Context, incomplete: str, names: list[str]) -> None:
    try:
        contexts.requested.set(ctx.find_root().params.get("context"))
        options = {name: ctx.params.get(name) for name in ("url", "api_key", "org")}
        with Service(**options).open() as client:
            answer = client.get("/v2/deployments", {"name_contains": incomplete, "limit": MOST})
        matches = (row["name"] for row in answer["resources"] if row["name"].startswith(incomplete))
        names += sorted(name for name in matches if PLAIN.fullmatch(name))
    except Exception:  # the outermost loop: a shell must not print a traceback between the words of a command
        return


def context_names(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`. Prints nothing."""
    try:
        return sorted(name for name in contexts.load().by_name if name.startswith(incomplete))
    except Exception:  # the outermost loop: a shell must not print a traceback while it completes
        return []
