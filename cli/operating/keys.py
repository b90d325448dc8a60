"""`runyard keys` and `runyard orgs`: API keys of an organization, and the organizations of an installation."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer
from typer import Argument, Option

from cli import has_server
from cli.client.access import KEY_PREFIX, find_address, find_key, find_tenant, is_local
from cli.client.client import Client
from cli.client.names import is_id
from cli.commands import (
    OperatorClient,
    Service,
    Yes,
    command,
    delete_record,
    new_app,
    require_server,
    settings,
)
from cli.errors import BadUsage, CommandFailed
from cli.output import Column, Output, minute, plain, printable, validity

ROLES = {
    "read": "read",
    "run": "read and use deployments",
    "deploy": "also change deployments",
    "admin": "also manage keys",
    "operator": "also manage organizations and workers",
}
RIGHTS = ", ".join(f"{role} ({rights})" for role, rights in ROLES.items())
LIMITS = (
    "max_concurrent_runs", "max_tokens_per_day", "max_run_tokens", "max_cost_per_day", "max_run_cost", "budget_webhook",
)  # fmt: skip
DEFAULT_ORGANIZATION = "default"

keys_app = new_app("Create, list, change and revoke API keys.")
orgs_app = new_app("Create, list, rename and delete organizations. Needs an operator's key.")

KeyId = Annotated[str, typer.Argument(help="Id of the key, or the key itself.", metavar="ID")]
Organization = Annotated[str, typer.Argument(help="Organization: its name or id.", metavar="NAME|ID")]


@keys_app.command("create")
@command
def create(
    service: Service,
    out: Output,
    name: str = Option("cli", help="Name of the key.", metavar="TEXT"),
    role: str = Option("run", help=f"Role: {RIGHTS}.", metavar="ROLE"),
    days: int | None = Option(
        None, min=1, max=3650, help="Days until the key expires. Default: it does not expire.", metavar="N"
    ),
    local: bool = Option(
        False,
        "--local",
        help="Create it in the database of the service on this machine, without the API. Default if there is no key,"
        " unless --url or RUNYARD_URL names another machine.",
    ),
) -> None:
    """Create an API key and print it. It cannot be shown again. The role is printed on stderr."""
    _check_role(role)
    if local or (has_server() and not service.url and _is_local_without_key(service.api_key)):
        key = _create_locally(name, role, days, find_tenant(service.org) or DEFAULT_ORGANIZATION)
        created = {"id": id_of(key), "name": name, "role": role, "key": key}
    else:
        with service.open() as client:
            created = client.send("POST", "/v2/keys", {"name": name, "role": role, "lifetime_days": days})
    if out.as_json:
        out.json(created)
        return
    typer.echo(
        f"Created the key {created['id']} ({created['name']}) with the role {created['role']}: it may {ROLES[role]}."
        " It is shown once.",
        err=True,
    )
    typer.echo(created["key"])


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise BadUsage(f"There is no role {role!r}: choose one of {', '.join(ROLES)}.")


def _is_local_without_key(api_key: str | None) -> bool:
    """Return whether there is no key to send and the service's address leads to this machine."""
    environment = settings()
    address = find_address(None, environment).url
    try:
        find_key(api_key, environment, url=address)
    except CommandFailed:
        return is_local(address, environment)
    return False


def _create_locally(name: str, role: str, days: int | None, organization: str) -> str:
    require_server("runyard keys create --local")
    from cli.machine import local  # imports the whole database layer, which few commands need

    lifetime = None if days is None else timedelta(days=days)
    return local.create_key(settings(), name=name, role=role, organization=organization, lifetime=lifetime)


@keys_app.command("list")
@command
def list_keys(client: Client, out: Output) -> None:
    """List the API keys of the organization, newest first, without their secrets."""
    empty = "There are no API keys. `runyard keys create` makes one."
    out.rows(list(client.every("/v2/keys")), KEYS, empty=empty)


