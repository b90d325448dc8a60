"""`runyard list`, `status`, `limits`, `open` and `delete`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from cli.client.access import find_address
from cli.client.client import Client
from cli.client.names import address_in, revision_style, version
from cli.commands import Service, Yes, command, delete_record, settings
from cli.deployments.deploy import Limits
from cli.deployments.revisions import show_revisions
from cli.deployments.target import (
    Name,
    NameOrConsole,
    RequiredName,
    Wide,
    find_by_name,
    one_name,
    resolve_deployment,
)
from cli.output import Column, Output, Row, console, id_column, plain, printable, when

REVISIONS_SHOWN = 5
# Statuses that do not say whether a revision serves.
ORDINARY = (None, "READY", "AWAITING_DATABASE", "UNUSED")


@command
def list_deployments(
    client: Client,
    out: Output,
    name_contains: str = Option("", help="Only deployments whose name contains this text.", metavar="TEXT"),
    wide: Wide = False,
) -> None:
    """List deployments, newest first."""
    rows = list(client.deployments(name_contains=name_contains))
    empty = "There are no deployments. `runyard deploy DIRECTORY` makes one."
    out.rows(rows, COLUMNS, empty=empty, data=[summary(row) for row in rows], wide=wide)


@command
def status(client: Client, out: Output, name: Name = None, wide: Wide = False) -> None:
    """Show the status of a deployment: address, limits, traffic and newest revisions."""
    deployment = resolve_deployment(client, name)
    rows = list(client.revisions(deployment["id"], limit=REVISIONS_SHOWN))
    out.record({**summary(deployment), "deployment": deployment, "revisions": rows}, _facts(deployment))
    if not out.as_json:
        console().print()
        show_revisions(client, deployment, rows, wide=wide)


@command
def limits(
    limits: Limits,
    client: Client,
    out: Output,
    name: Name = None,
    require_replay: bool | None = Option(
        None,
        "--require-replay/--no-require-replay",
        help="Give traffic only to revisions that have served or whose newest judged replay passed; refuse deploys"
        " without a preview.",
    ),
) -> None:
    """Show the pool, the limits and the required replay of a deployment, or change them without a deploy.

    No revision is created. A change applies to runs that start after it; budgets also apply to running runs.
    `0` removes a limit.
    """
    deployment = resolve_deployment(client, name)
    body = limits.body() | ({} if require_replay is None else {"require_replay": require_replay})
    if body:
        deployment = client.change(deployment["id"], body)
    values = {
        "pool": deployment.get("pool"),
        **(deployment.get("limits") or {}),
        "require_replay": deployment.get("require_replay"),
    }

    def draw() -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for label, value in values.items():
            table.add_row(label, Text(printable("-" if value is None else plain(value))))
        return table

    out.show({"id": deployment["id"], "name": deployment["name"], **values}, draw)


@command
def open_console(
    service: Service,
    out: Output,
    name: NameOrConsole = None,
    option: str | None = Option(None, "--deployment", hidden=True),  # for older scripts
    print_only: bool = Option(False, "--print", help="Print the address without opening a browser."),
) -> None:
    """Open the console, or a deployment's page in it, in a browser.

    The command prints the address. Without a display it opens no browser. The console asks for an API key, but not under
    `runyard dev`.
    """
    name = one_name(name, option)
    if name is None:
        result = {"url": f"{find_address(service.url, settings()).url}/"}
    else:
        with service.open() as client:
            record = resolve_deployment(client, name)
            page = f"{client.url}/o/{record['tenant_id']}/host/deployments/{record['id']}"
            result = {"name": record["name"], "url": page}
    if out.as_json:
        out.json(result)
        return
    typer.echo(result["url"])
    if not print_only and sys.stdout.isatty() and has_screen(os.environ):
        webbrowser.open(result["url"])


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether the user would see a browser. Returns False in CI, through SSH, and without a display."""
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    return platform in ("darwin", "win32") or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


