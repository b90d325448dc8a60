"""`runyard threads`: list, show and delete threads of a deployment, and list their checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from cli.api.client import Client
from cli.api.ids import is_id, is_part, short, with_part
from cli.api.statuses import run_style
from cli.deployments.deployments import (
    NameOption,
    NameOrPreview,
    Wide,
    id_column,
    name_and,
    one_name,
    show_table,
)
from cli.deployments.served import Limit, echo_json, served
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, Yes, confirm_deletion, new_app, sentences
from cli.output import console, printable, when
from cli.runs.messages import message_of
from cli.runs.transcript import as_text, shortened

app = new_app("List, show and delete threads of a deployment.")

SEARCHED = 1000  # threads that are searched for a part of an id
SHOWN = ["thread_id", "status", "created_at", "updated_at", "metadata"]  # without values, which may be large

ThreadId = Annotated[
    str | None,
    typer.Argument(
        help="Thread: its id or the end of its id. Required.", metavar="THREAD", show_default=False
    ),
]
Status = Literal["idle", "busy", "interrupted", "error"]


def search(
    api: Client, *, limit: int, select: list[str] | None = None, **filters: Any
) -> list[dict[str, Any]]:
    """Return the threads that changed last, newest change first."""
    body = {
        "limit": limit,
        "sort_by": "updated_at",
        "sort_order": "desc",
        "select": select or SHOWN,
        **filters,
    }
    return api.send("POST", "/threads/search", {k: v for k, v in body.items() if v is not None}, repeat=True)


def thread_id_of(api: Client, text: str) -> str:
    """Return the full id of the thread with that id, or that beginning or end of an id.

    A full id is returned without a lookup. Raises CommandFailed if no thread matches, and BadUsage if several do.
    """
    if is_id(text):
        return text
    rows = with_part(search(api, limit=SEARCHED), text, key="thread_id") if is_part(text) else []
    if len(rows) > 1:
        raise BadUsage(f"{len(rows)} threads have an id with {text!r}: give more of it.")
    if not rows:
        raise CommandFailed(f"There is no thread {text!r}. `runyard threads list` shows the newest.")
    return rows[0]["thread_id"]


@contextmanager
def of_thread(
    url: str | None,
    key: str | None,
    org: str | None,
    name: str | None,
    thread: str | None,
    option: str | None,
) -> Iterator[tuple[Client, str]]:
    """Open a client of the deployment's API. Yields it with the thread's id. Raises CommandFailed."""
    name, text = name_and(thread, "THREAD", name=name, option=option)
    with served(url, key, org, name) as api:
        yield api, thread_id_of(api, text)


@app.command("list")
def list_threads(
    name: NameOrPreview = None,
    option: NameOption = None,
    status: Annotated[
        Status | None, typer.Option(help="Only threads of this status.", show_default=False)
    ] = None,
    limit: Limit = 20,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List threads of a deployment, the last changed first."""
    with sentences(as_json=as_json), served(url, api_key, org, one_name(name, option)) as api:
        rows = search(api, limit=limit, status=status)
        if as_json:
            echo_json(rows)
        elif rows:
            show_table(lambda is_wide: _threads(rows, is_wide=is_wide), wide=wide)
        else:
            typer.echo("There are no such threads." if status else "There are no threads.")


def _threads(rows: list[dict[str, Any]], *, is_wide: bool) -> Table:
    table = Table(id_column("Thread"), "Status", "Changed", "Graph", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            row["thread_id"] if is_wide else short(row["thread_id"]),
            Text(row["status"], run_style(row["status"])),
            when(row["updated_at"]),
            Text(printable(str((row.get("metadata") or {}).get("graph_id") or "-"))),
        )
    return table


@app.command("show")
def show(
    name: NameOrPreview = None,
    thread: ThreadId = None,
    option: NameOption = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show a thread: its status, values and open questions."""
    with sentences(as_json=as_json), of_thread(url, api_key, org, name, thread, option) as (api, id):
        found = api.get(f"/threads/{id}")
        if as_json:
            echo_json(found)
            return
        facts = {
            "Thread": found["thread_id"],
            "Status": found["status"],
            "Created": when(found["created_at"]),
            "Changed": when(found["updated_at"]),
            "Metadata": found.get("metadata"),
            "Error": found.get("error"),
            "Waits for": [
                one.get("value") for task in (found.get("interrupts") or {}).values() for one in task
            ],
        }
        print_facts(facts)
        for key, value in (found.get("values") or {}).items():
            print_value(key, value)


@app.command("history")
def history(
    name: NameOrPreview = None,
    thread: ThreadId = None,
    limit: Limit = 10,
    option: NameOption = None,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with sentences(as_json=as_json), of_thread(url, api_key, org, name, thread, option) as (api, id):
        rows = api.send("POST", f"/threads/{id}/history", {"limit": limit}, repeat=True)
        if as_json:
            echo_json(rows)
        elif rows:
            show_table(lambda is_wide: _checkpoints(rows, is_wide=is_wide), wide=wide)
        else:
            typer.echo("The thread has no checkpoint.")


def _checkpoints(rows: list[dict[str, Any]], *, is_wide: bool) -> Table:
    columns = ("Step", "Source", "Created", id_column("Checkpoint"), Column("Next", overflow="fold"))
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        metadata, id = row.get("metadata") or {}, (row.get("checkpoint") or {}).get("checkpoint_id") or "-"
        table.add_row(
            str(metadata.get("step", "-")),
            str(metadata.get("source") or "-"),
            when(row.get("created_at")),
            id if is_wide else short(id),
            Text(printable(", ".join(row.get("next") or []) or "-")),
        )
    return table


@app.command("delete")
def delete(
    name: NameOrPreview = None,
    thread: ThreadId = None,
    yes: Yes = False,
    option: NameOption = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Delete a thread with its state and runs, after a confirmation."""
    with sentences(as_json=as_json), of_thread(url, api_key, org, name, thread, option) as (api, id):
        if not yes:
            confirm_deletion(f"thread {id}", "state and runs", as_json=as_json)
        api.send("DELETE", f"/threads/{id}")
        if as_json:
            echo_json({"thread_id": id, "deleted": True})
        else:
            typer.echo(f"Deleted thread {id}.")


def print_facts(facts: dict[str, Any]) -> None:
    """Print one line for each fact that is not empty."""
    out = console()
    for label, value in facts.items():
        if value not in (None, "", {}, []):
            out.print(Text.assemble((f"{label:<12}", "bold"), printable(shortened(as_text(value)))))


def print_value(key: str, value: Any) -> None:
    """Print a value of a thread's state; a list has one line per item."""
    out = console()
    items = value if isinstance(value, list) else [value]
    out.print(Text(printable(key), "bold cyan"))
    for item in items:
        out.print(Text(f"  {printable(shortened(_readable(item)))}"))


def _readable(item: Any) -> str:
    """Return a message as `role: text`, and any other value as JSON."""
    message = message_of(item) if isinstance(item, dict) else None
    return f"{message.role}: {message.text}" if message and message.text else as_text(item)
