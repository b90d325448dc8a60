"""`runyard threads`: list, show and delete threads of a deployment, and list their checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import is_id, is_part, only_match, run_style, with_part
from cli.commands import Yes, command, delete_record, new_app
from cli.deployments.target import Limit, Target, Wide
from cli.output import Column, Output, as_text, console, id_column, printable, shortened, when
from cli.runs.transcript import message_of

app = new_app("List, show and delete threads of a deployment.")

SEARCHED = 1000  # threads that are searched for a part of an id
# Fields of a search, without the values, which may be large.
SELECTED = ["thread_id", "status", "created_at", "updated_at", "metadata"]
EXTRACTED = {"title": "title"}

ThreadId = Annotated[
    str | None, typer.Argument(help="Thread: its id or the end of its id. Required.", metavar="THREAD")
]


@app.command("list")
@command
def list_threads(
    target: Target,
    out: Output,
    status: Literal["idle", "busy", "interrupted", "error"] | None = Option(
        None, help="Only threads of this status."
    ),
    limit: Limit = 20,
    wide: Wide = False,
) -> None:
    """List threads of a deployment, the last changed first."""
    with target.api() as api:
        rows = _search(api, limit=limit, status=status)
    empty = "There are no such threads." if status else "There are no threads."
    out.rows(rows, THREADS, empty=empty, wide=wide)


@app.command("show")
@command
def show(target: Target, out: Output, thread: ThreadId = None) -> None:
    """Show a thread: its status, values and open questions."""
    with target.api_and_item(thread, "THREAD") as (api, text):
        row = api.get(f"/threads/{find_thread_id(api, text)}", {"include": "title"})
    interrupts = (row.get("interrupts") or {}).values()
    facts = {
        "Thread": row["thread_id"],
        "Title": _title(row),
        "Status": row["status"],
        "Created": when(row["created_at"]),
        "Changed": when(row["updated_at"]),
        "Metadata": row.get("metadata"),
        "Error": row.get("error"),
        "Waits for": [interrupt.get("value") for task in interrupts for interrupt in task],
    }
    out.record(row, facts)
    if not out.as_json:
        for key, value in (row.get("values") or {}).items():
            _print_value(key, value)


@app.command("history")
@command
def history(
    target: Target, out: Output, thread: ThreadId = None, limit: Limit = 10, wide: Wide = False
) -> None:
    """List the checkpoints of a thread, newest first."""
    with target.api_and_item(thread, "THREAD") as (api, text):
        path = f"/threads/{find_thread_id(api, text)}/history"
        rows = api.send("POST", path, {"limit": limit}, repeat=True)
    out.rows(rows, CHECKPOINTS, empty="The thread has no checkpoint.", wide=wide)


@app.command("delete")
@command
def delete(target: Target, out: Output, thread: ThreadId = None, yes: Yes = False) -> None:
    """Delete a thread with its state and runs, after a confirmation."""
    with target.api_and_item(thread, "THREAD") as (api, text):
        id = find_thread_id(api, text)
        delete_record(
            out,
            f"thread {id}",
            "state and runs",
            lambda: api.send("DELETE", f"/threads/{id}"),
            yes=yes,
            result={"thread_id": id, "deleted": True},
        )


def find_thread_id(api: Client, text: str) -> str:
    """Return the full id of the thread with that id, or that beginning or end of an id.

    A full id is returned without a lookup. Raises CommandFailed if no thread matches, and BadUsage if several do.
    """
    if is_id(text):
        return text
    rows = with_part(_search(api, limit=SEARCHED), text, key="thread_id") if is_part(text) else []
    missing = f"There is no thread {text!r}. `runyard threads list` shows the newest."
    return only_match(rows, text, "threads", missing, key="thread_id", label=_title)["thread_id"]


def _search(api: Client, *, limit: int, status: str | None = None) -> list[dict[str, Any]]:
    """Return the threads that changed last, newest change first."""
    body = {"limit": limit, "sort_by": "updated_at", "sort_order": "desc", "select": SELECTED}
    body |= {"extract": EXTRACTED} | ({"status": status} if status else {})
    rows = api.send("POST", "/threads/search", body, repeat=True)
    return [{**row, "title": _title(row)} for row in rows]


def _title(row: dict[str, Any]) -> str:
    """Return a thread's title on one line; empty if it has none. Lists and single threads have it in different fields."""
    title = row.get("title") or (row.get("extracted") or {}).get("title") or ""
    return printable(" ".join(title.split()))


THREADS = (
    id_column("Thread", "thread_id"),
    Column("Title", lambda row: _title(row) or None, folds=True),
    Column("Status", lambda row: Text(row["status"], run_style(row["status"]))),
    Column("Changed", lambda row: when(row["updated_at"])),
    Column("Graph", lambda row: (row.get("metadata") or {}).get("graph_id")),
)
CHECKPOINTS = (
    Column("Step", lambda row: (row.get("metadata") or {}).get("step")),
    Column("Source", lambda row: (row.get("metadata") or {}).get("source")),
    Column("Created", lambda row: when(row.get("created_at"))),
    id_column("Checkpoint", lambda row: (row.get("checkpoint") or {}).get("checkpoint_id")),
    Column("Next", lambda row: ", ".join(row.get("next") or []) or None, folds=True),
)


def _print_value(key: str, value: Any) -> None:
    """Print a value of a thread's state; a list has one line per item."""
    out = console()
    out.print(Text(printable(key), "bold cyan"))
    for item in value if isinstance(value, list) else [value]:
        message = message_of(item) if isinstance(item, dict) else None
        text = f"{message.role}: {message.text}" if message and message.text else as_text(item)
        out.print(Text(f"  {printable(shortened(text))}"))
