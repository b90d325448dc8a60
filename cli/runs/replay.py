"""`runyard replay`: execute past runs again on a revision, compare, and judge by a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import RUN_ENDS, RUN_STATUSES, is_id, only_match, version, with_part
from cli.commands import OptionGroup, StartsByDefault, Yes, command, delete_record, new_app
from cli.deployments import replays
from cli.deployments.logs import as_moment
from cli.deployments.revisions import find_revision
from cli.deployments.target import Limit, Name, Wide, resolve_deployment, serving
from cli.errors import BadUsage
from cli.output import Column, Output, as_text, id_column, printable, when
from cli.runs.assistants import find_assistant
from cli.runs.bulk import FEEDBACK, feedback_filter, json_or_text

app = new_app(
    "Execute past runs again on a revision, and compare. `runyard replay DEPLOYMENT` is `runyard replay start"
    " DEPLOYMENT`.",
    group=StartsByDefault,
)

SELECTION, EXECUTION = "Which runs", "How they are executed"
STATUSES = tuple(status for status in RUN_STATUSES if status in RUN_ENDS)
SHOWN = 60  # characters of a value
STYLES = {
    "same": "green",
    "changed": "yellow",
    "diverged": "yellow",
    "failed": "bold red",
    "passed": "green",
    "skipped": "dim",
}

ReplayId = Annotated[
    str | None, typer.Argument(help="Replay: its id or the end of its id. Required.", metavar="REPLAY")
]
Row = dict[str, Any]


def _select(help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=SELECTION, **more)


def _execute(help: str, metavar: str | None = None, *, param: tuple[str, ...] = (), **more: Any) -> Any:
    return typer.Option(*param, help=help, metavar=metavar, rich_help_panel=EXECUTION, **more)


@dataclass(frozen=True)
class Selection(OptionGroup):
    """The past runs that a replay takes its sample from. Fields that are None are left to the service."""

    sample: Annotated[int | None, _select("Number of runs. Default: 100.", "N", min=1, max=10_000)] = None
    seed: Annotated[
        int | None,
        _select("Number that decides which runs are drawn: the same seed draws the same.", "N", min=0),
    ] = None
    since: Annotated[
        str | None, _select("Runs since this time: 2026-01-31T12:00:00, or an age such as 7d.", "TIME")
    ] = None
    until: Annotated[str | None, _select("Runs up to this time.", "TIME")] = None
    assistant: Annotated[
        str | None, _select("Runs of this assistant: its name, its id, or a graph.", "ASSISTANT")
    ] = None
    graph: Annotated[str | None, _select("Runs of this graph.", "GRAPH")] = None
    status: Annotated[
        list[str] | None,
        _select(f"Runs of this status: {', '.join(STATUSES)}. Repeat it for several.", "STATUS"),
    ] = None
    metadata: Annotated[
        list[str] | None, _select("Runs with this metadata; repeat it for several.", "KEY=VALUE")
    ] = None
    key: Annotated[str | None, _select("Runs that this API key created: the key's id.", "ID")] = None
    feedback: Annotated[str | None, _select(FEEDBACK, "KEY")] = None
    run: Annotated[list[str] | None, _select("This run; repeat it for several.", "ID")] = None

    def body(self, assistant: str | None) -> dict[str, Any]:
        """Return the fields of a request, with an assistant's id or graph. Raises BadUsage."""
        unknown = [status for status in self.status or [] if status not in RUN_ENDS]
        if unknown:
            raise BadUsage(f"--status {unknown[0]!r}: choose from {', '.join(STATUSES)}.")
        where = {
            "since": self.since and as_moment(self.since),
            "until": self.until and as_moment(self.until),
            "assistant": assistant,
            "graph_id": self.graph,
            "status": self.status,
            "metadata": dict(map(_condition, self.metadata or [])),
            "key_id": self.key,
            "feedback": self.feedback and feedback_filter(self.feedback),
            "run_ids": self.run,
        }
        where = {name: value for name, value in where.items() if value not in (None, {})}
        return _given({"sample": self.sample, "seed": self.seed, "where": where})


