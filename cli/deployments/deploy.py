"""`runyard deploy`: deploy a project directory or a git repository, and report each step until it serves."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from typer import Option

from cli.client.access import is_quiet, read_env
from cli.client.client import Client
from cli.client.names import address_of, version
from cli.commands import ConfigFile, Directory, OptionGroup, Service, command
from cli.deployments import replays
from cli.deployments.following import WAIT_SECONDS, follow
from cli.deployments.project import CONFIG, Project, deployment_name, name_of, sendable
from cli.deployments.report import Plain, PrintLine, Report, choose_report
from cli.errors import NOT_JUDGED, RULE_FAILED, BadUsage, CommandFailed, NotTested, TimedOut
from cli.output import Output

LIMITS_PANEL, GIT_PANEL, REPLAY_PANEL = "Limits", "From git", "Test on past runs"


def _not_empty(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("it must not be empty.")
    return value


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("it must be a finite number.")
    return value


def _limit(help: str, metavar: str = "N", **more: Any) -> Any:
    return typer.Option(min=0, help=help, metavar=metavar, rich_help_panel=LIMITS_PANEL, **more)


def _dollars(help: str) -> Any:
    return _limit(f"{help}, in US dollars; 0: no limit.", "USD", callback=_finite)


@dataclass(frozen=True)
class Limits(OptionGroup):
    """The pool and the limits of a deployment that the command line sets. None leaves a value as it is."""

    pool: Annotated[
        str | None,
        typer.Option(
            help="Pool whose runners execute the runs.",
            metavar="NAME",
            callback=_not_empty,
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None
    max_concurrent_runs: Annotated[int | None, _limit("Runs at the same time; 0: no limit.")] = None
    hosts_per_runner: Annotated[
        int | None, _limit("Graph host processes on each runner; 0: the runner's default.")
    ] = None
    run_timeout: Annotated[
        float | None,
        _limit("Seconds that a run may take; 0: the service's default.", "SECONDS", callback=_finite),
    ] = None
    memory_mb: Annotated[
        int | None,
        _limit(
            "Memory of a graph host process in MiB, at most the runner's RUNYARD_HOST_MEMORY_MB; 0: that value.",
            "MB",
        ),
    ] = None
    max_tokens_per_day: Annotated[int | None, _limit("Tokens of all runs in a day (UTC); 0: no limit.")] = (
        None
    )
    max_run_tokens: Annotated[int | None, _limit("Tokens of one run; 0: no limit.")] = None
    max_cost_per_day: Annotated[float | None, _dollars("Cost of all runs in a day (UTC)")] = None
    max_run_cost: Annotated[float | None, _dollars("Cost of one run")] = None
    max_user_tokens_per_day: Annotated[
        int | None, _limit("Tokens of each user of the project's own auth in a day (UTC); 0: no limit.")
    ] = None
    max_user_cost_per_day: Annotated[float | None, _dollars("Cost of each user in a day (UTC)")] = None
    max_thread_tokens_per_day: Annotated[
        int | None, _limit("Tokens of each thread in a day (UTC); 0: no limit.")
    ] = None
    max_thread_cost_per_day: Annotated[float | None, _dollars("Cost of each thread in a day (UTC)")] = None
    budget_webhook: Annotated[
        str | None,
        typer.Option(
            help="URL to call at 50, 80 and 100 % of each limit of a day; an empty text: none.",
            metavar="URL",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None

    def body(self) -> dict[str, Any]:
        """Return the fields of a request that sets them; empty if there is nothing to set."""
        limits = {
            "run_timeout_seconds" if option == "run_timeout" else option: value
            for option, value in vars(self).items()
            if option != "pool" and value is not None
        }
        return ({"pool": self.pool} if self.pool else {}) | ({"limits": limits} if limits else {})


NoWait = Annotated[bool, typer.Option("--no-wait", help="Exit without waiting until it serves.")]
Timeout = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds to wait for the revision to serve; then exit 3.", metavar="SECONDS"),
]

CONTINUES = "The build goes on there: `runyard status {name}` and `runyard logs {name} --type build` tell how it stands."
AWAITS_SOURCE = "CREATING"  # status of a deployment's first revision until its source is uploaded

# Uploads the source, if it needs an upload, to the deployment with this id. Returns the `source_revision_config`.
RevisionConfig = Callable[[Client, str, Report], dict[str, Any]]


@dataclass(frozen=True)
class ArchiveUpload:
    """A source of a revision's files: a directory on this machine."""

    project: Project
    kind: str = "internal_source"  # the control plane's name

    def config(self) -> dict[str, Any]:
        """Return the part that is stored with the deployment."""
        return {}

    @contextmanager
    def prepared(self) -> Iterator[RevisionConfig]:
        """Check and pack the source before anything is created or changed. Raises CommandFailed."""
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
    """A source of a revision's files: a git repository that the service can reach."""

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
    source: ArchiveUpload | Repository
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str = "dev"
    deployment_id: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # pool and limits
    preview: str | None = None  # name of a preview to deploy; the active revision keeps its traffic


