"""`runyard`: registers all commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli import completion, doctor
from cli.api import contexts
from cli.backups import backup
from cli.deployments import deploy, deployments, env, limits, logs, new, revisions, traffic
from cli.machine import dev, health_command, process, serving
from cli.operating import browser, encryption, keys, login, orgs, top, usage, workers
from cli.options import ServerCommand, new_app
from cli.runs import run, runs, threads
from shared import __version__

app = new_app(completion=True)

SERVE, DEPLOY, WATCH = "Run the service", "Deploy", "Run and inspect"
CONNECT, OPERATE = "Connect to a service", "Operate"

app.command("up", cls=ServerCommand, rich_help_panel=SERVE)(serving.up)
app.command("dev", cls=ServerCommand, rich_help_panel=SERVE)(dev.command)
app.command("demo", cls=ServerCommand, rich_help_panel=SERVE)(serving.demo)
app.command("process", cls=ServerCommand, rich_help_panel=SERVE)(process.command)
app.command("new", rich_help_panel=DEPLOY)(new.command)
app.command("deploy", rich_help_panel=DEPLOY)(deploy.command)
app.command("rollback", rich_help_panel=DEPLOY)(revisions.rollback)
app.command("traffic", rich_help_panel=DEPLOY)(traffic.traffic)
app.command("promote", rich_help_panel=DEPLOY)(traffic.promote)
app.command("abort", rich_help_panel=DEPLOY)(traffic.abort)
app.command("previews", rich_help_panel=DEPLOY)(traffic.previews)
app.command("interrupt", rich_help_panel=DEPLOY)(revisions.interrupt)
app.command("delete", rich_help_panel=DEPLOY)(deployments.delete)
app.command("limits", rich_help_panel=DEPLOY)(limits.limits)
app.add_typer(env.app, name="env", rich_help_panel=DEPLOY)
app.command("list", rich_help_panel=WATCH)(deployments.list_deployments)
app.command("status", rich_help_panel=WATCH)(deployments.status)
app.command("revisions", rich_help_panel=WATCH)(revisions.revisions)
app.command("logs", rich_help_panel=WATCH)(logs.command)
app.command("open", rich_help_panel=WATCH)(browser.command)
app.command("run", rich_help_panel=WATCH)(run.command)
app.add_typer(runs.app, name="runs", rich_help_panel=WATCH)
app.add_typer(threads.app, name="threads", rich_help_panel=WATCH)
app.command("login", rich_help_panel=CONNECT)(login.login)
app.command("logout", rich_help_panel=CONNECT)(login.logout)
app.command("contexts", rich_help_panel=CONNECT)(login.list_contexts)
app.command("completion", rich_help_panel=CONNECT)(completion.command)
app.command("doctor", cls=ServerCommand, rich_help_panel=OPERATE)(doctor.command)
app.add_typer(workers.app, name="workers", rich_help_panel=OPERATE)
app.command("health", rich_help_panel=OPERATE)(health_command.command)
app.command("top", rich_help_panel=OPERATE)(top.command)
app.command("usage", rich_help_panel=OPERATE)(usage.command)
app.command("backup", cls=ServerCommand, rich_help_panel=OPERATE)(backup.backup)
app.command("restore", cls=ServerCommand, rich_help_panel=OPERATE)(backup.restore)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATE)
app.add_typer(orgs.app, name="orgs", rich_help_panel=OPERATE)
app.add_typer(encryption.app, name="encryption", rich_help_panel=OPERATE)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def about(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Service that `runyard login` kept under this name (RUNYARD_CONTEXT); `local`: none of them.",
            metavar="CONTEXT",
            autocompletion=completion.context_names,
        ),
    ] = None,
) -> None:
    """Build, serve and run agent graphs on your own machines.

    The address of the service is the first of: --url, RUNYARD_URL, the context in --context or RUNYARD_CONTEXT,
    LANGGRAPH_HOST_URL, the current context of `runyard login`, the address where `runyard up` listens.

    The API key is the first of: --api-key, RUNYARD_API_KEY of the environment, then of .env, the key of the context, the
    key that `runyard up` keeps in this directory; then LANGGRAPH_HOST_API_KEY, LANGSMITH_API_KEY and LANGCHAIN_API_KEY
    if they begin with `ryd_`. The keys of a context and of `runyard up` are sent to their own address only.
    """
    contexts.requested.set(context)


if __name__ == "__main__":
    sys.exit(app())
