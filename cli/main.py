"""`runyard`: registers all commands."""

from __future__ import annotations

import sys
from typing import Any, Literal

import typer
from typer import Argument, Option
from typer._completion_shared import get_completion_script, install

from cli.backups import backup
from cli.client import access, contexts
from cli.commands import new_app
from cli.deployments import deploy, deployments, env, logs, project, revisions, traffic
from cli.doctor import screen
from cli.machine import dev, serve
from cli.operating import audit, encryption, keys, login, top, usage, workers
from cli.runs import inbox, replay, run, runs, threads
from shared import __version__

PROGRAM, COMPLETION_VARIABLE = "runyard", "_RUNYARD_COMPLETE"


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
        typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell))


# The commands by the panel of the help page, each a function or a group.
PANELS: dict[str, dict[str, Any]] = {
    "Run the service": {"up": serve.up, "dev": dev.dev, "demo": serve.demo, "process": serve.process},
    "Deploy": {
        "new": project.new,
        "deploy": deploy.deploy,
        "rollback": revisions.rollback,
        "traffic": traffic.traffic,
        "promote": traffic.promote,
        "abort": traffic.abort,
        "previews": traffic.previews,
        "interrupt": revisions.interrupt,
        "delete": deployments.delete,
        "limits": deployments.limits,
        "env": env.app,
    },
    "Run and inspect": {
        "list": deployments.list_deployments,
        "status": deployments.status,
        "revisions": revisions.revisions,
        "logs": logs.logs,
        "open": deployments.open_console,
        "run": run.run,
        "runs": runs.app,
        "threads": threads.app,
        "inbox": inbox.app,
        "replay": replay.app,
    },
    "Connect to a service": {
        "login": login.login,
        "logout": login.logout,
        "contexts": login.list_contexts,
        "completion": completion,
    },
    "Operate": {
        "doctor": screen.doctor,
        "workers": workers.app,
        "health": serve.health_command,
        "top": top.top,
        "usage": usage.usage,
        "audit": audit.audit,
        "backup": backup.backup,
        "restore": backup.restore,
        "keys": keys.keys_app,
        "orgs": keys.orgs_app,
        "encryption": encryption.app,
    },
}

app = new_app(completion=True)
for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def about(
    show_version: bool = Option(
        False, "--version", help="Print the version.", callback=_show_version, is_eager=True
    ),
    context: str | None = Option(
        None,
        help="Service that `runyard login` kept under this name (RUNYARD_CONTEXT); `local`: none of them.",
        metavar="CONTEXT",
        autocompletion=contexts.complete_name,
    ),
    quiet: bool = Option(False, "--quiet", "-q", help="Do not print which service a command uses."),
) -> None:
    """Build, serve and run agent graphs on your own machines.

    The address of the service is the first of: --url, RUNYARD_URL, the context in --context or RUNYARD_CONTEXT,
    LANGGRAPH_HOST_URL, the current context of `runyard login`, the address where `runyard up` listens.

    The API key is the first of: --api-key, RUNYARD_API_KEY of the environment, then of .env, the key of the context, the
    key that `runyard up` keeps in this directory; then LANGGRAPH_HOST_API_KEY, LANGSMITH_API_KEY and LANGCHAIN_API_KEY
    if they begin with `ryd_`. The keys of a context and of `runyard up` are sent to their own address only.
    """
    contexts.requested.set(context)
    access.is_quiet.set(quiet)


if __name__ == "__main__":
    sys.exit(app())
