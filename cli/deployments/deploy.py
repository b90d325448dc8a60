"""`runyard deploy`: deploy a project directory or a git repository, and report each step until it serves."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

import typer

from cli.api import addresses
from cli.api.access import read_env
from cli.api.client import Client
from cli.api.ids import version
from cli.deployments.following import WAIT_SECONDS, follow
from cli.deployments.limits import (
    HostsPerRunner,
    MaxConcurrentRuns,
    MaxRunTokens,
    MaxTokensPerDay,
    MemoryMb,
    Pool,
    RunTimeout,
    given_limits,
)
from cli.deployments.project import CONFIG, Project, deployment_name, name_of, sendable
from cli.deployments.report import Plain, PrintLine, Report, choose
from cli.errors import BadUsage, CommandFailed, TimedOut
from cli.options import ConfigFile, Key, Org, Url, open_client, sentences

CONTINUES = "The build goes on there: `runyard status {name}` and `runyard logs {name} --type build` tell how it stands."
AWAITS_SOURCE = "CREATING"  # status of a deployment's first revision until its source is uploaded

# Uploads the source, if it needs an upload, to the deployment with this id. Returns the `source_revision_config`.
RevisionConfig = Callable[[Client, str, Report], dict[str, Any]]


class Source(Protocol):
    """A source of a revision's files."""

    @property
    def kind(self) -> str:
        """The control plane's name for this kind of source."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the part that is stored with the deployment."""
        ...

    def prepared(self) -> AbstractContextManager[RevisionConfig]:
        """Check and pack the source before anything is created or changed. Raises CommandFailed."""
        ...