def deploy_project(
    client: Client, project: Project, name: str, print_line: PrintLine, *, wait: bool = True
) -> dict[str, Any]:
    """Deploy a project under a name and report each step as a line. Returns the deployment. Raises CommandFailed."""
    report = Plain(print_line)
    request = DeployRequest(name, ArchiveUpload(project), project.variables())
    deployment, revision_id = start(client, request, report)
    if wait:
        follow(client, deployment["id"], revision_id, report)
    return client.deployment(deployment["id"])


def start(client: Client, request: DeployRequest, report: Report) -> tuple[dict[str, Any], str]:
    """Create or update the deployment. Returns its record and the id of the new revision, which is not built yet."""
    secrets, refused = sendable(request.variables)
    for name in refused:
        report.note(f"{name} is reserved and is not sent")
    with request.source.prepared() as revision_config:
        if request.deployment_id:
            deployment = client.deployment(request.deployment_id)
        else:
            deployment = client.find(request.name)
        if deployment is None and request.preview:
            raise CommandFailed(
                f"There is no deployment {request.name} to preview: deploy it without --preview first."
            )
        if deployment is None:
            record = _create(client, request, revision_config, secrets, report)
        else:
            if request.preview:
                report.step(f"Previewing the deployment {deployment['name']} as {request.preview}")
            else:
                report.step(f"Updating the deployment {deployment['name']}")
                if len(deployment.get("traffic") or []) > 1:
                    report.note("Its traffic is split: when this is deployed, the split ends.")
            config = revision_config(client, deployment["id"], report)
            record = _add_revision(
                client, deployment, request, config, {"secrets": secrets, **request.settings}
            )
        number, revision_id = record.get("latest_revision_number"), record["latest_revision_id"]
        report.step(f"Building {version(number) if number else 'revision'} ({revision_id})")
        return record, revision_id


def _create(
    client: Client,
    request: DeployRequest,
    revision_config: RevisionConfig,
    secrets: list[dict[str, str]],
    report: Report,
) -> dict[str, Any]:
    """Create the deployment. A git source is part of the create call; an archive is uploaded and set by a PATCH.

    If the upload or the PATCH fails, the new deployment is deleted.
    """
    is_upload = isinstance(request.source, ArchiveUpload)
    deployment = client.create(
        {
            "name": request.name,
            "source": request.source.kind,
            "source_config": {"deployment_type": request.kind, **request.source.config()},
            "source_revision_config": {} if is_upload else revision_config(client, "", report),
            "secrets": secrets,
            **request.settings,
        }
    )
    created = f"Created the deployment {request.name}"
    if not is_upload:
        report.step(created)
        return deployment
    try:
        report.step(created)
        config = revision_config(client, deployment["id"], report)
        return _add_revision(client, deployment, request, config, {"secrets": secrets})
    except (CommandFailed, KeyboardInterrupt):
        _delete_without_source(client, deployment["id"])
        raise


def _delete_without_source(client: Client, deployment_id: str) -> None:
    """Delete a new deployment whose source was refused or not sent, unless another deploy has uploaded a source."""
    try:
        if client.newest_revision(deployment_id)["status"] == AWAITS_SOURCE:
            client.delete(deployment_id)
    except CommandFailed:
        pass  # the command reports why the deploy failed


