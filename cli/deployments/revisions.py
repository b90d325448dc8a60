"""`runyard revisions`, `rollback`, `interrupt`: list a deployment's revisions, serve an earlier one, stop a build."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.api.client import Client
from cli.api.ids import is_id, number_of, version, with_part
from cli.api.statuses import REVISION_ENDS
from cli.deployments.deploy import run_to_end
from cli.deployments.deployments import Name, Wide, chosen, show_revisions
from cli.deployments.following import WAIT_SECONDS
from cli.deployments.report import choose
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import when

SEARCHED = 100  # revisions that a rollback searches for an earlier DEPLOYED one
ALL = 100_000

Revision = Annotated[
    str | None,
    typer.Argument(help="Revision: v3, its id or the end of its id.", metavar="REVISION", show_default=False),
]


def revisions(
    name: Name = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of revisions.", metavar="N")] = 20,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List a deployment's revisions, newest first."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        rows = list(client.revisions(found["id"], limit=limit))
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
            return
        show_revisions(client, found, rows, wide=wide)


def rollback(
    name: Name = None,
    revision: Revision = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Exit without waiting until it serves.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds to wait for the revision to serve; then exit 3.", metavar="SECONDS"
        ),
    ] = WAIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each event, as `deploy` does.")
    ] = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Serve an earlier revision again. Default: the DEPLOYED revision before the active one.

    The command creates a new revision with the source and secrets of the old one, without a build. Exit codes are those
    of `deploy`.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found, revision = meant(client, name, revision)
        target = find(client, found, revision) if revision else _before_active(client, found)
        report = choose(as_json=as_json, quiet=False)
        report.step(f"Going back to {label(target)} of {when(target['created_at'])}")
        found = client.redeploy(found["id"], target["id"])
        revision_id = found.get("latest_revision_id") or client.newest_revision(found["id"])["id"]
        run_to_end(client, found, revision_id, report, seconds=None if no_wait else timeout)


def interrupt(
    name: Name = None,
    revision: Revision = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Stop a revision that is being built or deployed. Default: the newest. The active revision continues to serve."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found, revision = meant(client, name, revision)
        target = find(client, found, revision) if revision else client.newest_revision(found["id"])
        if target["status"] in REVISION_ENDS:
            raise CommandFailed(f"Revision {label(target)} has ended: it is {target['status']}.")
        ended = client.interrupt(found["id"], target["id"])
        if as_json:
            typer.echo(json.dumps(ended, indent=2))
        else:
            typer.echo(f"Revision {label(ended)} is {ended['status']}.")


def meant(client: Client, name: str | None, revision: str | None) -> tuple[dict[str, Any], str | None]:
    """Return the deployment and the revision's text.

    `v3` alone is a revision of the current directory's deployment, unless a deployment has that name.
    """
    if name and revision is None and number_of(name) and client.find(name) is None:
        return chosen(client, None), name
    return chosen(client, name), revision


def find(client: Client, found: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the deployment's revision with that number, id, or beginning or end of an id.

    Raises CommandFailed if there is none, and BadUsage if several match.
    """
    if is_id(text):
        return client.revision(found["id"], text)
    number = number_of(text)
    if number is not None:
        rows = [row for row in client.revisions(found["id"], limit=ALL) if row.get("number") == number]
    else:
        rows = with_part(client.revisions(found["id"], limit=ALL), text)
    if len(rows) > 1:
        raise BadUsage(f"{len(rows)} revisions have an id with {text!r}: give more of it.")
    if not rows:
        raise CommandFailed(f"There is no revision {text!r}. `runyard revisions` shows those there are.")
    return rows[0]


def label(row: dict[str, Any]) -> str:
    """Return a revision's number such as `v3`, or its id if the service does not number revisions."""
    return version(row["number"]) if row.get("number") else str(row["id"])


def _before_active(client: Client, found: dict[str, Any]) -> dict[str, Any]:
    """Return the newest DEPLOYED revision older than the active one, without previews. Raises CommandFailed."""
    rows, active_id = list(client.revisions(found["id"], limit=SEARCHED)), found.get("active_revision_id")
    ids = [row["id"] for row in rows]
    older = rows[ids.index(active_id) + 1 :] if active_id in ids else []
    for row in older:
        if row["status"] == "DEPLOYED" and not row.get("preview"):
            return row
    raise CommandFailed(
        "There is no earlier DEPLOYED revision to go back to. `runyard revisions` shows those there are."
    )
