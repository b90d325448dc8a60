"""`runyard revisions`, `rollback`, `interrupt`: what a deployment ran, runs, and shall run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.client import is_id
from cli.deploy import run_to_end
from cli.deployments import Name, chosen, revision_table
from cli.errors import BadUsage, CommandFailed
from cli.following import WAIT_SECONDS
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, when
from cli.report import choose
from cli.statuses import REVISION_ENDS

SEARCHED = 100

Revision = Annotated[
    str | None,
    typer.Argument(help="A revision's id, or the beginning of it.", metavar="REVISION", show_default=False),
]


def revisions(
    name: Name = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest.", metavar="N")] = 20,
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
        else:
            console().print(revision_table(rows, found.get("active_revision_id")))


def rollback(
    name: Name = None,
    revision: Revision = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it serves.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Wait at most this long; then exit 3.", metavar="SECONDS")
    ] = WAIT_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, as `deploy` does.")] = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Let an earlier revision serve again: by default the DEPLOYED one before the active one.

    Nothing is built again. It becomes a new revision with the source and secrets of the old one. Exit codes are
    those of `deploy`.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        rows = list(client.revisions(found["id"], limit=SEARCHED))
        target = named(rows, revision) if revision else before_active(rows, found.get("active_revision_id"))
        report = choose(as_json=as_json, quiet=False)
        report.step(f"Going back to revision {target['id']} of {when(target['created_at'])}")
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
    """Stop a revision that is on its way: by default the newest. What serves goes on serving."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        rows = list(client.revisions(found["id"], limit=SEARCHED if revision else 1))
        target = named(rows, revision) if revision else client.newest_revision(found["id"])
        if target["status"] in REVISION_ENDS:
            raise CommandFailed(f"Revision {target['id']} is not on its way: it is {target['status']}.")
        ended = client.interrupt(found["id"], target["id"])
        if as_json:
            typer.echo(json.dumps(ended, indent=2))
        else:
            typer.echo(f"Revision {ended['id']} is {ended['status']}.")


def named(rows: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """The revision whose id begins so. Raises CommandFailed when none or several do."""
    found = [row for row in rows if str(row["id"]).startswith(text.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadUsage(f"{len(found)} revisions begin with {text!r}: give more of the id.")
    if is_id(text):
        return {"id": text, "created_at": "earlier", "status": "UNKNOWN"}  # older than what was listed
    raise CommandFailed(f"There is no revision {text!r}. `runyard revisions` shows those there are.")


def before_active(rows: list[dict[str, Any]], active_id: str | None) -> dict[str, Any]:
    """The DEPLOYED revision before the active one. Raises CommandFailed when there is none."""
    ids = [row["id"] for row in rows]
    older = rows[ids.index(active_id) + 1 :] if active_id in ids else []
    for row in older:
        if row["status"] == "DEPLOYED":
            return row
    raise CommandFailed(
        "There is no earlier DEPLOYED revision to go back to. `runyard revisions` shows those there are."
    )