@keys_app.command("update")
@command
def update(
    service: Service,
    out: Output,
    key_id: KeyId,
    name: str | None = Option(None, help="New name.", metavar="TEXT"),
    role: str | None = Option(None, help=f"New role: {RIGHTS}.", metavar="ROLE"),
    days: int | None = Option(
        None, min=0, max=3650, help="Days from now until the key expires; 0: it does not expire.", metavar="N"
    ),
    max_concurrent_runs: int | None = Option(
        None, min=0, help="Runs at the same time, over all deployments; 0: no limit.", metavar="N"
    ),
    max_tokens_per_day: int | None = Option(
        None, min=0, help="Tokens of all its runs in a day (UTC); 0: no limit.", metavar="N"
    ),
    max_run_tokens: int | None = Option(None, min=0, help="Tokens of one run; 0: no limit.", metavar="N"),
    max_cost_per_day: float | None = Option(
        None, min=0, help="Cost of all its runs in a day (UTC), in US dollars; 0: no limit.", metavar="USD"
    ),
    max_run_cost: float | None = Option(
        None, min=0, help="Cost of one run, in US dollars; 0: no limit.", metavar="USD"
    ),
    budget_webhook: str | None = Option(
        None,
        help="URL to call at 50, 80 and 100 % of each limit of a day; an empty text: none.",
        metavar="URL",
    ),
) -> None:
    """Change the name, the role, the expiry or the limits of an API key.

    Options that are not given leave the key as it is. Role and expiry take effect within seconds. A key cannot change its
    own role or expiry.
    """
    if role is not None:
        _check_role(role)
    body = {
        "name": name,
        "role": role,
        "lifetime_days": days,
        "max_concurrent_runs": max_concurrent_runs,
        "max_tokens_per_day": max_tokens_per_day,
        "max_run_tokens": max_run_tokens,
        "max_cost_per_day": max_cost_per_day,
        "max_run_cost": max_run_cost,
        "budget_webhook": budget_webhook,
    }
    body = {field: value for field, value in body.items() if value is not None}
    if not body:
        raise BadUsage("Nothing to change: give --name, --role, --days or a limit.")
    with service.open() as client:
        row = client.send("PATCH", f"/v2/keys/{id_of(key_id)}", body)
    if out.as_json:
        out.json(row)
        return
    limits = [f"{limit} {plain(row[limit])}" for limit in LIMITS if row.get(limit)]
    facts = ", ".join([f"role {row['role']}", validity(row), *limits])
    typer.echo(printable(f"Key {row['id']} ({row['name']}): {facts}."))


@keys_app.command("rename", hidden=True)  # for older scripts
@command
def rename(client: Client, key_id: KeyId, name: str = Argument(help="New name.", metavar="NAME")) -> None:
    """Rename an API key."""
    client.send("PATCH", f"/v2/keys/{id_of(key_id)}", {"name": name})
    typer.echo(f"Key {id_of(key_id)} is now called {name}.")


@keys_app.command("revoke")
@command
def revoke(client: Client, out: Output, key_id: KeyId) -> None:
    """Revoke an API key. The service refuses it within seconds; this cannot be undone."""
    client.send("DELETE", f"/v2/keys/{id_of(key_id)}")
    out.done(f"Revoked {id_of(key_id)}.", {"revoked": id_of(key_id)})


def id_of(text: str) -> str:
    """Return the id of a key from its id or the whole key, whose secret must not become part of a URL.

    Raises BadUsage.
    """
    parts = text.split("_", 2)
    id = parts[1] if len(parts) == 3 and text.startswith(KEY_PREFIX) else text
    if not id.isascii() or not id.isalnum():
        raise BadUsage(f"{printable(text)} is no key's id. `runyard keys list` shows the ids.")
    return id


KEYS = (
    Column("ID", lambda row: row["id"]),
    Column("Name", lambda row: row["name"]),
    Column("Role", lambda row: row["role"]),
    Column("State", validity),
    Column("Created", lambda row: minute(row["created_at"])),
    Column("Last used", lambda row: minute(row["last_used_at"])),
)


# Organizations


ORGANIZATIONS = (
    Column("Name", lambda row: row["name"]),
    Column("Created", lambda row: minute(row["created_at"])),
    Column("ID", lambda row: row["id"]),
)


@orgs_app.command("create")
@command
def create_organization(
    client: OperatorClient,
    out: Output,
    name: str = Argument(help="Name: letters, digits, `.`, `_` and `-`.", metavar="NAME"),
) -> None:
    """Create an organization. `runyard keys create --org NAME --role admin` then creates its first key."""
    row = client.send("POST", "/v2/organizations", {"name": name})
    advice = f"Its first key: `runyard keys create --org {row['name']} --role admin`."
    out.done(f"Created {row['name']} ({row['id']}). {advice}", row)


@orgs_app.command("list")
@command
def list_organizations(client: OperatorClient, out: Output) -> None:
    """List the organizations that the key may act in, oldest first."""
    out.rows(list(client.every("/v2/organizations")), ORGANIZATIONS, empty="There are no organizations.")


@orgs_app.command("rename")
@command
def rename_organization(
    client: OperatorClient, which: Organization, name: str = Argument(help="New name.", metavar="NEW_NAME")
) -> None:
    """Rename an organization. Its id and its keys stay."""
    client.send("PATCH", f"/v2/organizations/{_find_organization(client, which)['id']}", {"name": name})
    typer.echo(f"Renamed to {name}.")


@orgs_app.command("delete")
@command
def delete_organization(client: OperatorClient, out: Output, which: Organization, yes: Yes = False) -> None:
    """Delete an organization with its deployments, threads, runs and keys, after a confirmation."""
    row = _find_organization(client, which)
    delete_record(
        out,
        row["name"],
        "deployments, threads, runs and keys",
        lambda: client.send("DELETE", f"/v2/organizations/{row['id']}"),
        yes=yes,
        result={"deleted": row["id"]},
    )


def _find_organization(client: OperatorClient, name_or_id: str) -> dict[str, Any]:
    """Return the organization of that name or id. Raises CommandFailed."""
    field = "id" if is_id(name_or_id) else "name"
    value = name_or_id.lower() if field == "id" else name_or_id
    for row in client.every("/v2/organizations"):
        if row[field] == value:
            return row
    raise CommandFailed(
        f"There is no organization {name_or_id!r}. `runyard orgs list` shows those there are."
    )
