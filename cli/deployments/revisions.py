"""`runyard revisions`, `rollback`, `interrupt`: list a deployment's revisions, serve an earlier one, stop a build."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import REVISION_ENDS, is_id, number_of, only_match, revision_style, version, with_part
from cli.commands import JSON_EVENTS_HELP, command
from cli.deployments.deploy import NoWait, Timeout, follow_to_end
from cli.deployments.following import WAIT_SECONDS
from cli.deployments.report import choose_report
from cli.deployments.target import Name, Wide, resolve_deployment
from cli.errors import CommandFailed
from cli.output import Column, Output, id_column, printable, show_table, when

SEARCHED = 100  # revisions that a rollback searches for an earlier DEPLOYED one

Revision = Annotated[
    str | None, typer.Argument(help="Revision: v3, its id or the end of its id.", metavar="REVISION")
]


@command
def revisions(
    client: Client,
    out: Output,
    name: Name = None,
    limit: int = Option(20, min=1, help="Number of revisions.", metavar="N"),
    wide: Wide = False,
) -> None:
    """List a deployment's revisions, newest first."""
    deployment = resolve_deployment(client, name)
    rows = list(client.revisions(deployment["id"], limit=limit))
    if out.as_json:
        out.json(rows)
    else:
        show_revisions(client, deployment, rows, wide=wide)


@command(json_help=JSON_EVENTS_HELP)
def rollback(
    client: Client,
    out: Output,
    name: Name = None,
    revision: Revision = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_SECONDS,
) -> None:
    """Serve an earlier revision again. Default: the DEPLOYED revision before the active one.

    The command creates a new revision with the source and secrets of the old one, without a build. Exit codes are those
    of `deploy`.
    """
    deployment, revision = resolve_revision(client, name, revision)
    row = find_revision(client, deployment, revision) if revision else _before_active(client, deployment)
    report = choose_report(as_json=out.as_json)
    report.step(f"Going back to {_label(row)} of {when(row['created_at'])}")
    deployment = client.redeploy(deployment["id"], row["id"])
    revision_id = deployment.get("latest_revision_id") or client.newest_revision(deployment["id"])["id"]
    follow_to_end(client, deployment, revision_id, report, seconds=None if no_wait else timeout)


@command
def interrupt(client: Client, out: Output, name: Name = None, revision: Revision = None) -> None:
    """Stop a revision that is being built or deployed. Default: the newest. The active revision continues to serve."""
    deployment, revision = resolve_revision(client, name, revision)
    if revision:
        row = find_revision(client, deployment, revision)
    else:
        row = client.newest_revision(deployment["id"])
    if row["status"] in REVISION_ENDS:
        raise CommandFailed(f"Revision {_label(row)} has ended: it is {row['status']}.")
    row = client.interrupt(deployment["id"], row["id"])
    out.done(f"Revision {_label(row)} is {row['status']}.", row)


def resolve_revision(
    client: Client, name: str | None, revision: str | None
) -> tuple[dict[str, Any], str | None]:
    """Return the deployment and the revision's text.

    `v3` alone is a revision of the current directory's deployment, unless a deployment has that name.
    """
    if name and revision is None and number_of(name) and client.find(name) is None:
        return resolve_deployment(client, None), name
    return resolve_deployment(client, name), revision


def find_revision(client: Client, deployment: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the deployment's revision with that number, id, or beginning or end of an id.

    Raises CommandFailed if there is none, and BadUsage if several match.
    """
    if is_id(text):
        return client.revision(deployment["id"], text)
    number = number_of(text)
    rows = list(client.revisions(deployment["id"], limit=math.inf))
    if number is None:
        rows = with_part(rows, text)
    else:
        rows = [row for row in rows if row.get("number") == number]
    missing = f"There is no revision {text!r}. `runyard revisions` shows those there are."
    return only_match(
        rows, text, "revisions", missing, label=lambda row: f"{version(row.get('number'))} {row['status']}"
    )


def _label(row: dict[str, Any]) -> str:
    """Return a revision's number such as `v3`, or its id if the service does not number revisions."""
    return version(row["number"]) if row.get("number") else str(row["id"])


def _before_active(client: Client, deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the newest DEPLOYED revision older than the active one, without previews. Raises CommandFailed."""
    rows = list(client.revisions(deployment["id"], limit=SEARCHED))
    active_id, ids = deployment.get("active_revision_id"), [row["id"] for row in rows]
    older = rows[ids.index(active_id) + 1 :] if active_id in ids else []
    for row in older:
        if row["status"] == "DEPLOYED" and not row.get("preview"):
            return row
    raise CommandFailed(
        "There is no earlier DEPLOYED revision to go back to. `runyard revisions` shows those there are."
    )


def show_revisions(
    client: Client, deployment: dict[str, Any], rows: list[dict[str, Any]], *, wide: bool
) -> None:
    """Print a table of a deployment's revisions, with the serving one and those of its previews marked."""
    previews = client.previews(deployment["id"]) if any(row.get("preview") for row in rows) else []
    previewed_ids = {row.get(name) for row in previews for name in ("revision_id", "latest_revision_id")}

    def note(row: dict[str, Any]) -> Text:
        if row["id"] == deployment.get("active_revision_id"):
            return Text("serves now", "bold")
        about = f"preview {row['preview']}" if row.get("preview") else ""
        if about and row["id"] not in previewed_ids:
            about = f"was {about}"
        return Text(printable((row.get("status_message") or about).partition("\n")[0]), "dim")

    columns = (
        Column("Revision", lambda row: version(row.get("number"))),
        Column("Status", lambda row: Text(row["status"], revision_style(row["status"]))),
        Column("Created", lambda row: when(row["created_at"])),
        id_column(),
        Column("", note, folds=True),
    )
    show_table(rows, columns, wide=wide)