def _condition(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise BadUsage(f"--metadata {text!r}: give KEY=VALUE.")
    return key, json_or_text(value)


@dataclass(frozen=True)
class Execution(OptionGroup):
    """Options for the execution of the cases of a replay. The service chooses those that are None."""

    tools: Annotated[
        Literal["recorded", "live"] | None,
        _execute(
            "`recorded`, the default: a tool returns what it returned in the past run. `live`: it is executed, if"
            " langgraph.json permits it."
        ),
    ] = None
    live_tool: Annotated[
        list[str] | None,
        _execute(
            "Tool that is executed if a call is not recorded, if langgraph.json permits it; repeat it for several.",
            "NAME",
        ),
    ] = None
    models: Annotated[
        Literal["live", "recorded"] | None,
        _execute("`live`, the default. `recorded`: a call equal to a recorded one returns its answer."),
    ] = None
    network: Annotated[
        bool | None,
        _execute("Give the graphs a network, which the sandbox otherwise takes away.", param=("--network",)),
    ] = None
    concurrency: Annotated[
        int | None, _execute("Cases at the same time. Default: 2.", "N", min=1, max=32)
    ] = None
    max_tokens: Annotated[int | None, _execute("Stop at this number of tokens.", "N", min=1)] = None
    max_cost: Annotated[float | None, _execute("Stop at this cost.", "COST", min=0)] = None
    max_minutes: Annotated[float | None, _execute("Stop after this time.", "MINUTES", min=0)] = None

    def body(self) -> dict[str, Any]:
        names = ("tools", "models", "network", "concurrency", "max_tokens", "max_cost", "max_minutes")
        return _given({"live_tools": self.live_tool or None, **{name: getattr(self, name) for name in names}})


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@app.command("start")
@command
def start(
    selection: Selection,
    execution: Execution,
    client: Client,
    out: Output,
    name: Name = None,
    revision: str | None = Option(
        None,
        help="Revision that executes the runs: v3, its id or the end of its id. Default: the newest.",
        metavar="REVISION",
    ),
    preview: str | None = Option(None, help="The revision of this preview.", metavar="NAME"),
    fail_on: str | None = Option(None, help=replays.FAIL_ON, metavar="RULE"),
    no_wait: bool = Option(False, "--no-wait", help="Exit when the replay has started."),
) -> None:
    """Execute a sample of past runs again on a revision, wait, and show the comparison.

    Each case starts from a copy of the original's state. The originals, their threads and the store stay as they are.

    Exit codes: 0 passed, or compared without a rule (with --no-wait: started) · 1 refused · 2 wrong usage · 3 the rule
    failed · 4 it could not be judged · 130 Ctrl-C; the replay continues.
    """
    if revision and preview:
        raise BadUsage("--revision and --preview name two revisions: give one.")
    rule = replays.check_rule(fail_on)
    deployment = resolve_deployment(client, name)
    revision_id = find_revision(client, deployment, revision)["id"] if revision else None
    assistant = selection.assistant
    if assistant and not is_id(assistant):
        with client.at(serving(client, deployment["name"])[0]) as api:
            assistant = find_assistant(api, assistant)
    choice = _given({"revision": revision_id, "preview": preview, "fail_on": rule})
    body = {**choice, **selection.body(assistant), **execution.body()}
    replay = replays.start(client, deployment["id"], body)
    if no_wait:
        what = f"Replay {replay['id']} of {version(replay['revision_number'])} has started."
        out.done(f"{what} `runyard replay show {deployment['name']} {replay['id']}` shows it.", replay)
        return
    if not out.as_json:
        typer.echo(f"Replaying on {version(replay['revision_number'])}: {replay['id']}", err=True)
    _show(out, replays.follow(client, replay))


def _show(out: Output, replay: replays.Replay) -> None:
    """Print a replay, and exit with the code of its verdict."""
    out.show(replay, lambda: replays.draw(replay))
    raise typer.Exit(replays.exit_code(replay))


@app.command("show")
@command
def show(client: Client, out: Output, name: Name = None, replay: ReplayId = None) -> None:
    """Show a replay: counts, figures of both sides, rules and the verdict. The exit codes are those of `start`.

    A replay with a rule that has not ended could not be judged yet.
    """
    _, row = _find(client, name, replay)
    _show(out, row)


@app.command("list")
@command
def list_replays(
    client: Client, out: Output, name: Name = None, limit: Limit = 20, wide: Wide = False
) -> None:
    """List replays of a deployment, newest first."""
    deployment = resolve_deployment(client, name)
    rows = list(client.every(f"/v2/deployments/{deployment['id']}/replays", limit))
    empty = f"{deployment['name']} has no replays. `runyard replay {deployment['name']}` starts one."
    out.rows(rows, REPLAYS, empty=empty, wide=wide)


@app.command("cases")
@command
def cases(
    client: Client,
    out: Output,
    name: Name = None,
    replay: ReplayId = None,
    outcome: Literal["same", "changed", "diverged", "failed", "skipped"] | None = Option(
        None, help="Only cases of this outcome."
    ),
    limit: Limit = 100,
    wide: Wide = False,
) -> None:
    """List the cases of a replay with the first difference of each."""
    path, _ = _find(client, name, replay)
    rows = list(client.every(f"{path}/cases", limit, **({"outcome": outcome} if outcome else {})))
    out.rows(rows, CASES, empty="There are no such cases.", wide=wide)


@app.command("cancel")
@command
def cancel(client: Client, out: Output, name: Name = None, replay: ReplayId = None) -> None:
    """Stop a replay. The cases that have ended are kept."""
    path, _ = _find(client, name, replay)
    row = client.send("POST", f"{path}/cancel", repeat=True)
    out.done(
        f"Replay {row['id']} is {row['status']}: {replays.counts_text(row) or 'no case has ended'}.", row
    )


@app.command("delete")
@command
def delete(client: Client, out: Output, name: Name = None, replay: ReplayId = None, yes: Yes = False) -> None:
    """Delete a replay with the threads and runs of its cases, after a confirmation."""
    path, row = _find(client, name, replay)
    delete_record(
        out,
        f"the replay {row['id']}",
        "cases, threads and runs",
        lambda: client.send("DELETE", path, repeat=True),
        yes=yes,
        result={"id": row["id"], "deleted": True},
    )


def _find(client: Client, name: str | None, replay: str | None) -> tuple[str, Row]:
    """Return the path and the record of a replay. A single argument is the replay."""
    if replay is None:
        name, replay = None, name
    if replay is None:
        raise BadUsage("REPLAY is missing.")
    deployment = resolve_deployment(client, name)
    path = f"/v2/deployments/{deployment['id']}/replays"
    if not is_id(replay):
        missing = f"There is no replay {replay!r}. `runyard replay list {deployment['name']}` shows those there are."
        rows = with_part(client.every(path, math.inf), replay)
        replay = only_match(rows, replay, "replays", missing, label=lambda row: row["status"])["id"]
    return f"{path}/{replay}", client.get(f"{path}/{replay}")


def _styled(word: str | None) -> Text:
    return Text(word or "-", STYLES.get(word or "", ""))


def _difference(case: Row) -> str:
    """Return the first difference of a case on one line, or why it has no comparison."""
    comparison = case["comparison"] or {}
    tool, first = comparison.get("unrecorded_tool"), comparison.get("first_value")
    words = [case["reason"] or ""]
    if tool:
        words.append(f"unrecorded call of {tool}")
    if first is not None:
        sides = (_short(first[side]) if side in first else "nothing" for side in replays.SIDES)
        words.append(f"{first['path']}: {' → '.join(sides)}")
    return printable("; ".join(word for word in words if word))


def _short(value: Any) -> str:
    text = as_text(value).replace("\n", " ")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _node(case: Row) -> str | None:
    return ((case["comparison"] or {}).get("first_difference") or {}).get("node")


REPLAYS = (
    id_column(),
    Column("Revision", lambda row: version(row["revision_number"])),
    Column("Status", lambda row: row["status"]),
    Column("Verdict", lambda row: _styled(row["verdict"])),
    Column("Cases", replays.counts_text, folds=True),
    Column("Rule", lambda row: row["fail_on"], only_wide=True),
    Column("By", lambda row: row["created_by"] and row["created_by"]["name"], only_wide=True),
    Column("Created", lambda row: when(row["created_at"])),
)
CASES = (
    Column("", lambda row: row["position"]),
    id_column("Run", lambda row: row["run_id"]),
    id_column("Replayed", lambda row: row["case_run_id"]),
    Column("Outcome", lambda row: _styled(row["outcome"])),
    Column("Node", _node),
    Column("First difference", _difference, folds=True),
)
