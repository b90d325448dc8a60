"""Deploying a project directory or a git repository: send the source, create a revision, wait until it serves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from cli.client.access import read_env
from cli.client.client import Client
from cli.client.names import address_of, version
from cli.deployments.following import follow
from cli.deployments.project import Project, sendable
from cli.deployments.report import Plain, PrintLine, Report
from cli.errors import BadUsage, CommandFailed, TimedOut

NoWait = Annotated[bool, typer.Option("--no-wait", help="Exit without waiting until it serves.")]
Timeout = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds to wait for the revision to serve; then exit 3.", metavar="SECONDS"),
]

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
) -> None:
    """Wait for a revision and report the result. Raises CommandFailed, and typer.Exit for a failure already printed.

    `seconds` is the timeout; None reports the start of the build and returns at once.
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
        report.result({"status": "started", **result}, CONTINUES.format(name=deployment["name"]))
        return
    try:
        follow(client, deployment["id"], revision_id, report, seconds=seconds)
    except KeyboardInterrupt:
        report.note(CONTINUES.format(name=deployment["name"]))
        raise
    except CommandFailed as error:
        is_late = isinstance(error, TimedOut)
        failure = TimedOut(f"{error} {CONTINUES.format(name=deployment['name'])}") if is_late else error
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
    report.result({"status": "succeeded", **result, "url": address}, f"{what}: {address}")


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
