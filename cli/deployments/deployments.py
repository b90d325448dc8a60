"""`runyard list`, `status`, `delete`, and the helpers that find the deployment a command names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from cli import completion
from cli.api.addresses import PREVIEW_SIGN, address_in
from cli.api.client import Client
from cli.api.ids import short, version
from cli.api.statuses import status_style
from cli.deployments.project import deployment_name, name_here
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, Yes, confirm_deletion, open_client, sentences
from cli.output import UNLIMITED, console, printable, when

REVISIONS_SHOWN = 5
WIDE = 120  # columns that full ids need

Wide = Annotated[
    bool,
    typer.Option("--wide", "-w", help="Print full ids and more columns. Default on a wide terminal."),
]
NAME_FORMS = "Deployment: its name, its id or the end of its id"
HERE = "Default: the name that `deploy` gives the project of this directory."
Name = Annotated[
    str | None,
    typer.Argument(
        help=f"{NAME_FORMS}. {HERE}",
        metavar="DEPLOYMENT",
        show_default=False,
        autocompletion=completion.deployment_names,
    ),
]
NameOrPreview = Annotated[
    str | None,
    typer.Argument(
        help=f"{NAME_FORMS}; DEPLOYMENT--PREVIEW stands for a preview. {HERE}",
        metavar="DEPLOYMENT",
        show_default=False,
        autocompletion=completion.deployment_names,
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", "-n", hidden=True)]  # for older scripts


def one_name(name: str | None, option: str | None) -> str | None:
    """Return the deployment's name from the argument or the option. Raises BadUsage if both are given."""
    if name and option:
        raise BadUsage("The deployment is given twice: as an argument and by an option.")
    return name or option


def name_and(item: str | None, what: str, *, name: str | None, option: str | None) -> tuple[str | None, str]:
    """Return the deployment's name and the second argument, such as a run id.

    A single argument is the second one. Raises BadUsage if there is none, or if the deployment is given twice.
    """
    if item is None:
        name, item = None, name
    if item is None:
        raise BadUsage(f"{what} is missing.")
    return one_name(name, option), item


def chosen(client: Client, name_or_id: str | None) -> dict[str, Any]:
    """Return the deployment with that name or id, or with the name that `deploy` derives from this text.

    Without a name, return the deployment of the current directory. Raises CommandFailed if there is none.
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


def chosen_with_preview(
    client: Client, name_or_id: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the deployment and, if the name has the form `NAME--PREVIEW`, its preview.

    A deployment whose own name has that form takes precedence, as in the service's addresses. Raises CommandFailed.
    """
    previewed, sign, preview = (name_or_id or "").rpartition(PREVIEW_SIGN)
    if not (previewed and sign and preview) or client.find(str(name_or_id)):
        return chosen(client, name_or_id), None
    found = chosen(client, previewed)
    return found, preview_of(client, found, preview)


def preview_of(client: Client, found: dict[str, Any], preview: str) -> dict[str, Any]:
    """Return the preview of that name. Raises CommandFailed."""
    for row in client.previews(found["id"]):
        if row["name"] == preview:
            return row
    raise CommandFailed(
        f"{found['name']} has no preview {preview!r}. `runyard previews {found['name']}` lists those there are."
    )


def existing(client: Client, name: str) -> dict[str, Any] | None:
    """Return the deployment of that name, or of the name that `deploy --name` derives from it, or None."""
    return client.find(name) or client.find(deployment_name(name))


def list_deployments(
    name_contains: Annotated[
        str, typer.Option(help="Only deployments whose name contains this text.", metavar="TEXT")
    ] = "",
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List deployments, newest first."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        rows = list(client.deployments(name_contains=name_contains))
        if as_json:
            typer.echo(json.dumps([summary(row) for row in rows], indent=2))
            return
        if not rows:
            typer.echo("There are no deployments. `runyard deploy DIRECTORY` makes one.")
            return
        show_table(lambda is_wide: _deployment_table(rows, is_wide=is_wide), wide=wide)


def show_table(make: Callable[[bool], Table], *, wide: bool) -> None:
    """Print a table with full ids if the terminal is wide enough or `wide` is set.

    `wide` also lets lines exceed the terminal's width. `make` takes whether the ids are full.
    """
    out = console(width=UNLIMITED if wide else None)
    out.print(make(out.width >= WIDE))


def id_column(header: str = "ID") -> Column:
    """Return a column that is never folded, so that its ids can be copied."""
    return Column(header, no_wrap=True)


def _deployment_table(rows: list[dict[str, Any]], *, is_wide: bool) -> Table:
    more = ("Type", "Pool") if is_wide else ()
    columns = (Column("Name", overflow="fold"), "Status", id_column(), Column("Address", overflow="fold"))
    table = Table(*columns, *more, box=None, pad_edge=False)
    for row in rows:
        cells = [row["name"], _state(row), row["id"] if is_wide else short(row["id"]), address_in(row)]
        if is_wide:
            cells += [(row.get("source_config") or {}).get("deployment_type"), row.get("pool")]
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell or "-")) for cell in cells))
    return table


