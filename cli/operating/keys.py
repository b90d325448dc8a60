"""`runyard keys`: create, list, change and revoke API keys of an organization."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.api.access import KEY_PREFIX, find_key, find_tenant, find_url, is_local
from cli.errors import BadUsage, CommandFailed
from cli.options import (
    Json,
    Key,
    Org,
    Url,
    has_server,
    new_app,
    open_client,
    require_server,
    sentences,
    settings,
)
from cli.output import console, printable

ROLES = {
    "read": "read",
    "run": "read and use deployments",
    "deploy": "also change deployments",
    "admin": "also manage keys",
    "operator": "also manage organizations and workers",
}
RIGHTS = ", ".join(f"{role} ({rights})" for role, rights in ROLES.items())
LIMITS = ("max_concurrent_runs", "max_tokens_per_day", "max_run_tokens")
DEFAULT_ORGANIZATION = "default"

app = new_app("Create, list, change and revoke API keys.")

KeyId = Annotated[str, typer.Argument(help="Id of the key, or the key itself.", metavar="ID")]


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Name of the key.", metavar="TEXT")] = "cli",
    role: Annotated[
        str,
        typer.Option(
            help=f"Role: {RIGHTS}.",
            metavar="ROLE",
        ),
    ] = "run",
    days: Annotated[
        int | None,
        typer.Option(
            min=1, max=3650, help="Days until the key expires. Default: it does not expire.", metavar="N"
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Create it in the database of the service on this machine, without the API. Default if there is no key,"
            " unless --url or RUNYARD_URL names another machine.",
        ),
    ] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Create an API key and print it. It cannot be shown again. The role is printed on stderr."""
    with sentences(as_json=as_json):
        _check_role(role)
        if local or (has_server() and not url and _is_local_without_key(api_key)):
            key = _create_locally(name, role, days, find_tenant(org) or DEFAULT_ORGANIZATION)
            made = {"id": id_of(key), "name": name, "role": role, "key": key}
        else:
            with open_client(url, api_key, org) as client:
                body = {"name": name, "role": role, "lifetime_days": days}
                made = client.send("POST", "/v2/keys", body)
        if as_json:
            typer.echo(json.dumps(made, indent=2))
            return
        typer.echo(
            f"Created the key {made['id']} ({made['name']}) with the role {made['role']}: it may {ROLES[role]}."
            " It is shown once.",
            err=True,
        )
        typer.echo(made["key"])


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise BadUsage(f"There is no role {role!r}: choose one of {', '.join(ROLES)}.")


def _is_local_without_key(api_key: str | None) -> bool:
    """Return whether there is no key to send and the service's address leads to this machine."""
    own = settings()
    address = find_url(None, own)
    try:
        find_key(api_key, own, url=address)
    except CommandFailed:
        return is_local(address, own)
    return False


def _create_locally(name: str, role: str, days: int | None, organization: str) -> str:
    require_server("runyard keys create --local")
    from cli.machine import local  # imports the whole database layer, which few commands need

    lifetime = None if days is None else timedelta(days=days)
    return local.create_key(settings(), name=name, role=role, organization=organization, lifetime=lifetime)


@app.command("list")
def list_keys(as_json: Json = False, url: Url = None, api_key: Key = None, org: Org = None) -> None:
    """List the API keys of the organization, newest first, without their secrets."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        rows = list(client.every("/v2/keys"))
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
            return
        if not rows:
            typer.echo("There are no API keys. `runyard keys create` makes one.")
            return
        table = Table("ID", "Name", "Role", "State", "Created", "Last used", box=None, pad_edge=False)
        for row in rows:
            cells = (
                row["id"],
                row["name"],
                row["role"],
                state(row),
                day(row["created_at"]),
                day(row["last_used_at"]),
            )
            table.add_row(*(printable(str(cell)) for cell in cells))
        console().print(table)


@app.command("update")
def update(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="New name.", metavar="TEXT", show_default=False)] = None,
    role: Annotated[str | None, typer.Option(help=f"New role: {RIGHTS}.", metavar="ROLE")] = None,
    days: Annotated[
        int | None,
        typer.Option(
            min=0, max=3650, help="Days from now until the key expires; 0: it does not expire.", metavar="N"
        ),
    ] = None,
    max_concurrent_runs: Annotated[
        int | None,
        typer.Option(min=0, help="Runs at the same time, over all deployments; 0: no limit.", metavar="N"),
    ] = None,
    max_tokens_per_day: Annotated[
        int | None,
        typer.Option(min=0, help="Tokens of all its runs in a day (UTC); 0: no limit.", metavar="N"),
    ] = None,
    max_run_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens of one run; 0: no limit.", metavar="N")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Change the name, the role, the expiry or the limits of an API key.

    Options that are not given leave the key as it is. Role and expiry take effect within seconds. A key cannot change its
    own role or expiry.
    """
    with sentences(as_json=as_json):
        if role is not None:
            _check_role(role)
        body = {
            "name": name,
            "role": role,
            "lifetime_days": days,
            "max_concurrent_runs": max_concurrent_runs,
            "max_tokens_per_day": max_tokens_per_day,
            "max_run_tokens": max_run_tokens,
        }
        body = {field: value for field, value in body.items() if value is not None}
        if not body:
            raise BadUsage("Nothing to change: give --name, --role, --days or a limit.")
        with open_client(url, api_key, org) as client:
            row = client.send("PATCH", f"/v2/keys/{id_of(key_id)}", body)
        if as_json:
            typer.echo(json.dumps(row, indent=2))
            return
        limits = [f"{limit} {row[limit]}" for limit in LIMITS if row[limit]]
        facts = ", ".join([f"role {row['role']}", state(row), *limits])
        typer.echo(printable(f"Key {row['id']} ({row['name']}): {facts}."))


@app.command("rename", hidden=True)  # for older scripts
def rename(
    key_id: KeyId,
    name: Annotated[str, typer.Argument(help="New name.", metavar="NAME")],
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Rename an API key."""
    with sentences(), open_client(url, api_key, org) as client:
        client.send("PATCH", f"/v2/keys/{id_of(key_id)}", {"name": name})
        typer.echo(f"Key {id_of(key_id)} is now called {name}.")


@app.command("revoke")
def revoke(
    key_id: KeyId,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Revoke an API key. The service refuses it within seconds; this cannot be undone."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        client.send("DELETE", f"/v2/keys/{id_of(key_id)}")
        typer.echo(json.dumps({"revoked": id_of(key_id)}) if as_json else f"Revoked {id_of(key_id)}.")


def id_of(text: str) -> str:
    """Return the id of a key from its id or the whole key, whose secret must not become part of a URL.

    Raises BadUsage.
    """
    parts = text.split("_", 2)
    id = parts[1] if len(parts) == 3 and text.startswith(KEY_PREFIX) else text
    if not id.isascii() or not id.isalnum():
        raise BadUsage(f"{printable(text)} is no key's id. `runyard keys list` shows the ids.")
    return id


def state(row: dict[str, Any]) -> str:
    """Return a key's state as text: `valid`, `valid until TIME`, `expired TIME` or `revoked TIME`."""
    if row["revoked_at"]:
        return f"revoked {day(row['revoked_at'])}"
    if not row["expires_at"]:
        return "valid"
    has_ended = datetime.fromisoformat(row["expires_at"]) <= datetime.now(UTC)
    return f"{'expired' if has_ended else 'valid until'} {day(row['expires_at'])}"


def day(time: str | None) -> str:
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M") if time else "never"
