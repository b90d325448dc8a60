"""`runyard inbox`: list, show, answer, assign and snooze questions of graphs, and manage links for one answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any, Literal, get_args

import typer
from rich.text import Text
from typer import Argument, Option

from cli.client.client import Client
from cli.client.names import is_id, is_part, only_match, short_id, with_part
from cli.commands import command, new_app
from cli.deployments.logs import as_moment
from cli.deployments.target import Limit, NameOrAll, Wide, resolve_deployment
from cli.errors import BadUsage, CommandFailed
from cli.output import Column, Output, as_text, id_column, json_text, minute, printable, validity, when
from cli.runs.run import json_or

app = new_app("List and answer questions of graphs that wait for a person, of all deployments.")

SEARCHED = 1000  # questions of each status that are searched for a part of an id
POLL_SECONDS = 3.0
# A question may become visible after one with a later `asked_at`, since the time is that of its transaction's start.
OVERLAP = timedelta(seconds=60)
SHOWN_WORDS = 200
# Fields with the words of a question
HEADS = ("question", "message", "prompt", "query", "text", "description")
Status = Literal["open", "snoozed", "answered", "expired", "closed"]
OPEN = ("open", "snoozed")
STYLES = {"open": "yellow", "answered": "green", "expired": "red"}

QuestionId = Annotated[
    str, Argument(help="Question: its id, or the beginning or end of its id.", metavar="QUESTION")
]
Row = dict[str, Any]


@app.command("list")
@command
def list_questions(
    client: Client,
    out: Output,
    deployment: NameOrAll = None,
    status: Literal[Status, "all"] = Option("open", help="Only questions of this status."),
    assistant: str | None = Option(
        None, "--assistant", "-a", help="Only questions of this assistant.", metavar="ID"
    ),
    assignee: str | None = Option(None, help="Only questions assigned to this name.", metavar="NAME"),
    since: str | None = Option(
        None, help="Only questions asked since this time, or within an age such as 2h.", metavar="TIME"
    ),
    until: str | None = Option(
        None, help="Only questions asked before this time, or older than an age such as 2h.", metavar="TIME"
    ),
    metadata: list[str] | None = Option(
        None,
        "--metadata",
        "-m",
        help="Only questions whose thread has this metadata; may be repeated.",
        metavar="KEY=VALUE",
    ),
    watch: bool = Option(
        False, "--watch", help="Also print questions as they are asked, until Ctrl-C; with --json one a line."
    ),
    limit: Limit = 100,
    wide: Wide = False,
) -> None:
    """List questions: open and snoozed ones oldest first, others newest first."""
    filters = {
        "status": status,
        "deployment": resolve_deployment(client, deployment)["name"] if deployment else None,
        "assistant_id": assistant,
        "assignee": assignee,
        "asked_after": as_moment(since) if since else None,
        "asked_before": as_moment(until) if until else None,
        "metadata": json_text(_metadata(metadata)) if metadata else None,
    }
    filters = {name: value for name, value in filters.items() if value is not None}
    if watch:
        for row in _follow(client, filters):
            typer.echo(json_text(row) if out.as_json else _line(row))
    rows = list(client.every("/v2/inbox", limit, **filters))
    empty = (
        "There are no open questions." if filters == {"status": "open"} else "There are no such questions."
    )
    out.rows(rows, COLUMNS, empty=empty, wide=wide)


@app.command("show")
@command
def show(client: Client, out: Output, question: QuestionId) -> None:
    """Show a question: what is asked, its thread and run, and its answer."""
    row = _find(client, question)
    if row.get("is_value_left_out"):
        row = client.get(f"/v2/inbox/{row['id']}")
    facts = {
        "Question": row["id"],
        "Status": row["status"],
        "Asks": _value(row),
        "Deployment": row["deployment_name"],
        "Thread": f"{row['thread_id']} {row.get('thread_title') or ''}".rstrip(),
        "Run": row.get("run_id"),
        "Assistant": row.get("assistant_name") or row.get("assistant_id"),
        "Asked": when(row["asked_at"]),
        "Started by": row.get("asked_by"),
        "Assignee": row.get("assignee"),
        "Snoozed": when(row.get("snoozed_until")),
        "Expires": when(row.get("expires_at")),
        "Answered": when(row.get("answered_at")),
        "Answered by": row.get("answered_by"),
        "Answer": row.get("answer"),
        "Answer run": row.get("answer_run_id"),
        "Metadata": row.get("metadata"),
    }
    out.record(row, facts)


@app.command("answer")
@command
def answer(
    client: Client,
    out: Output,
    question: QuestionId,
    answer: str | None = Argument(
        None,
        help="Answer: JSON or text; `-` reads it from stdin. Leave it out to continue after a breakpoint.",
        metavar="ANSWER",
    ),
    is_text: bool = Option(False, "--text", help="Send the answer as text even if it is JSON."),
    cancel: bool = Option(False, "--cancel", help="Cancel the run instead of answering."),
) -> None:
    """Answer a question. A new run continues the thread with the answer."""
    if cancel and answer is not None:
        raise BadUsage("--cancel takes no answer.")
    text = sys.stdin.read().rstrip("\n") if answer == "-" else answer
    row = _find(client, question)
    if cancel:
        body: Row = {"action": "cancel"}
    elif text is not None:
        body = {"answer": text if is_text else json_or(text, lambda text: text)}
    elif row["kind"] == "breakpoint":
        body = {"answer": None}
    else:
        raise BadUsage(f"ANSWER is missing. The question: {printable(_words(row))}")
    result = client.send("POST", f"/v2/inbox/{row['id']}/answer", body, repeat=True)
    done = f"Answered question {row['id']}. Run {result['run_id']} continues the thread."
    out.done(f"Cancelled the run of question {row['id']}." if cancel else done, result)


@app.command("assign")
@command
def assign(
    client: Client,
    out: Output,
    question: QuestionId,
    assignee: str | None = Argument(None, help="Name of the assignee. Default: you.", metavar="NAME"),
    nobody: bool = Option(False, "--nobody", help="Assign the question to nobody."),
) -> None:
    """Assign a question to a person."""
    if nobody and assignee is not None:
        raise BadUsage("Give a name or --nobody, not both.")
    id = _find(client, question, OPEN)["id"]
    assignee = None if nobody else assignee or _own_name(client)
    row = client.send("PATCH", f"/v2/inbox/{id}", {"assignee": assignee}, repeat=True)
    out.done(f"Question {id} is assigned to {assignee or 'nobody'}.", row)


@app.command("snooze")
@command
def snooze(
    client: Client,
    out: Output,
    question: QuestionId,
    until: str | None = Argument(
        None, help="Time, or a period such as 30m, 2h, 3d. Default: 1h.", metavar="UNTIL"
    ),
    wake: bool = Option(False, "--wake", help="End the snooze."),
) -> None:
    """Hide a question from the open ones until a time."""
    if wake and until is not None:
        raise BadUsage("--wake takes no time.")
    at = None if wake else _time_ahead(until or "1h")
    id = _find(client, question, OPEN)["id"]
    body = {"snoozed_until": at.isoformat() if at else None}
    row = client.send("PATCH", f"/v2/inbox/{id}", body, repeat=True)
    out.done(f"Question {id} is {f'snoozed until {when(at.isoformat())}' if at else 'open'}.", row)


@app.command("link")
@command
def link(
    client: Client,
    out: Output,
    question: QuestionId,
    label: str | None = Option(None, help="For whom the link is.", metavar="TEXT"),
    expires_in: str = Option("7d", help="Lifetime of the link: 1m to 30d.", metavar="PERIOD"),
) -> None:
    """Create a link with which anyone can answer the question once, without an account, and print it."""
    seconds = round((_time_ahead(expires_in) - datetime.now(UTC)).total_seconds())
    id = _find(client, question, OPEN)["id"]
    row = client.send("POST", f"/v2/inbox/{id}/link", {"expires_in_seconds": seconds, "label": label})
    if out.as_json:
        out.json(row)
        return
    typer.echo(f"The link expires {when(row['expires_at'])}. It is shown once.", err=True)
    typer.echo(printable(row["url"]))


@app.command("links")
@command
def list_links(client: Client, out: Output, question: QuestionId, wide: Wide = False) -> None:
    """List the links of a question, oldest first, without their URLs."""
    row = _find(client, question)
    rows = client.get(f"/v2/inbox/{row['id']}/links")
    empty = "This question has no links. `runyard inbox link` creates one."
    out.rows(rows, _link_columns(is_open=row["status"] in OPEN), empty=empty, wide=wide)


@app.command("revoke-link")
@command
def revoke_link(
    client: Client,
    out: Output,
    question: QuestionId,
    link: str = Argument(help="Link: its id, or the beginning or end of its id.", metavar="LINK"),
) -> None:
    """Revoke a link of a question; this cannot be undone."""
    rows = client.get(f"/v2/inbox/{_find(client, question)['id']}/links")
    matches = with_part(rows, link) if is_part(link) else []
    missing = f"The question has no link {link!r}. `runyard inbox links` shows those it has."
    id = only_match(matches, link, "links", missing, label=_link_state)["id"]
    client.send("DELETE", f"/v2/inbox/links/{id}", repeat=True)
    out.done(f"Revoked the link {id}.", {"revoked": id})


def _follow(client: Client, filters: Mapping[str, str]) -> Iterator[Row]:
    """Yield the questions that match, then those that are asked later, without end."""
    seen: dict[str, datetime] = {}
    newest: datetime | None = None
    while True:
        window = {"asked_after": (newest - OVERLAP).isoformat()} if newest else {}
        for row in client.every("/v2/inbox", **{**filters, **window}):
            at = datetime.fromisoformat(row["asked_at"])
            if row["id"] not in seen:
                yield row
            seen[row["id"]] = at
            newest = max(newest or at, at)
        if newest:
            seen = {id: at for id, at in seen.items() if at >= newest - OVERLAP}
        time.sleep(POLL_SECONDS)


def _find(client: Client, text: str, statuses: tuple[str, ...] = get_args(Status)) -> Row:
    """Return the question with this id or part of an id. Raises CommandFailed, and BadUsage if several match."""
    if is_id(text):
        return client.get(f"/v2/inbox/{text}")
    if not is_part(text):
        raise BadUsage(f"{text!r} is no part of a question's id. `runyard inbox list` shows the ids.")
    rows: list[Row] = []
    for status in statuses:
        rows = rows or with_part(client.every("/v2/inbox", SEARCHED, status=status), text)
    missing = f"There is no question {text!r}. `runyard inbox list` shows the open ones."
    return only_match(rows, text, "questions", missing, label=itemgetter("thread_title"))


def _own_name(client: Client) -> str:
    """Return the caller's name, under which the console also assigns questions. Raises CommandFailed."""
    me = client.get("/v2/me")
    user, key = me.get("user") or {}, me.get("key") or {}
    name = user.get("name") or key.get("name") or key.get("id")
    if not name:
        raise CommandFailed("The service does not know your name: give one.")
    return name


