"""`runyard runs retry --where`, `runyard runs cancel --where` and `runyard runs bulk`: many runs at once."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option

from cli.client.client import Client
from cli.client.names import RUN_STATUSES
from cli.commands import command
from cli.deployments.logs import as_moment
from cli.deployments.target import Limit, Target, Wide
from cli.errors import BadUsage, CommandFailed
from cli.output import Column, Output, id_column, printable, when
from cli.runs.assistants import find_assistant
from cli.runs.threads import find_thread_id

POLL_SECONDS = 1.0
FILTERS = ("status", "error", "graph", "assistant", "thread", "since", "until", "feedback")
METADATA = "metadata."
FEEDBACK = "Only runs with feedback of this key, such as `thumbs`; with a score: `thumbs<0.5`, `stars>=4`."
BOUND = re.compile(r"(.+?)(<|>=)([+-]?[0-9]+(?:\.[0-9]+)?)", re.DOTALL)
BOUNDS = {"<": "below", ">=": "at_least"}

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Handle all runs that match, instead of one run: KEY=VALUE, repeated for several conditions. Keys: status,"
        " error, graph, assistant, thread, since, until, feedback, metadata.NAME.",
        metavar="KEY=VALUE",
    ),
]
DryRun = Annotated[
    bool, Option("--dry-run", help="With --where: only show how many runs match, and examples.")
]
Rate = Annotated[float, Option(min=1, max=100, help="With --where: runs per second.", metavar="N")]
NoWait = Annotated[bool, Option("--no-wait", help="With --where: do not wait until all runs are handled.")]
Sure = Annotated[bool, Option("--yes", "-y", help="With --where: do not ask.")]


def start(
    api: Client,
    out: Output,
    action: str,
    where: Sequence[str],
    *,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    **fields: Any,
) -> None:
    """Show how many runs match, ask, start the operation and follow it. Raises CommandFailed."""
    body = {"action": action, "where": _criteria(api, where), **fields}
    preview = api.send("POST", "/runs/bulk", {**body, "dry_run": True}, repeat=True)
    if dry_run:
        out.show(preview, lambda: _preview_text(action, preview))
        return
    if not preview["count"]:
        out.done("No run matches.", preview)
        return
    if not yes:
        _ask(out, action, preview)
    operation = api.send("POST", "/runs/bulk", body)
    if not no_wait:
        operation = _follow(api, operation)
    out.done(_sentence(operation), operation)
    if operation["failed"]:
        raise CommandFailed(
            f"{operation['failed']} runs failed: `runyard runs bulk DEPLOYMENT {operation['id']}` lists them."
        )


def _criteria(api: Client, where: Sequence[str]) -> dict[str, Any]:
    """Return the filters of a search. Raises BadUsage for an unknown or repeated key."""
    criteria: dict[str, Any] = {}
    for text in where:
        key, sign, value = text.partition("=")
        if key.startswith(METADATA) and sign:
            criteria.setdefault("metadata", {})[key.removeprefix(METADATA)] = json_or_text(value)
        elif key not in FILTERS or not value:
            raise BadUsage(
                f"--where {text!r}: give KEY=VALUE, where KEY is one of {', '.join(FILTERS)}, metadata.NAME."
            )
        elif key == "status":
            if value not in RUN_STATUSES:
                raise BadUsage(f"--where {text!r}: a status is one of {', '.join(RUN_STATUSES)}.")
            criteria.setdefault(key, []).append(value)
        elif key in criteria or f"{key}_id" in criteria:
            raise BadUsage(f"--where {key} is given twice.")
        elif key in ("since", "until"):
            criteria[key] = as_moment(value)
        elif key == "error":
            criteria[key] = value
        elif key == "graph":
            criteria["graph_id"] = value
        elif key == "assistant":
            criteria["assistant_id"] = find_assistant(api, value)
        elif key == "feedback":
            criteria[key] = feedback_filter(value)
        else:
            criteria["thread_id"] = find_thread_id(api, value)
    return criteria


def feedback_filter(text: str) -> dict[str, Any]:
    """Return the filter of runs by feedback, for `KEY`, `KEY<NUMBER` or `KEY>=NUMBER`."""
    match = BOUND.fullmatch(text)
    if match is None:
        return {"key": text}
    key, sign, number = match.groups()
    return {"key": key, BOUNDS[sign]: float(number)}


def json_or_text(value: str) -> Any:
    """Return the value of a condition on metadata: JSON, or the text itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _count_text(preview: dict[str, Any]) -> str:
    return f"more than {preview['count']:,}" if preview["is_more"] else f"{preview['count']:,}"


