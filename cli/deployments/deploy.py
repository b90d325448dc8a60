"""`runyard deploy`: deploy a project directory or a git repository, and report each step until it serves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import typer
from typer import Option

from cli.client.client import Client
from cli.commands import ConfigFile, Directory, Service, command
from cli.deployments.deploying import (
    ArchiveUpload,
    DeployRequest,
    Repository,
    Source,
    Timeout,
    follow_to_end,
    read_variables,
    start,
)
from cli.deployments.following import WAIT_SECONDS
from cli.deployments.limits import Limits
from cli.deployments.project import CONFIG, Project, deployment_name, name_of
from cli.deployments.report import choose_report
from cli.errors import BadUsage, CommandFailed
from cli.output import Output

GIT_PANEL = "From git"


@command(json_help="Print one JSON object for each event.")
def deploy(
    limits: Limits,
    service: Service,
    out: Output,
    directory: Directory = Path("."),
    name: str | None = Option(
        None, "--name", "-n", help="Name of the deployment. Default: the directory's name.", metavar="NAME"
    ),
    prod: bool = Option(False, "--prod", help="The same as --type prod."),
    kind: Literal["dev", "prod"] | None = Option(
        None,
        "--type",
        help="Label of a new deployment, which `list --wide` shows and the API filters by; it changes nothing else."
        " Default: dev.",
        show_default=False,
    ),
    deployment_id: str | None = Option(
        None, help="Id of the deployment to update, instead of its name.", metavar="ID"
    ),
    config: ConfigFile = CONFIG,
    env_file: Path | None = Option(
        None,
        help="File with the deployment's variables. Default: `env` of the configuration, else .env.",
        metavar="FILE",
    ),
    git: str | None = Option(
        None,
        "--git",
        help="Address of a repository to deploy instead of a directory. The service fetches it.",
        metavar="URL",
        rich_help_panel=GIT_PANEL,
    ),
    ref: str | None = Option(
        None,
        "--ref",
        help="Branch, commit, or refs/tags/TAG. Default: the repository's default branch.",
        metavar="REF",
        rich_help_panel=GIT_PANEL,
    ),
    preview: str | None = Option(
        None,
        "--preview",
        help="Deploy a preview of this name: a revision at its own address, without traffic of the deployment.",
        metavar="NAME",
    ),
    no_wait: bool = Option(False, "--no-wait", help="Exit when the build has started."),
    timeout: Timeout = WAIT_SECONDS,
    no_input: bool = Option(False, "--no-input", help="Fail instead of asking a question."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print only the address."),
) -> None:
    """Deploy a project directory and wait until it serves.

    The command creates the deployment of that name or updates it. It sends the variables of the project's .env as
    secrets and uploads no .env file. It prints the build log and then the address.

    Exit codes: 0 deployed (with --no-wait: accepted) · 1 failed, skipped, interrupted or refused · 2 wrong usage ·
    3 not deployed within --timeout · 130 Ctrl-C; the build continues.
    """
    if git is None and ref is not None:
        raise BadUsage("--ref belongs to --git.")
    if prod and kind == "dev":
        raise BadUsage("--prod and --type dev contradict each other.")
    if preview and limits.body():
        raise BadUsage("--preview leaves the deployment's pool and limits as they are.")
    project = None if git else Project.read(directory, config)
    variables = read_variables(project, env_file)
    source: Source = ArchiveUpload(project) if project else Repository(str(git), ref, config)
    request = DeployRequest(
        name=deployment_name(name) if name else name_of(_default_name(project, git), variables),
        source=source,
        variables=variables,
        kind=kind or ("prod" if prod else "dev"),
        deployment_id=deployment_id,
        settings=limits.body(),
        preview=preview,
    )
    report = choose_report(as_json=out.as_json, is_quiet=quiet)
    if project and not env_file and project.missing_env_file:
        report.note(f"{project.missing_env_file}, the env of {config}, does not exist: no variables are sent")
    may_ask = not no_input and not out.as_json and sys.stdin.isatty()
    with _open(service, variables if project or env_file else None, may_ask=may_ask) as client:
        record, revision_id = start(client, request, report)
        seconds = None if no_wait else timeout
        follow_to_end(client, record, revision_id, report, seconds=seconds, preview=preview)


def _default_name(project: Project | None, git: str | None) -> str:
    """Return the name of the project's directory, or of the repository without `.git`."""
    if project:
        return project.folder.name
    return Path(urlsplit(git or "").path).name.removesuffix(".git")


def _open(service: Service, local: Mapping[str, str] | None, *, may_ask: bool) -> Client:
    """Open a client. Asks for the API key if there is none and `may_ask` is set."""
    try:
        return service.open(local)
    except CommandFailed as error:
        if not may_ask or service.api_key:
            raise
        typer.echo(str(error), err=True)
    return replace(service, api_key=typer.prompt("API key", hide_input=True)).open(local)