def _metadata(pairs: list[str]) -> Row:
    """Return `KEY=VALUE` pairs as an object. A value that is JSON is parsed. Raises BadUsage."""
    result: Row = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not key or not sign:
            raise BadUsage(f"{pair!r} is not KEY=VALUE.")
        result[key] = json_or(value, lambda text: text)
    return result


def _time_ahead(text: str) -> datetime:
    """Return a time in the future, from a period such as `2h` or an ISO 8601 time. Raises BadUsage."""
    at = datetime.fromisoformat(as_moment(text, is_ahead=True))
    if at <= datetime.now(UTC):
        raise BadUsage(f"{text!r} is in the past.")
    return at


def _value(row: Row) -> Any:
    """Return what is asked: the value of the interrupt, or the breakpoint in words."""
    return _words(row) if row["kind"] == "breakpoint" else row["value"]


def _words(row: Row) -> str:
    """Return a question on one line."""
    value = row["value"]
    if row.get("is_value_left_out"):
        text = f"A large question: `runyard inbox show {short_id(row['id'])}` prints it"
    elif row["kind"] == "breakpoint":
        text = f"Continue with {', '.join(map(str, value or [])) or 'the next node'}?"
    elif actions := _actions(value):
        names = ", ".join(str(one.get("name") or one.get("action")) for one in actions)
        text = f"{'Approve' if _can_approve(value) else 'Answer'} {names}?"
    elif isinstance(value, dict):
        head = next((value[name] for name in HEADS if isinstance(value.get(name), str)), None)
        text = head or json_text(value)
    else:
        text = as_text(value)
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_WORDS else f"{line[:SHOWN_WORDS]} …"


