"""`runyard orgs`: manage the organizations of an installation. Each has its own deployments and keys."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.api.client import Client
from cli.api.ids import is_id
from cli.errors import CommandFailed
from cli.operating.keys import day
from cli.options import Json, Key, Url, Yes, confirm_deletion, new_app, open_client, sentences
from cli.output import console, printable

app = new_app("Create, list, rename and delete organizations. Needs an operator's key.")

Which = Annotated[str, typer.Argument(help="Organization: its name or id.", metavar="NAME|ID")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name: letters, digits, `.`, `_` and `-`.", metavar="NAME")],
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Create an organization. `runyard keys create --org NAME --role admin` then creates its first key."""
    with sentences(as_json=as_json), open_client(url, api_key) as client:
        made = client.send("POST", "/v2/organizations", {"name": name})
        if as_json:
            typer.echo(json.dumps(made, indent=2))
            return
        typer.echo(
            f"Created {made['name']} ({made['id']}). Its first key: `runyard keys create --org {made['name']} --role admin`."
        )


@app.command("list")
def list_organizations(as_json: Json = False, url: Url = None, api_key: Key = None) -> None:
    """List the organizations that the key may act in, oldest first."""
    with sentences(as_json=as_json), open_client(url, api_key) as client:
        rows = list(client.every("/v2/organizations"))
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
            return
        table = Table("Name", "Created", "ID", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(printable(cell) for cell in (row["name"], day(row["created_at"]), row["id"])))
        console().print(table)


@app.command("rename")
def rename(
    which: Which,
    name: Annotated[str, typer.Argument(help="New name.", metavar="NEW_NAME")],
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Rename an organization. Its id and its keys stay."""
    with sentences(), open_client(url, api_key) as client:
        client.send("PATCH", f"/v2/organizations/{chosen(client, which)['id']}", {"name": name})
        typer.echo(f"Renamed to {name}.")


@app.command("delete")
def delete(
    which: Which,
    yes: Yes = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Delete an organization with its deployments, threads, runs and keys, after a confirmation."""
    with sentences(as_json=as_json), open_client(url, api_key) as client:
        found = chosen(client, which)
        if not yes:
            confirm_deletion(found["name"], "deployments, threads, runs and keys", as_json=as_json)
        client.send("DELETE", f"/v2/organizations/{found['id']}")
        typer.echo(json.dumps({"deleted": found["id"]}) if as_json else f"Deleted {found['name']}.")


def chosen(client: Client, name_or_id: str) -> dict[str, Any]:
    """Return the organization of that name or id. Raises CommandFailed."""
    field = "id" if is_id(name_or_id) else "name"
    wanted = name_or_id.lower() if field == "id" else name_or_id
    for row in client.every("/v2/organizations"):
        if row[field] == wanted:
            return row
    raise CommandFailed(
        f"There is no organization {name_or_id!r}. `runyard orgs list` shows those there are."
    )