def status(
    name: Name = None,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show the status of a deployment: address, limits, traffic and newest revisions."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        found = chosen(client, name)
        rows = list(client.revisions(found["id"], limit=REVISIONS_SHOWN))
        if as_json:
            typer.echo(json.dumps({**summary(found), "deployment": found, "revisions": rows}, indent=2))
            return
        out = console()
        for label, value in _facts(found):
            out.print(Text.assemble((f"{label:<12}", "bold"), value))
        out.print()
        show_revisions(client, found, rows, wide=wide)


def _facts(found: dict[str, Any]) -> list[tuple[str, Text]]:
    config = found.get("source_config") or {}
    limits = {name: value for name, value in (found.get("limits") or {}).items() if value is not None}
    facts = {
        "Deployment": f"{found['name']} ({found['id']})",
        "Status": _state(found),
        "Address": address_in(found),
        "Type": config.get("deployment_type"),
        "Source": config.get("repo_url"),
        "Traffic": _split(found),
        "Pool": found.get("pool"),
        "Limits": ", ".join(f"{name} {value}" for name, value in limits.items()),
        "Secrets": ", ".join(secret["name"] for secret in found.get("secrets") or []),
        "Changed": when(found.get("updated_at")),
    }
    return [
        (label, value if isinstance(value, Text) else Text(printable(str(value))))
        for label, value in facts.items()
        if value
    ]


def _split(found: dict[str, Any]) -> str | None:
    """Return `v3 90 %, v4 10 %` if several revisions get new runs, else None."""
    shares = found.get("traffic") or []
    in_words = ", ".join(f"{version(share['revision_number'])} {share['percent']} %" for share in shares)
    return in_words if len(shares) > 1 else None


def _state(row: dict[str, Any]) -> Text:
    """Return the serving revision and the newest revision's status as text.

    The deployment's own status is shown only if it is exceptional: READY does not say whether a revision serves.
    """
    if row.get("status") not in (None, "READY", "AWAITING_DATABASE", "UNUSED"):
        return Text(str(row["status"]), "yellow")
    newest = Text(row.get("latest_revision_status") or "not serving yet")
    newest.stylize(status_style(newest.plain))
    newest = Text.assemble(version(row.get("latest_revision_number")), " ", newest)
    if not row.get("active_revision_id"):
        return newest
    serving = Text(f"serving {version(row.get('active_revision_number'))}", "green")
    is_newest = row.get("latest_revision_id") == row["active_revision_id"]
    return serving if is_newest else Text.assemble(serving, ", ", newest)


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a deployment that `--json` prints."""
    return {
        "id": row["id"],
        "name": row["name"],
        "url": address_in(row),
        "status": row.get("status"),
        "latest_revision_id": row.get("latest_revision_id"),
        "latest_revision_number": row.get("latest_revision_number"),
        "latest_revision_status": row.get("latest_revision_status"),
        "active_revision_id": row.get("active_revision_id"),
        "active_revision_number": row.get("active_revision_number"),
    }


def show_revisions(client: Client, found: dict[str, Any], rows: list[dict[str, Any]], *, wide: bool) -> None:
    """Print a table of a deployment's revisions, with the serving one and those of its previews marked."""
    has_previews = any(row.get("preview") for row in rows)
    previews = client.previews(found["id"]) if has_previews else []
    previewed = {row.get(name) for row in previews for name in ("revision_id", "latest_revision_id")}
    active_id = found.get("active_revision_id")
    show_table(lambda is_wide: _revision_table(rows, active_id, previewed, is_wide=is_wide), wide=wide)


def _revision_table(
    rows: list[dict[str, Any]], active_id: str | None, previewed: set[str | None], *, is_wide: bool
) -> Table:
    """Return a table of revisions. `previewed` has the ids of revisions that existing previews show or will show."""
    columns = ("Revision", "Status", "Created", id_column(), Column(overflow="fold"))
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        is_active = row["id"] == active_id
        about = f"preview {row['preview']}" if row.get("preview") else ""
        if about and row["id"] not in previewed:
            about = f"was {about}"
        note = "serves now" if is_active else (row.get("status_message") or about).partition("\n")[0]
        table.add_row(
            version(row.get("number")),
            Text(row["status"], status_style(row["status"])),
            when(row["created_at"]),
            row["id"] if is_wide else short(row["id"]),
            Text(printable(note), "bold" if is_active else "dim"),
        )
    return table


def delete(
    name: Annotated[
        str,
        typer.Argument(
            help=f"{NAME_FORMS}.", metavar="DEPLOYMENT", autocompletion=completion.deployment_names
        ),
    ],
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if there is no deployment of this name.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Delete a deployment with its threads, runs and logs, after a confirmation."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        # With --if-exists, a missing name must not match the end of another deployment's id.
        found = existing(client, name) if if_exists else client.require(name)
        if found is None:
            missing = {"id": None, "name": name, "deleted": False}
            typer.echo(json.dumps(missing) if as_json else f"There is no deployment {name}.")
            return
        label = f"{found['name']} ({found['id']})"
        if not yes:
            confirm_deletion(label, "threads, runs and logs", as_json=as_json)
        client.delete(found["id"])
        if as_json:
            typer.echo(json.dumps({"id": found["id"], "name": found["name"], "deleted": True}))
        else:
            typer.echo(f"Deleted {label}.")
