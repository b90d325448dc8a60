"""`runyard orgs`: manage the organizations of an installation. Each has its own deployments and keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument

from cli.client.names import is_id
from cli.commands import OperatorClient, Yes, command, delete_record, new_app
from cli.errors import CommandFailed
from cli.output import Column, Output, minute

app = new_app("Create, list, rename and delete organizations. Needs an operator's key.")

NameOrId = Annotated[str, typer.Argument(help="Organization: its name or id.", metavar="NAME|ID")]

COLUMNS = (
    Column("Name", lambda row: row["name"]),
    Column("Created", lambda row: minute(row["created_at"])),
    Column("ID", lambda row: row["id"]),
)


@app.command("create")
@command
def create(
    client: OperatorClient,
    out: Output,
    name: str = Argument(help="Name: letters, digits, `.`, `_` and `-`.", metavar="NAME"),
) -> None:
    """Create an organization. `runyard keys create --org NAME --role admin` then creates its first key."""
    row = client.send("POST", "/v2/organizations", {"name": name})
    advice = f"Its first key: `runyard keys create --org {row['name']} --role admin`."
    out.done(f"Created {row['name']} ({row['id']}). {advice}", row)


@app.command("list")
@command
def list_organizations(client: OperatorClient, out: Output) -> None:
    """List the organizations that the key may act in, oldest first."""
    out.rows(list(client.every("/v2/organizations")), COLUMNS, empty="There are no organizations.")


@app.command("rename")
@command
def rename(
    client: OperatorClient, which: NameOrId, name: str = Argument(help="New name.", metavar="NEW_NAME")
) -> None:
    """Rename an organization. Its id and its keys stay."""
    client.send("PATCH", f"/v2/organizations/{_find(client, which)['id']}", {"name": name})
    typer.echo(f"Renamed to {name}.")


@app.command("delete")
@command
def delete(client: OperatorClient, out: Output, which: NameOrId, yes: Yes = False) -> None:
    """Delete an organization with its deployments, threads, runs and keys, after a confirmation."""
    row = _find(client, which)
    delete_record(
        out,
        row["name"],
        "deployments, threads, runs and keys",
        lambda: client.send("DELETE", f"/v2/organizations/{row['id']}"),
        yes=yes,
        result={"deleted": row["id"]},
    )


def _find(client: OperatorClient, name_or_id: str) -> dict[str, Any]:
    """Return the organization of that name or id. Raises CommandFailed."""
    field = "id" if is_id(name_or_id) else "name"
    value = name_or_id.lower() if field == "id" else name_or_id
    for row in client.every("/v2/organizations"):
        if row[field] == value:
            return row
    raise CommandFailed(
        f"There is no organization {name_or_id!r}. `runyard orgs list` shows those there are."
    )
