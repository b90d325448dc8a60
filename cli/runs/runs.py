"""`runyard runs`: list, show, cancel and retry runs of a deployment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Annotated, Any, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from cli.api.client import Client
from cli.api.ids import is_part, short, with_part
from cli.api.statuses import UNSUCCESSFUL_RUNS, run_state, run_state_style
from cli.deployments.deployments import (
    NameOption,
    NameOrPreview,
    Wide,
    id_column,
    name_and,
    one_name,
    show_table,
)
from cli.deployments.served import Limit, Thread, echo_json, served
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, Key, Org, Url, new_app, sentences
from cli.output import printable, when
from cli.runs.threads import print_facts, search, thread_id_of

app = new_app("List, show, cancel and retry runs of a deployment.")

ENDED = UNSUCCESSFUL_RUNS | {"success"}
THREADS_SEARCHED = 50  # threads that changed last; `newest` lists their runs thread by thread
SEARCHED = 1000

RunId = Annotated[
    str | None,
    typer.Argument(help="Run: its id or the end of its id. Required.", metavar="RUN", show_default=False),
]
Status = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
Row = dict[str, Any]


def of_thread(api: Client, thread_id: str, *, limit: int, status: str | None = None) -> list[Row]:
    """Return a thread's runs, newest first."""
    return api.get(f"/threads/{thread_id}/runs", {"limit": limit} | ({"status": status} if status else {}))


def newest(api: Client, *, limit: int, status: str | None = None) -> list[Row]:
    """Return the newest runs, newest first.

    An unsuccessful status is searched for on all threads. Otherwise the runs come from the threads that changed last,
    at most THREADS_SEARCHED, and runs of other threads are missing.
    """
    if status in UNSUCCESSFUL_RUNS:
        return api.send("POST", "/runs/search", {"limit": limit, "status": status}, repeat=True)
    threads = search(api, limit=min(limit, THREADS_SEARCHED), select=["thread_id"])
    rows = [
        row for thread in threads for row in of_thread(api, thread["thread_id"], limit=limit, status=status)
    ]
    return sorted(rows, key=itemgetter("created_at"), reverse=True)[:limit]


def find(api: Client, text: str, thread: str | None) -> Row:
    """Return the run with that id, or that beginning or end of an id.

    Raises CommandFailed if there is none, and BadUsage if several match.
    """
    if not is_part(text):
        raise BadUsage(f"{text!r} is no part of a run's id. `runyard runs list` shows the ids.")
    if thread:
        rows = with_part(of_thread(api, thread_id_of(api, thread), limit=SEARCHED), text, key="run_id")
    else:
        rows = with_part(newest(api, limit=SEARCHED), text, key="run_id")
        failed = api.send("POST", "/runs/search", {"limit": SEARCHED}, repeat=True) if not rows else []
        rows += with_part(failed, text, key="run_id")
    if len(rows) > 1:
        raise BadUsage(f"{len(rows)} runs have an id with {text!r}: give more of it.")
    if not rows:
        where = "in that thread" if thread else "among the newest: name its thread with --thread"
        raise CommandFailed(f"There is no run {text!r} {where}. `runyard runs list` shows the newest.")
    return rows[0]


@contextmanager
def of_run(
    url: str | None, key: str | None, org: str | None, name: str | None, run: str | None, option: str | None
) -> Iterator[tuple[Client, str]]:
    """Open a client of the deployment's API. Yields it with the run's id or part of an id. Raises CommandFailed."""
    name, text = name_and(run, "RUN", name=name, option=option)
    with served(url, key, org, name) as api:
        yield api, text


def path_of(row: Row) -> str:
    return f"/threads/{row['thread_id']}/runs/{row['run_id']}"


