"""`runyard runs`: list, show, cancel and retry runs of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import (
    RUN_ENDS,
    RUN_STATUSES,
    UNSUCCESSFUL_RUNS,
    is_part,
    only_match,
    run_state,
    run_state_style,
    with_part,
)
from cli.commands import command, new_app
from cli.deployments.target import Limit, Target, Wide
from cli.errors import BadUsage, CommandFailed, Missing
from cli.output import Column, Output, as_text, id_column, printable, when
from cli.runs import bulk, timeline
from cli.runs.assistants import assistant_names, run_assistant
from cli.runs.threads import find_thread_id
from cli.runs.transcript import error_text

app = new_app("List, show, cancel and retry runs of a deployment.")

SEARCHED = 1000  # runs that are searched for a part of an id

RunId = Annotated[
    str | None, typer.Argument(help="Run: its id or the end of its id. Required.", metavar="RUN")
]
Thread = Annotated[
    str | None,
    typer.Option("--thread", "-t", help="Thread of the run: its id or the end of its id.", metavar="ID"),
]
Status = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
Row = dict[str, Any]


@app.command("list")
@command
def list_runs(
    target: Target,
    out: Output,
    thread: Thread = None,
    status: Status | None = Option(None, help="Only runs of this status."),
    feedback: str | None = Option(None, help=bulk.FEEDBACK, metavar="KEY"),
    limit: Limit = 20,
    wide: Wide = False,
) -> None:
    """List runs of a deployment or of one thread, newest first."""
    if feedback and thread:
        raise BadUsage("--feedback searches all threads, and cannot be combined with --thread.")
    filters = {"feedback": bulk.feedback_filter(feedback)} if feedback else {}
    with target.api() as api:
        if thread:
            rows = _runs_of_thread(api, find_thread_id(api, thread), limit=limit, status=status)
        else:
            rows = _search(api, limit=limit, status=status or RUN_STATUSES, **filters)
        names = assistant_names(api) if rows and not out.as_json else {}
    empty = "There are no such runs." if status or feedback else "There are no runs."
    out.rows(rows, _columns(names), empty=empty, wide=wide)


@app.command("show")
@command
def show(target: Target, out: Output, run: RunId = None, thread: Thread = None) -> None:
    """Show a run: its status, why it waits, its input, its error, its feedback and its timeline."""
    with target.api_and_item(run, "RUN") as (api, text):
        row = _find_run(api, text, thread)
        row = {**row, **api.get(_path(row))}
        names = {} if out.as_json else assistant_names(api)
        if row["status"] in UNSUCCESSFUL_RUNS and not row.get("error"):
            row["error"] = _error_record(api, row)
        line, said = None, []
        if not out.as_json:
            with suppress(Missing):  # an earlier version of the service has no timelines and no feedback
                line = api.get(f"{_path(row)}/timeline")
                said = api.get(f"{_path(row)}/feedback")
    kwargs = row.get("kwargs") or {}
    facts = {
        "Run": row["run_id"],
        "Thread": row["thread_id"],
        "Assistant": _assistant_text(row, names),
        "Status": run_state(row),
        "Waits": (row.get("queue") or {}).get("reason"),
        "Error": _error_text(row),
        "Created": when(row["created_at"]),
        "Changed": when(row["updated_at"]),
        "Input": kwargs.get("input"),
        "Command": kwargs.get("command"),
        "Metadata": row.get("metadata"),
        "Feedback": "; ".join(map(_feedback_text, said)),
    }
    out.record(row, facts)
    if line is not None:
        timeline.show(line)


@app.command("cancel")
@command
def cancel(
    target: Target,
    out: Output,
    run: RunId = None,
    rollback: bool = Option(False, "--rollback", help="Also delete the run and its checkpoints."),
    thread: Thread = None,
    where: bulk.Where = None,
    dry_run: bulk.DryRun = False,
    rate: bulk.Rate = 10,
    no_wait: bulk.NoWait = False,
    yes: bulk.Sure = False,
) -> None:
    """Cancel a run and wait until it has ended. With --where, cancel all pending and running runs that match."""
    if where:
        _refuse_one(run, thread, rollback=rollback)
        with target.api() as api:
            bulk.start(api, out, "cancel", where, dry_run=dry_run, yes=yes, no_wait=no_wait, rate=rate)
        return
    with target.api_and_item(run, "RUN") as (api, text):
        row = _find_run(api, text, thread)
        if row["status"] in RUN_ENDS:
            raise CommandFailed(f"Run {row['run_id']} has ended already: {row['status']}.")
        action = "rollback" if rollback else "interrupt"
        api.send("POST", f"{_path(row)}/cancel?wait=1&action={action}")
    result = {"run_id": row["run_id"], "thread_id": row["thread_id"], "cancelled": True}
    out.done(f"Cancelled run {row['run_id']}.", result)


@app.command("retry")
@command
def retry(
    target: Target,
    out: Output,
    run: RunId = None,
    force: bool = Option(
        False, "--force", help="Fork the thread at the run's last checkpoint if the thread has changed since."
    ),
    thread: Thread = None,
    where: bulk.Where = None,
    revision: str | None = Option(
        None, help="With --where: id of the revision of the new runs. Default: the active one.", metavar="ID"
    ),
    dry_run: bulk.DryRun = False,
    rate: bulk.Rate = 10,
    no_wait: bulk.NoWait = False,
    yes: bulk.Sure = False,
) -> None:
    """Retry a failed run from its last checkpoint, as a new run. With --where, retry all failed runs that match."""
    if where:
        _refuse_one(run, thread)
        fields = {"rate": rate, "force": force, "revision_id": revision}
        with target.api() as api:
            bulk.start(api, out, "retry", where, dry_run=dry_run, yes=yes, no_wait=no_wait, **fields)
        return
    if revision:
        raise BadUsage("--revision is for --where: a single run is retried on the active revision.")
    with target.api_and_item(run, "RUN") as (api, text):
        row = _find_run(api, text, thread)
        row = api.send("POST", f"{_path(row)}/retry", {"force": force}, repeat=True)
    out.done(f"Run {row['run_id']} is {row['status']}, on thread {row['thread_id']}.", row)


app.command("bulk")(bulk.bulk)


def _refuse_one(run: str | None, thread: str | None, *, rollback: bool = False) -> None:
    """Raise BadUsage if arguments for one run are given beside --where."""
    given = {"a run": run, "--thread": thread, "--rollback": rollback}
    wrong = next((name for name, value in given.items() if value), None)
    if wrong:
        raise BadUsage(f"--where selects many runs, and cannot be combined with {wrong}.")


def _search(api: Client, **filters: Any) -> list[Row]:
    """Return runs of the deployment, newest first. A search for unsuccessful runs alone sorts them by their end."""
    return api.send("POST", "/runs/search", filters, repeat=True)


def _runs_of_thread(api: Client, thread_id: str, *, limit: int, status: str | None = None) -> list[Row]:
    """Return a thread's runs, newest first."""
    return api.get(f"/threads/{thread_id}/runs", {"limit": limit} | ({"status": status} if status else {}))