def _preview_text(action: str, preview: dict[str, Any]) -> str:
    matching = "1 run matches" if preview["count"] == 1 else f"{_count_text(preview)} runs match"
    lines = [f"{matching}. `{action}` would begin with:"]
    for run in preview["examples"]:
        lines.append(f"  {run['run_id']}  {run['status']}  {when(run['created_at'])}")
    return printable("\n".join(lines if preview["examples"] else ["No run matches."]))


def _ask(out: Output, action: str, preview: dict[str, Any]) -> None:
    words = {"retry": "Retry", "cancel": "Cancel"}[action]
    if out.as_json or not sys.stdin.isatty():
        raise CommandFailed("Nobody can be asked here: --yes starts the operation without a question.")
    typer.echo(_preview_text(action, preview), err=True)
    if not typer.confirm(f"{words} {_count_text(preview)} runs?"):
        raise CommandFailed("Nothing was done.")


def _follow(api: Client, operation: dict[str, Any]) -> dict[str, Any]:
    """Wait until an operation has ended, with a line of progress on a terminal."""
    while operation["ended_at"] is None:
        if sys.stderr.isatty():
            handled = operation["total"] - operation["waiting"]
            typer.echo(f"\r{handled:,} of {operation['total']:,}", err=True, nl=False)
        time.sleep(POLL_SECONDS)
        operation = api.get(f"/runs/bulk/{operation['id']}")
    if sys.stderr.isatty():
        typer.echo("\r", err=True, nl=False)
    return operation


def _sentence(operation: dict[str, Any]) -> str:
    word = {"retry": "retried", "cancel": "cancelled"}[operation["action"]]
    counts = f"{operation['done']:,} {word}, {operation['skipped']:,} skipped, {operation['failed']:,} failed"
    if operation["ended_at"] is None:
        return f"Operation {operation['id']} has started: {operation['total']:,} runs."
    return f"Operation {operation['id']} is {operation['status']}: {counts} of {operation['total']:,} runs."


@command
def bulk(
    target: Target,
    out: Output,
    operation: Annotated[str | None, typer.Argument(help="Id of a bulk operation.", metavar="ID")] = None,
    stop: bool = Option(False, "--stop", help="Stop the operation. What it has done stays."),
    limit: Limit = 20,
    wide: Wide = False,
) -> None:
    """List bulk operations; with an ID, show what one did to each run, or stop it."""
    if operation is None:
        if stop:
            raise BadUsage("--stop needs the ID of an operation: `runyard runs bulk DEPLOYMENT` lists them.")
        with target.api() as api:
            rows = list(api.every("/runs/bulk", limit))
        out.rows(rows, OPERATIONS, empty="There are no bulk operations.", wide=wide)
        return
    with target.api() as api:
        if stop:
            row = api.send("POST", f"/runs/bulk/{operation}/cancel", repeat=True)
            out.done(_sentence(row), row)
            return
        row = api.get(f"/runs/bulk/{operation}")
        runs = list(api.every(f"/runs/bulk/{operation}/runs", limit))
    if not out.as_json:
        typer.echo(_sentence(row))
    out.rows(runs, RUNS, empty="No run matched.", data={**row, "runs": runs}, wide=wide)


OPERATIONS = (
    id_column(),
    Column("Action", lambda row: row["action"]),
    Column("Status", lambda row: row["status"]),
    Column("done", lambda row: f"{row['done']:,}"),
    Column("skipped", lambda row: f"{row['skipped']:,}"),
    Column("failed", lambda row: f"{row['failed']:,}"),
    Column("total", lambda row: f"{row['total']:,}"),
    Column("By", lambda row: row["created_by"] and row["created_by"]["name"]),
    Column("Created", lambda row: when(row["created_at"])),
)
RUNS = (
    id_column("Run", "run_id"),
    id_column("Thread", "thread_id"),
    Column("Outcome", lambda row: row["outcome"] or "waits"),
    id_column("New run", "new_run_id"),
    Column("", lambda row: printable(row["detail"] or ""), folds=True),
)