@app.command("list")
def list_runs(
    name: NameOrPreview = None,
    option: NameOption = None,
    thread: Thread = None,
    status: Annotated[
        Status | None, typer.Option(help="Only runs of this status.", show_default=False)
    ] = None,
    limit: Limit = 20,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """List runs of a deployment, newest first: of one thread, or of the threads that changed last."""
    with sentences(as_json=as_json), served(url, api_key, org, one_name(name, option)) as api:
        if thread:
            rows = of_thread(api, thread_id_of(api, thread), limit=limit, status=status)
        else:
            rows = newest(api, limit=limit, status=status)
        if as_json:
            echo_json(rows)
        elif rows:
            show_table(lambda is_wide: _runs(rows, is_wide=is_wide), wide=wide)
        else:
            typer.echo("There are no such runs." if status else "There are no runs.")


def _runs(rows: list[Row], *, is_wide: bool) -> Table:
    columns = (id_column("Run"), id_column("Thread"), "Status", "Created", Column(overflow="fold"))
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        ids = [str(row[key]) for key in ("run_id", "thread_id")]
        table.add_row(
            *(ids if is_wide else map(short, ids)),
            Text(run_state(row), run_state_style(row)),
            when(row["created_at"]),
            Text(printable(error_of(row)), "dim"),
        )
    return table


def error_of(row: Row) -> str:
    """Return why a run did not succeed; empty if the record has no error."""
    error = row.get("error")
    if isinstance(error, dict):
        return ": ".join(str(error[key]) for key in ("error", "message") if error.get(key))
    return str(error or "")


@app.command("show")
def show(
    name: NameOrPreview = None,
    run: RunId = None,
    option: NameOption = None,
    thread: Thread = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show a run: its status, input and error."""
    with sentences(as_json=as_json), of_run(url, api_key, org, name, run, option) as (api, text):
        row = find(api, text, thread)
        found = {**row, **api.get(path_of(row))}
        if found["status"] in UNSUCCESSFUL_RUNS:
            found["error"] = _failure(api, found).get("error")
        if as_json:
            echo_json(found)
            return
        kwargs = found.get("kwargs") or {}
        facts = {
            "Run": found["run_id"],
            "Thread": found["thread_id"],
            "Assistant": found.get("assistant_id"),
            "Status": run_state(found),
            "Error": error_of(found),
            "Created": when(found["created_at"]),
            "Changed": when(found["updated_at"]),
            "Input": kwargs.get("input"),
            "Command": kwargs.get("command"),
            "Metadata": found.get("metadata"),
        }
        print_facts(facts)


def _failure(api: Client, row: Row) -> Row:
    """Return the run's record from the search for unsuccessful runs, which includes the error; else an empty dict."""
    asked = {"thread_id": row["thread_id"], "status": row["status"], "limit": SEARCHED}
    failed = api.send("POST", "/runs/search", asked, repeat=True)
    return next((one for one in failed if one["run_id"] == row["run_id"]), {})


@app.command("cancel")
def cancel(
    name: NameOrPreview = None,
    run: RunId = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Also delete the run and its checkpoints.")
    ] = False,
    option: NameOption = None,
    thread: Thread = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Cancel a run and wait until it has ended."""
    with sentences(as_json=as_json), of_run(url, api_key, org, name, run, option) as (api, text):
        row = find(api, text, thread)
        if row["status"] in ENDED:
            raise CommandFailed(f"Run {row['run_id']} has ended already: {row['status']}.")
        action = "rollback" if rollback else "interrupt"
        api.send("POST", f"{path_of(row)}/cancel?wait=1&action={action}")
        if as_json:
            echo_json({"run_id": row["run_id"], "thread_id": row["thread_id"], "cancelled": True})
        else:
            typer.echo(f"Cancelled run {row['run_id']}.")


@app.command("retry")
def retry(
    name: NameOrPreview = None,
    run: RunId = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Fork the thread at the run's last checkpoint if the thread has changed since."
        ),
    ] = False,
    option: NameOption = None,
    thread: Thread = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Retry a failed run from its last checkpoint, as a new run on the active revision."""
    with sentences(as_json=as_json), of_run(url, api_key, org, name, run, option) as (api, text):
        row = find(api, text, thread)
        made = api.send("POST", f"{path_of(row)}/retry", {"force": force}, repeat=True)
        if as_json:
            echo_json(made)
        else:
            typer.echo(f"Run {made['run_id']} is {made['status']}, on thread {made['thread_id']}.")