def _find_run(api: Client, text: str, thread: str | None) -> Row:
    """Return the run with that id, or that beginning or end of an id.

    Without a thread, the newest runs are searched, then the last unsuccessful ones. Raises CommandFailed if there is
    none, and BadUsage if several match.
    """
    if not is_part(text):
        raise BadUsage(f"{text!r} is no part of a run's id. `runyard runs list` shows the ids.")
    if thread:
        searched = _runs_of_thread(api, find_thread_id(api, thread), limit=SEARCHED)
    else:
        searched = _search(api, limit=SEARCHED, status=RUN_STATUSES)
    rows = with_part(searched, text, key="run_id")
    if not rows and not thread:
        rows = with_part(_search(api, limit=SEARCHED), text, key="run_id")
    where = "in that thread" if thread else "among the newest: name its thread with --thread"
    missing = f"There is no run {text!r} {where}. `runyard runs list` shows the newest."
    return only_match(
        rows,
        text,
        "runs",
        missing,
        key="run_id",
        label=lambda row: f"{row['status']}, {when(row['created_at'])}",
    )


def _path(row: Row) -> str:
    return f"/threads/{row['thread_id']}/runs/{row['run_id']}"


def _error_record(api: Client, row: Row) -> Any:
    """Return the error of an unsuccessful run. Only the search for runs returns it."""
    rows = _search(api, thread_id=row["thread_id"], status=row["status"], limit=SEARCHED)
    return next((one.get("error") for one in rows if one["run_id"] == row["run_id"]), None)


def _error_text(row: Row) -> str:
    """Return why a run did not succeed; empty if the record has no error."""
    return error_text(row.get("error") or "")


def _feedback_text(record: Row) -> str:
    """Return feedback on one line: its key, and what was said."""
    said = [record[name] for name in ("score", "value", "comment", "correction") if record[name] is not None]
    return " ".join([record["key"], *(as_text(each) for each in said)]).replace("\n", " ")


def _assistant_text(row: Row, names: Mapping[str, str]) -> str | None:
    """Return the name of a run's assistant with its id."""
    name, id = run_assistant(row, names), row.get("assistant_id")
    return f"{name} ({id})" if name and id else id


def _columns(names: Mapping[str, str]) -> tuple[Column, ...]:
    """Return the columns of a list of runs. `names` has the names of assistants by id."""
    return (
        id_column("Run", "run_id"),
        Column("Assistant", lambda row: run_assistant(row, names)),
        id_column("Thread", "thread_id"),
        Column("Status", lambda row: Text(run_state(row), run_state_style(row))),
        Column("Created", lambda row: when(row["created_at"])),
        Column("", lambda row: Text(printable(_error_text(row)), "dim"), folds=True),
    )