@command
def delete(
    client: Client,
    out: Output,
    name: RequiredName,
    yes: Yes = False,
    if_exists: bool = Option(False, "--if-exists", help="Succeed if there is no deployment of this name."),
) -> None:
    """Delete a deployment with its threads, runs and logs, after a confirmation."""
    # With --if-exists, a missing name must not match the end of another deployment's id.
    row = find_by_name(client, name) if if_exists else client.require(name)
    if row is None:
        out.done(f"There is no deployment {name}.", {"id": None, "name": name, "deleted": False})
        return
    delete_record(
        out,
        f"{row['name']} ({row['id']})",
        "threads, runs and logs",
        lambda: client.delete(row["id"]),
        yes=yes,
        result={"id": row["id"], "name": row["name"], "deleted": True},
    )


def _facts(row: Row) -> dict[str, Any]:
    config = row.get("source_config") or {}
    limits = {name: value for name, value in (row.get("limits") or {}).items() if value is not None}
    secrets = printable(", ".join(secret["name"] for secret in row.get("secrets") or []))
    is_split = len(row.get("traffic") or []) > 1
    return {
        "Deployment": f"{row['name']} ({row['id']})",
        "Status": _state(row),
        "Address": address_in(row),
        "Type": config.get("deployment_type"),
        "Source": config.get("repo_url"),
        "Traffic": traffic_text(row) if is_split else None,
        "Pool": row.get("pool"),
        "Limits": ", ".join(f"{name} {plain(value)}" for name, value in limits.items()),
        "Used today": _used_today(row.get("used_today") or {}),
        "Secrets": Text(secrets) if secrets else None,  # a Text is not shortened
        "Changed": when(row.get("updated_at")),
    }


def _used_today(used: Mapping[str, Any]) -> str | None:
    """Return what a deployment with a budget of the day has used; None without one."""
    if used.get("tokens") is None:
        return None
    unpriced = printable(", ".join(used["unpriced_models"]))
    without = f", without {unpriced}, which has no price" if unpriced else ""
    return f"{used['tokens']:,} tokens, ${used['cost']:,.2f}{without}"


def traffic_text(row: Row) -> str:
    """Return the traffic as `v3 90 %, v4 10 %`; empty if no revision serves."""
    shares = row.get("traffic") or []
    return ", ".join(f"{version(share['revision_number'])} {share['percent']} %" for share in shares)


def _state(row: Row) -> Text:
    """Return the serving revision and the newest revision's status as text.

    The deployment's own status is shown only if it is exceptional: READY does not say whether a revision serves.
    """
    if row.get("status") not in ORDINARY:
        return Text(str(row["status"]), "yellow")
    newest = row.get("latest_revision_status") or "not serving yet"
    newest = Text.assemble(version(row.get("latest_revision_number")), " ", (newest, revision_style(newest)))
    if not row.get("active_revision_id"):
        return newest
    serving = Text(f"serving {version(row.get('active_revision_number'))}", "green")
    is_newest = row.get("latest_revision_id") == row["active_revision_id"]
    return serving if is_newest else Text.assemble(serving, ", ", newest)


COLUMNS = (
    Column("Name", lambda row: row["name"], folds=True),
    Column("Status", _state),
    id_column(),
    Column("Address", address_in, folds=True),
    Column("Type", lambda row: (row.get("source_config") or {}).get("deployment_type"), only_wide=True),
    Column("Pool", lambda row: row.get("pool"), only_wide=True),
)


def summary(row: Row) -> dict[str, Any]:
    """Return the fields of a deployment that `--json` prints."""
    fields = ("latest_revision_id", "latest_revision_number", "latest_revision_status")
    fields += ("active_revision_id", "active_revision_number")
    return {
        "id": row["id"],
        "name": row["name"],
        "url": address_in(row),
        "status": row.get("status"),
        **{name: row.get(name) for name in fields},
    }