def _actions(value: Any) -> list[Row]:
    """Return the tool calls of a question in the shape of `HumanInTheLoopMiddleware` or of `HumanInterrupt`."""
    actions = _batch(value)
    if actions is None:
        requests = value if isinstance(value, list) else [value]
        actions = [one.get("action_request") for one in _objects(requests)]
    return _objects(actions)


def _batch(value: Any) -> list[Any] | None:
    """Return the tool calls of `HumanInTheLoopMiddleware`. LangChain for JavaScript names them in camel case."""
    actions = value.get("action_requests", value.get("actionRequests")) if isinstance(value, dict) else None
    return actions if isinstance(actions, list) else None


def _can_approve(value: Any) -> bool:
    """Return whether a request for tool calls lets a person approve one. A request that names no decision allows all."""
    if _batch(value) is not None:
        reviews = _objects(value.get("review_configs", value.get("reviewConfigs")))
        decisions = [one.get("allowed_decisions", one.get("allowedDecisions")) for one in reviews]
        allowed = [each for some in decisions for each in some or []]
        return not allowed or "approve" in allowed
    configs = _objects([one.get("config") for one in _objects(value if isinstance(value, list) else [value])])
    return not configs or any(config.get("allow_accept") for config in configs)


def _objects(value: Any) -> list[Row]:
    """Return the objects in a list; empty if the value is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _line(row: Row) -> str:
    """Return a question as a line of `--watch`."""
    place = f"{row['deployment_name']}, {row.get('thread_title') or short_id(row['thread_id'])}"
    return printable(f"{when(row['asked_at'])}  {short_id(row['id'])}  {_words(row)}  ({place})")


def _link_state(row: Row, *, is_open: bool = True) -> str:
    """Return a link's state as text: `used TIME`, else its validity. `is_open`: the question can still be answered."""
    if row["used_at"]:
        return f"used {minute(row['used_at'])}"
    return validity(row) if is_open or row["revoked_at"] else "question closed"


def _link_columns(*, is_open: bool) -> tuple[Column, ...]:
    return (
        id_column("Link"),
        Column("For", lambda row: row["label"], folds=True),
        Column("State", lambda row: _link_state(row, is_open=is_open)),
        Column("Created", lambda row: minute(row["created_at"])),
        Column("Created by", lambda row: row["created_by"], only_wide=True),
    )


COLUMNS = (
    id_column("Question"),
    Column("Status", lambda row: Text(row["status"], STYLES.get(row["status"], "dim")), only_wide=True),
    Column("Asks", _words, folds=True),
    Column("Deployment", lambda row: row["deployment_name"]),
    Column("Thread", lambda row: row.get("thread_title") or short_id(row["thread_id"]), folds=True),
    Column("Asked", lambda row: when(row["asked_at"])),
    Column("Started by", lambda row: row.get("asked_by"), only_wide=True),
    Column("Assignee", lambda row: row.get("assignee")),
    Column("Expires", lambda row: when(row.get("expires_at")) or None, only_wide=True),
)
