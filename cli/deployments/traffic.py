"""`runyard traffic`, `promote`, `abort`, `previews`: split new runs over revisions, end a split, manage previews."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from cli.api.client import Client
from cli.api.ids import version
from cli.api.statuses import status_style
from cli.deployments.deployments import Name, chosen, existing, preview_of
from cli.deployments.project import name_here
from cli.deployments.revisions import Revision, find, meant
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, printable, when

WHOLE = 100
SHARE = re.compile(r"(?P<revision>[^=]+)=(?P<percent>\d{1,3})%?")

Shares = Annotated[
    list[str] | None,
    typer.Argument(
        help="Revisions and their percentages, v4=10. The active revision gets the rest.",
        metavar="REVISION=PERCENT…",
        show_default=False,
    ),
]


def traffic(
    name: Name = None,
    shares: Shares = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show how new runs are split over revisions, or change the split: `runyard traffic chat v4=10`.

    A thread keeps its revision as long as the percentages allow it. `promote`, `abort` and the next deploy end a split.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        if name is not None and "=" in name:
            name, shares = None, [name, *(shares or [])]
        found = chosen(client, name)
        if shares:
            found = client.change(found["id"], {"traffic": _wanted(client, found, shares)})
        _show(found, as_json=as_json)


def _wanted(client: Client, found: dict[str, Any], shares: list[str]) -> list[dict[str, Any]]:
    wanted: dict[str, int] = {}
    for share in shares:
        match = SHARE.fullmatch(share)
        if match is None:
            raise BadUsage(f"{share!r} is not a revision and its percentage, as v4=10 is.")
        revision_id = find(client, found, match["revision"])["id"]
        if revision_id in wanted:
            raise BadUsage(f"{match['revision']} is named twice.")
        wanted[revision_id] = int(match["percent"])
    left, serving = WHOLE - sum(wanted.values()), found.get("active_revision_id")
    if left > 0 and serving and serving not in wanted:
        wanted[serving] = left
    return [{"revision_id": id, "percent": percent} for id, percent in wanted.items()]


def promote(
    name: Name = None,
    revision: Revision = None,
    preview: Annotated[
        str | None,
        typer.Option("--preview", help="Promote the revision of this preview.", metavar="NAME"),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Send all new runs to one deployed revision. Default: the other revision of a split between two.

    Nothing is built. A runner starts a process of the revision before it gets runs, so no run waits for a start.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found, revision = meant(client, name, revision)
        if revision and preview:
            raise BadUsage("A revision and --preview name two things to promote: give one.")
        revision_id = _meant_to_serve(client, found, revision, preview)
        path = f"/v2/deployments/{found['id']}/traffic/promote"
        _show(client.send("POST", path, {"revision_id": revision_id}, repeat=True), as_json=as_json)


def _meant_to_serve(client: Client, found: dict[str, Any], revision: str | None, preview: str | None) -> str:
    if revision:
        return str(find(client, found, revision)["id"])
    if preview:
        revision_id = preview_of(client, found, preview)["revision_id"]
        if not revision_id:
            raise CommandFailed(f"The preview {preview!r} shows no revision yet.")
        return str(revision_id)
    serving = found.get("active_revision_id")
    others = [share for share in found.get("traffic") or [] if share["revision_id"] != serving]
    if len(others) != 1:
        raise BadUsage("Name the revision to promote: the traffic is not split between two.")
    return str(others[0]["revision_id"])


def abort(
    name: Name = None, as_json: Json = False, url: Url = None, api_key: Key = None, org: Org = None
) -> None:
    """End a split: the active revision gets all new runs again."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        ended = client.send("POST", f"/v2/deployments/{found['id']}/traffic/abort", repeat=True)
        _show(ended, as_json=as_json)


def previews(
    name: Name = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", help="Delete this preview and its address.", metavar="PREVIEW"),
    ] = None,
    if_exists: Annotated[
        bool,
        typer.Option(
            "--if-exists", help="With --delete: succeed if the preview or the deployment does not exist."
        ),
    ] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List the previews of a deployment, or delete one. `runyard deploy --preview` creates them."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        if if_exists and delete is None:
            raise BadUsage("--if-exists belongs to --delete.")
        if delete is not None:
            deleted = _delete_preview(client, name, delete, if_exists=if_exists)
            told = f"Deleted {delete}." if deleted else f"There is no preview {delete}."
            typer.echo(json.dumps({"preview": delete, "deleted": deleted}) if as_json else told)
            return
        found = chosen(client, name)
        rows = client.previews(found["id"])
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        elif rows:
            console().print(_preview_table(rows))
        else:
            typer.echo(f"{found['name']} has no previews. `runyard deploy --preview NAME` makes one.")


def _delete_preview(client: Client, name: str | None, preview: str, *, if_exists: bool) -> bool:
    """Delete a preview. With `if_exists`, return False if the preview or the deployment does not exist."""
    if not if_exists:
        found = chosen(client, name)
        preview_of(client, found, preview)
    else:
        found = existing(client, name or name_here())
        if found is None or all(row["name"] != preview for row in client.previews(found["id"])):
            return False
    client.send("DELETE", f"/v2/deployments/{found['id']}/previews/{preview}", repeat=True)
    return True


def _preview_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("Preview", "Revision", "Newest", "Changed", Column("Address", overflow="fold"))
    table.box, table.pad_edge = None, False
    for row in rows:
        newest = row.get("latest_revision_status") or "-"
        table.add_row(
            row["name"],
            version(row["revision_number"]),
            Text(newest, status_style(newest)),
            when(row["updated_at"]),
            Text(printable(row["url"] or "-")),
        )
    return table


def in_words(found: dict[str, Any]) -> str:
    """Return the traffic as `v3 90 %, v4 10 %`; empty if no revision serves."""
    return ", ".join(
        f"{version(share['revision_number'])} {share['percent']} %" for share in found.get("traffic") or []
    )


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        names = ("id", "name", "active_revision_id", "active_revision_number", "traffic")
        typer.echo(json.dumps({name: found.get(name) for name in names}, indent=2))
    else:
        typer.echo(f"{found['name']}: {in_words(found) or 'no revision serves yet'}")
