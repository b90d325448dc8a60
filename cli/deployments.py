"""`runyard list`, `status`, `delete`: the deployments there are, how one stands, and its end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from cli.addresses import address_in
from cli.client import Client
from cli.errors import CommandFailed
from cli.options import Json, Key, Org, Url, confirm_deletion, open_client, sentences
from cli.output import console, printable, when
from cli.project import deployment_name, name_here
from cli.statuses import status_style

REVISIONS_SHOWN = 5
WIDE = 120
ID_COLUMN = Column("ID", no_wrap=True, min_width=36)  # whole on any terminal: it is there to be copied

Name = Annotated[
    str | None,
    typer.Argument(
        help="The deployment's name or id. Default: the name that deploy gives it here.",
        metavar="NAME|ID",
        show_default=False,
    ),
]


def chosen(client: Client, name_or_id: str | None) -> dict[str, Any]:
    """The deployment that was named, by its name, its id, or what a directory of that name deploys as.

    When none was: the one that this directory deploys to.
    """
    if name_or_id is None:
        return client.require(name_here())
    try:
        return client.require(name_or_id)
    except CommandFailed:
        normal = deployment_name(name_or_id)
        found = client.find(normal) if normal != name_or_id else None
        if found is None:
            raise
        return found


def list_deployments(
    name_contains: Annotated[str, typer.Option(help="Only names with this text.", metavar="TEXT")] = "",
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List the deployments, newest first."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        rows = list(client.deployments(name_contains=name_contains))
        if as_json:
            typer.echo(json.dumps([summary(row) for row in rows], indent=2))
            return
        if not rows:
            typer.echo("There are no deployments. `runyard deploy DIRECTORY` makes one.")
            return
        out = console()
        is_wide = out.width >= WIDE
        more = ("Type", "Pool") if is_wide else ()
        table = Table(
            "Name", "Status", Column("Address", overflow="fold"), ID_COLUMN, *more, box=None, pad_edge=False
        )
        for row in rows:
            cells = [row["name"], _state(row), address_in(row), row["id"]]
            if is_wide:
                cells += [(row.get("source_config") or {}).get("deployment_type"), row.get("pool")]
            table.add_row(*(printable(str(cell or "-")) for cell in cells))
        out.print(table)


def status(
    name: Name = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show how a deployment stands: its address, its newest revisions, and which of them serves."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        rows = list(client.revisions(found["id"], limit=REVISIONS_SHOWN))
        if as_json:
            typer.echo(json.dumps({**summary(found), "deployment": found, "revisions": rows}, indent=2))
            return
        out = console()
        for label, value in _facts(found):
            out.print(Text.assemble((f"{label:<12}", "bold"), printable(value)))
        out.print()
        out.print(revision_table(rows, found.get("active_revision_id")))


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    config = found.get("source_config") or {}
    limits = {name: value for name, value in (found.get("limits") or {}).items() if value is not None}
    facts = {
        "Deployment": f"{found['name']} ({found['id']})",
        "Status": _state(found),
        "Address": address_in(found),
        "Type": config.get("deployment_type"),
        "Source": config.get("repo_url"),
        "Pool": found.get("pool"),
        "Limits": ", ".join(f"{name} {value}" for name, value in limits.items()),
        "Secrets": ", ".join(secret["name"] for secret in found.get("secrets") or []),
        "Changed": when(found.get("updated_at")),
    }
    return [(label, str(value)) for label, value in facts.items() if value]


def _state(row: dict[str, Any]) -> str:
    """Whether it serves, in a word: its own status tells only that it is there."""
    if row.get("status") not in (None, "READY", "AWAITING_DATABASE"):
        return str(row["status"])
    return "serving" if row.get("active_revision_id") else "not serving yet"


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """What scripts ask of a deployment."""
    return {
        "id": row["id"],
        "name": row["name"],
        "url": address_in(row),
        "status": row.get("status"),
        "latest_revision_id": row.get("latest_revision_id"),
        "active_revision_id": row.get("active_revision_id"),
    }


def revision_table(rows: list[dict[str, Any]], active_id: str | None) -> Table:
    """Revisions, with the one that serves marked."""
    columns = (replace(ID_COLUMN, header="Revision"), "Status", "Created", Column(overflow="fold"))
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        is_active = row["id"] == active_id
        note = "serves now" if is_active else (row.get("status_message") or "").partition("\n")[0]
        table.add_row(
            row["id"],
            Text(row["status"], status_style(row["status"])),
            when(row["created_at"]),
            Text(printable(note), "bold" if is_active else "dim"),
        )
    return table


def delete(
    name: Annotated[str, typer.Argument(help="The deployment's id, or its name.", metavar="ID|NAME")],
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Delete a deployment with its threads, runs and logs. It asks first."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = client.require(name)
        label = f"{found['name']} ({found['id']})"
        if not force:
            confirm_deletion(label, "threads, runs and logs", as_json=as_json)
        client.delete(found["id"])
        if as_json:
            typer.echo(json.dumps({"id": found["id"], "name": found["name"], "deleted": True}))
        else:
            typer.echo(f"Deleted {label}.")
