"""`runyard audit`: show who changed what in the organization, when, and from which address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer import Option

from cli.client.client import PAGE, Client
from cli.client.names import is_id
from cli.commands import Service, command
from cli.deployments.logs import as_moment
from cli.deployments.target import NameOrAll, resolve_deployment
from cli.output import Column, Output, as_text, printable, when

LIMIT = 50


@command
def audit(
    service: Service,
    out: Output,
    deployment: NameOrAll = None,
    action: str | None = Option(
        None,
        help="Action such as `traffic.promoted`, or its part before the dot: `key`, `revision`, `secrets`.",
        metavar="ACTION",
    ),
    by: str | None = Option(None, help="Id of the key or person that acted.", metavar="ID"),
    since: str | None = Option(None, help="Time, or an age such as 7d.", metavar="TIME"),
    until: str | None = Option(None, help="Time, or an age such as 1d.", metavar="TIME"),
    limit: int = Option(LIMIT, "--limit", "-n", min=1, help="Entries at most.", metavar="N"),
) -> None:
    """Show the audit log, newest first.

    Addresses and the entries of keys, users and organizations need a key with the role `admin`.
    """
    filters = {
        "action": action,
        "key_id": by,
        "since": since and as_moment(since),
        "until": until and as_moment(until),
    }
    with service.open() as client:
        if deployment is not None:
            is_known = not is_id(deployment)  # a deleted deployment has an id and no name
            filters["deployment_id"] = (
                resolve_deployment(client, deployment)["id"] if is_known else deployment
            )
        sent = {name: value for name, value in filters.items() if value is not None}
        entries = list(_entries(client, limit, sent))
    out.rows(entries, ENTRIES, empty="No entry matches.")


def _entries(client: Client, most: int, filters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield entries page after page. Entries that are added meanwhile do not move those of the next page."""
    for start in range(0, most, PAGE):
        size = min(most - start, PAGE)
        page = client.get("/v2/audit", {**filters, "limit": size})["resources"]
        yield from page
        if len(page) < size:
            return
        filters = {**filters, "before": page[-1]["id"]}


def _actor(entry: dict[str, Any]) -> str:
    return "the service" if entry["actor"] is None else entry["actor"]["name"]


def _detail(entry: dict[str, Any]) -> str:
    return printable(" ".join(f"{name}={as_text(value)}" for name, value in entry["detail"].items()))


ENTRIES = (
    Column("Time", lambda entry: when(entry["at"]), no_wrap=True),
    Column("By", _actor),
    Column("Address", lambda entry: entry["address"]),
    Column("Action", lambda entry: entry["action"], no_wrap=True),
    Column("Subject", lambda entry: entry["subject"]),
    Column("Detail", _detail, folds=True),
)