def _add_revision(
    client: Client,
    deployment: dict[str, Any],
    request: DeployRequest,
    config: dict[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Create a revision with this source, or a preview. Returns the deployment's record with the new revision."""
    body = {"revision_source": request.source.kind, "source_revision_config": config, **changes}
    if request.source.config():
        body["source_config"] = request.source.config()
    if request.preview:
        row = client.add_revision(deployment["id"], {**body, "preview": request.preview})
        return deployment | {"latest_revision_id": row["id"], "latest_revision_number": row["number"]}
    record = deployment | client.change(deployment["id"], body)
    if not record.get("latest_revision_id"):
        record["latest_revision_id"] = client.newest_revision(deployment["id"])["id"]
    return record


def follow_to_end(
    client: Client,
    deployment: dict[str, Any],
    revision_id: str,
    report: Report,
    *,
    seconds: float | None,
    preview: str | None = None,
    late: type[TimedOut] = TimedOut,
) -> dict[str, Any]:
    """Wait for a revision, report the result and return it.

    `seconds` is the timeout, at which `late` is raised; None reports the start of the build and returns at once. Raises
    CommandFailed, and typer.Exit for a failure already printed.
    """
    result = {
        "deployment_id": deployment["id"],
        "revision_id": revision_id,
        "revision_number": deployment.get("latest_revision_number"),
        "name": deployment["name"],
        "url": None,
        **({"preview": preview} if preview else {}),
    }
    if seconds is None:
        _warn_without_runner(client, deployment, report)
        result = {"status": "started", **result}
        report.result(result, CONTINUES.format(name=deployment["name"]))
        return result
    try:
        follow(client, deployment["id"], revision_id, report, seconds=seconds)
    except KeyboardInterrupt:
        report.note(CONTINUES.format(name=deployment["name"]))
        raise
    except CommandFailed as error:
        is_late = isinstance(error, TimedOut)
        failure = late(f"{error} {CONTINUES.format(name=deployment['name'])}") if is_late else error
        status = "timed_out" if is_late else "failed"
        if report.failure({"status": status, **result, **error.details}, str(failure)):
            raise typer.Exit(failure.exit_code) from error
        raise failure from None
    deployment = client.deployment(deployment["id"])
    address = address_of(client.url, deployment)
    what = f"Deployment {deployment['name']}"
    if preview:
        matching = [row for row in client.previews(deployment["id"]) if row["name"] == preview]
        address, what = matching[0]["url"] if matching else None, f"Preview {preview} of {deployment['name']}"
    _warn_without_runner(client, deployment, report)
    result = {"status": "succeeded", **result, "url": address}
    report.result(result, f"{what}: {address}")
    return result


@dataclass(frozen=True)
class ReplayRequest:
    """The replay that decides whether a deployed preview is promoted."""

    sample: int
    fail_on: str | None
    promotes: bool


def replay_to_end(client: Client, deployed: dict[str, Any], request: ReplayRequest, report: Report) -> int:
    """Replay past runs on a revision, report the comparison, and promote the revision if it passed.

    Returns the exit code of the command. `deployed` is the result of `follow_to_end`.
    """
    label = version(deployed["revision_number"])
    report.step(f"Replaying {request.sample:,} past runs on {label}")
    body = {"revision": deployed["revision_id"], "sample": request.sample, "fail_on": request.fail_on}
    replay = replays.follow(client, replays.start(client, deployed["deployment_id"], body))
    code, lines = replays.exit_code(replay), replays.plain_text(replay)
    report.replay(replay, lines)
    is_promoted = request.promotes and code == 0
    if is_promoted:
        path = f"/v2/deployments/{deployed['deployment_id']}/traffic/promote"
        client.send(
            "POST", path, {"revision_id": deployed["revision_id"], "require_replay": True}, repeat=True
        )
    statuses = {RULE_FAILED: "replay_failed", NOT_JUDGED: "replay_not_judged"}
    words = f"{replays.verdict_text(replay)} {_promotion_text(deployed['name'], label, request, is_promoted)}"
    result = {"status": statuses.get(code, deployed["status"]), "promoted": is_promoted, "replay": replay}
    report.result({**deployed, **result, "table": lines}, words.strip())
    return code


def _promotion_text(name: str, label: str, request: ReplayRequest, is_promoted: bool) -> str:
    if is_promoted:
        return f"{label} serves {name}."
    return f"{label} is not promoted." if request.promotes else ""


def _warn_without_runner(client: Client, deployment: dict[str, Any], report: Report) -> None:
    """Print a warning if every runner of the deployment's pool is draining, or the pool has none."""
    pool = deployment.get("pool")
    try:
        pools = {row["name"]: row for row in client.get("/v2/workers")["pools"]}
    except CommandFailed:
        return  # the warning is optional: the deploy itself has not failed
    if pool in pools and pools[pool]["runners"] == pools[pool]["draining"]:
        report.note(
            f"Warning: the pool {pool} has no runner. Runs of {deployment['name']} wait until one starts:"
            f" RUNYARD_POOL={pool} runyard process runner"
        )


def read_variables(project: Project | None, env_file: Path | None) -> dict[str, str]:
    """Return the deployment's variables from `env_file`, else from the project. Raises BadUsage for a missing file."""
    if env_file is not None:
        if not env_file.is_file():
            raise BadUsage(f"{env_file} does not exist.")
        return read_env(env_file)
    return project.variables() if project else {}


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
        help="Address of a repository to deploy instead of a directory. The service fetches it.",
        metavar="URL",
        rich_help_panel=GIT_PANEL,
    ),
    ref: str | None = Option(
        None,
        help="Branch, commit, or refs/tags/TAG. Default: the repository's default branch.",
        metavar="REF",
        rich_help_panel=GIT_PANEL,
    ),
    preview: str | None = Option(
        None,
        help="Deploy a preview of this name: a revision at its own address, without traffic of the deployment.",
        metavar="NAME",
    ),
    replay: int | None = Option(
        None,
        help="With --preview: execute this many past runs again on the new revision, and compare.",
        metavar="N",
        min=1,
        max=10_000,
        rich_help_panel=REPLAY_PANEL,
    ),
    fail_on: str | None = Option(None, help=replays.FAIL_ON, metavar="RULE", rich_help_panel=REPLAY_PANEL),
    promote: bool = Option(
        False,
        "--promote",
        help="Send all traffic to the new revision if the replay passed.",
        rich_help_panel=REPLAY_PANEL,
    ),
    no_wait: bool = Option(False, "--no-wait", help="Exit when the build has started."),
    timeout: Timeout = WAIT_SECONDS,
    no_input: bool = Option(False, "--no-input", help="Fail instead of asking a question."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print only the address."),
) -> None:
    """Deploy a project directory and wait until it serves.

    The command creates the deployment of that name or updates it. It sends the variables of the project's .env as
    secrets and uploads no .env file. It prints the build log and then the address.

    Exit codes: 0 deployed (with --no-wait: accepted; with --replay: also passed) · 1 failed, skipped, interrupted or
    refused · 2 wrong usage · 3 not deployed within --timeout · 130 Ctrl-C; the build or the replay continues.
    With --replay: 3 the rule failed · 4 the replay could not be judged · 5 not deployed within --timeout.
    """
    if quiet:
        is_quiet.set(True)
    if git is None and ref is not None:
        raise BadUsage("--ref belongs to --git.")
    if prod and kind == "dev":
        raise BadUsage("--prod and --type dev contradict each other.")
    if preview and limits.body():
        raise BadUsage("--preview leaves the deployment's pool and limits as they are.")
    replay_request = _replay_request(replay, fail_on, preview, promote=promote, no_wait=no_wait)
    project = None if git else Project.read(directory, config)
    variables = read_variables(project, env_file)
    source = ArchiveUpload(project) if project else Repository(str(git), ref, config)
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
        late = NotTested if replay_request else TimedOut
        result = follow_to_end(
            client, record, revision_id, report, seconds=seconds, preview=preview, late=late
        )
        if replay_request and (code := replay_to_end(client, result, replay_request, report)):
            raise typer.Exit(code)


def _replay_request(
    sample: int | None, fail_on: str | None, preview: str | None, *, promote: bool, no_wait: bool
) -> ReplayRequest | None:
    """Return the replay that the options ask for. Raises BadUsage for options that do not fit together."""
    if sample is None:
        if fail_on is not None or promote:
            raise BadUsage(f"{'--promote' if promote else '--fail-on'} belongs to --replay.")
        return None
    if not preview:
        raise BadUsage("--replay needs --preview: without it, the revision gets traffic before the replay.")
    if no_wait:
        raise BadUsage("--replay and --no-wait contradict each other: the replay starts after the build.")
    if promote and fail_on is None:
        raise BadUsage("--promote needs --fail-on: without a rule, no replay passes.")
    return ReplayRequest(sample, replays.check_rule(fail_on), promote)


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