@dataclass(frozen=True)
class ArchiveUpload:
    """A directory on this machine."""

    project: Project
    kind: str = "internal_source"

    def config(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def prepared(self) -> Iterator[RevisionConfig]:
        with tempfile.TemporaryFile() as archive:
            size = self.project.write_archive(archive)

            def upload(client: Client, deployment_id: str, report: Report) -> dict[str, Any]:
                report.step(f"Uploading {max(size // 1024, 1)} KiB of source")
                with report.upload(size) as sent:
                    object_path = client.upload(deployment_id, archive, size, sent)
                return {"source_tarball_path": object_path, "langgraph_config_path": self.project.config_path}

            yield upload


@dataclass(frozen=True)
class Repository:
    """A git repository that the service can reach."""

    url: str
    ref: str | None
    config_path: str
    kind: str = "github"

    def config(self) -> dict[str, Any]:
        return {"repo_url": self.url}

    @contextmanager
    def prepared(self) -> Iterator[RevisionConfig]:
        config = {"langgraph_config_path": self.config_path} | ({"repo_ref": self.ref} if self.ref else {})
        yield lambda client, deployment_id, report: config


@dataclass(frozen=True)
class DeployRequest:
    """The settings that `deploy` creates a deployment with or changes it to."""

    name: str
    source: Source
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str = "dev"
    deployment_id: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # pool and limits
    preview: str | None = None  # name of a preview to deploy; the active revision keeps its traffic


def deploy(
    client: Client, project: Project, name: str, print_line: PrintLine, *, wait: bool = True
) -> dict[str, Any]:
    """Deploy a project under a name and report each step as a line. Returns the deployment. Raises CommandFailed."""
    report = Plain(print_line)
    request = DeployRequest(name, ArchiveUpload(project), project.variables())
    found, revision_id = start(client, request, report)
    if wait:
        follow(client, found["id"], revision_id, report)
    return client.deployment(found["id"])


def start(client: Client, request: DeployRequest, report: Report) -> tuple[dict[str, Any], str]:
    """Create or update the deployment. Returns its record and the id of the new revision, which is not built yet."""
    secrets, refused = sendable(request.variables)
    for name in refused:
        report.note(f"{name} is reserved and is not sent")
    with request.source.prepared() as revision_config:
        found = (
            client.deployment(request.deployment_id) if request.deployment_id else client.find(request.name)
        )
        if found is None and request.preview:
            raise CommandFailed(
                f"There is no deployment {request.name} to preview: deploy it without --preview first."
            )
        if found is None:
            report.step(f"Creating the deployment {request.name}")
            return _create(client, request, revision_config, secrets, report)
        if request.preview:
            report.step(f"Previewing the deployment {found['name']} as {request.preview}")
        else:
            report.step(f"Updating the deployment {found['name']}")
            if len(found.get("traffic") or []) > 1:
                report.note("Its traffic is split: when this is deployed, the split ends.")
        config = revision_config(client, found["id"], report)
        return _change(client, found, request, config, secrets, report)


def _create(
    client: Client,
    request: DeployRequest,
    revision_config: RevisionConfig,
    secrets: list[dict[str, str]],
    report: Report,
) -> tuple[dict[str, Any], str]:
    """Create the deployment. A git source is part of the create call; an archive is uploaded and set by a PATCH.

    If the upload or the PATCH fails, the new deployment is deleted.
    """
    is_upload = isinstance(request.source, ArchiveUpload)
    found = client.create(
        {
            "name": request.name,
            "source": request.source.kind,
            "source_config": {"deployment_type": request.kind, **request.source.config()},
            "source_revision_config": {} if is_upload else revision_config(client, "", report),
            "secrets": secrets,
            **request.settings,
        }
    )
    if not is_upload:
        report.step(f"Building {_revision(found)}")
        return found, found["latest_revision_id"]
    try:
        config = revision_config(client, found["id"], report)
        return _change(client, found, request, config, secrets, report, is_new=True)
    except (CommandFailed, KeyboardInterrupt):
        _delete_without_source(client, found["id"])
        raise


def _delete_without_source(client: Client, deployment_id: str) -> None:
    """Delete a new deployment whose source was refused or not sent, unless another deploy has uploaded a source."""
    try:
        if client.newest_revision(deployment_id)["status"] == AWAITS_SOURCE:
            client.delete(deployment_id)
    except CommandFailed:
        pass  # the command reports why the deploy failed


def _change(
    client: Client,
    found: dict[str, Any],
    request: DeployRequest,
    config: dict[str, Any],
    secrets: list[dict[str, str]],
    report: Report,
    *,
    is_new: bool = False,
) -> tuple[dict[str, Any], str]:
    body = {
        "revision_source": request.source.kind,
        "source_revision_config": config,
        "secrets": secrets,
        **({} if is_new else request.settings),
    }
    if request.source.config():
        body["source_config"] = request.source.config()
    if request.preview:
        made = client.add_revision(found["id"], {**body, "preview": request.preview})
        record = found | {"latest_revision_id": made["id"], "latest_revision_number": made["number"]}
        report.step(f"Building {_revision(record)}")
        return record, made["id"]
    record = found | client.change(found["id"], body)
    revision_id = record.get("latest_revision_id") or client.newest_revision(found["id"])["id"]
    report.step(f"Building {_revision({**record, 'latest_revision_id': revision_id})}")
    return record, revision_id


def _revision(found: dict[str, Any]) -> str:
    """Return `v3 (ID)` for the deployment's newest revision."""
    number = found.get("latest_revision_number")
    return f"{version(number) if number else 'revision'} ({found['latest_revision_id']})"


# The command


def command(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of the project. Default: this one.", metavar="DIRECTORY", show_default=False
        ),
    ] = Path("."),
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "-n", help="Name of the deployment. Default: the directory's name.", metavar="NAME"
        ),
    ] = None,
    prod: Annotated[bool, typer.Option("--prod", help="The same as --type prod.")] = False,
    kind: Annotated[
        Literal["dev", "prod"] | None,
        typer.Option(
            "--type",
            help="Label of a new deployment, which `list --wide` shows and the API filters by; it changes nothing else."
            " Default: dev.",
            show_default=False,
        ),
    ] = None,
    deployment_id: Annotated[
        str | None, typer.Option(help="Id of the deployment to update, instead of its name.", metavar="ID")
    ] = None,
    config: ConfigFile = CONFIG,
    env_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the deployment's variables. Default: `env` of the configuration, else .env.",
            metavar="FILE",
        ),
    ] = None,
    git: Annotated[
        str | None,
        typer.Option(
            "--git",
            help="Address of a repository to deploy instead of a directory. The service fetches it.",
            metavar="URL",
            rich_help_panel="From git",
        ),
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref",
            help="Branch, commit, or refs/tags/TAG. Default: the repository's default branch.",
            metavar="REF",
            rich_help_panel="From git",
        ),
    ] = None,
    preview: Annotated[
        str | None,
        typer.Option(
            "--preview",
            help="Deploy a preview of this name: a revision at its own address, without traffic of the deployment.",
            metavar="NAME",
        ),
    ] = None,
    pool: Pool = None,
    max_concurrent_runs: MaxConcurrentRuns = None,
    hosts_per_runner: HostsPerRunner = None,
    run_timeout: RunTimeout = None,
    memory_mb: MemoryMb = None,
    max_tokens_per_day: MaxTokensPerDay = None,
    max_run_tokens: MaxRunTokens = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Exit when the build has started.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds to wait for the revision to serve; then exit 3.", metavar="SECONDS"
        ),
    ] = WAIT_SECONDS,
    no_input: Annotated[bool, typer.Option("--no-input", help="Fail instead of asking a question.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the address.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each event.")] = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Deploy a project directory and wait until it serves.

    The command creates the deployment of that name or updates it. It sends the variables of the project's .env as
    secrets and uploads no .env file. It prints the build log and then the address.

    Exit codes: 0 deployed (with --no-wait: accepted) · 1 failed, skipped, interrupted or refused · 2 wrong usage ·
    3 not deployed within --timeout · 130 Ctrl-C; the build continues.
    """
    with sentences(as_json=as_json):
        if git is None and ref is not None:
            raise BadUsage("--ref belongs to --git.")
        if prod and kind == "dev":
            raise BadUsage("--prod and --type dev contradict each other.")
        limits = given_limits(
            max_concurrent_runs=max_concurrent_runs,
            hosts_per_runner=hosts_per_runner,
            run_timeout_seconds=run_timeout,
            memory_mb=memory_mb,
            max_tokens_per_day=max_tokens_per_day,
            max_run_tokens=max_run_tokens,
        )
        if preview and (pool or limits):
            raise BadUsage("--preview leaves the deployment's pool and limits as they are.")
        project = None if git else Project.read(directory, config)
        found = read_env_of(project, env_file)
        source: Source = ArchiveUpload(project) if project else Repository(str(git), ref, config)
        request = DeployRequest(
            name=deployment_name(name) if name else name_of(default_name(project, git), found),
            source=source,
            variables=found,
            kind=kind or ("prod" if prod else "dev"),
            deployment_id=deployment_id,
            settings=({"pool": pool} if pool else {}) | ({"limits": limits} if limits else {}),
            preview=preview,
        )
        report = choose(as_json=as_json, quiet=quiet)
        if project and not env_file and project.missing_env_file:
            report.note(
                f"{project.missing_env_file}, the env of {config}, does not exist: no variables are sent"
            )
        ask = None if no_input or as_json or not sys.stdin.isatty() else _ask_key
        local = found if project or env_file else None
        with _client(url, api_key, org, local, ask) as client:
            record, revision_id = start(client, request, report)
            seconds = None if no_wait else timeout
            run_to_end(client, record, revision_id, report, seconds=seconds, preview=preview)


def run_to_end(
    client: Client,
    found: dict[str, Any],
    revision_id: str,
    report: Report,
    *,
    seconds: float | None,
    preview: str | None = None,
) -> None:
    """Wait for a revision and report the result. Raises CommandFailed, and typer.Exit for a failure already printed.

    `seconds` is the timeout; None reports the start of the build and returns at once.
    """
    result = {
        "deployment_id": found["id"],
        "revision_id": revision_id,
        "revision_number": found.get("latest_revision_number"),
        "name": found["name"],
        "url": None,
        **({"preview": preview} if preview else {}),
    }
    if seconds is None:
        _warn_without_runner(client, found, report)
        report.result({"status": "started", **result}, CONTINUES.format(name=found["name"]))
        return
    try:
        follow(client, found["id"], revision_id, report, seconds=seconds)
    except KeyboardInterrupt:
        report.note(CONTINUES.format(name=found["name"]))
        raise
    except CommandFailed as error:
        is_late = isinstance(error, TimedOut)
        failure = TimedOut(f"{error} {CONTINUES.format(name=found['name'])}") if is_late else error
        status = "timed_out" if is_late else "failed"
        if report.failure({"status": status, **result, **error.details}, str(failure)):
            raise typer.Exit(failure.exit_code) from error
        raise failure from None
    found = client.deployment(found["id"])
    address = addresses.address_of(client.url, found)
    what = f"Deployment {found['name']}"
    if preview:
        shown = [row for row in client.previews(found["id"]) if row["name"] == preview]
        address, what = shown[0]["url"] if shown else None, f"Preview {preview} of {found['name']}"
    _warn_without_runner(client, found, report)
    report.result({"status": "succeeded", **result, "url": address}, f"{what}: {address}")


def _warn_without_runner(client: Client, found: dict[str, Any], report: Report) -> None:
    """Print a warning if every runner of the deployment's pool is draining, or the pool has none."""
    pool = found.get("pool")
    try:
        pools = {row["name"]: row for row in client.get("/v2/workers")["pools"]}
    except CommandFailed:
        return  # the warning is optional: the deploy itself has not failed
    if pool in pools and pools[pool]["runners"] == pools[pool]["draining"]:
        report.note(
            f"Warning: the pool {pool} has no runner. Runs of {found['name']} wait until one starts:"
            f" RUNYARD_POOL={pool} runyard process runner"
        )


def read_env_of(project: Project | None, env_file: Path | None) -> dict[str, str]:
    """Return the deployment's variables from `env_file`, else from the project. Raises BadUsage for a missing file."""
    if env_file is not None:
        if not env_file.is_file():
            raise BadUsage(f"{env_file} does not exist.")
        return read_env(env_file)
    return project.variables() if project else {}


def default_name(project: Project | None, git: str | None) -> str:
    """Return the name of the project's directory, or of the repository without `.git`."""
    if project:
        return project.folder.name
    return Path(urlsplit(git or "").path).name.removesuffix(".git")


def _client(
    url: str | None,
    key: str | None,
    org: str | None,
    local: Mapping[str, str] | None,
    ask: Callable[[], str] | None,
) -> Client:
    try:
        return open_client(url, key, org, local=local)
    except CommandFailed as error:
        if ask is None or key:
            raise
        typer.echo(str(error), err=True)
    return open_client(url, ask(), org, local=local)


def _ask_key() -> str:
    return typer.prompt("API key", hide_input=True)
