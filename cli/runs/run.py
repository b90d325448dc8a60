"""`runyard run`: start a run on a deployment and print its stream."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
import typer
from typer import Argument, Option

from cli.client.client import AS_STUDIO
from cli.client.names import UNSUCCESSFUL_RUNS
from cli.commands import Service, command, settings
from cli.deployments.project import is_deployment_name, kept_paths
from cli.deployments.target import NameOrPreview, serving
from cli.errors import FAILED, INTERRUPTED, BadUsage, CommandFailed
from cli.output import Output, as_text, console, json_text, printable
from cli.runs.assistants import find_assistant
from cli.runs.threads import find_thread_id
from cli.runs.transcript import Transcript, error_text

RESULT_FIELDS = ("thread_id", "run_id", "status", "error", "interrupts")  # of a run, that `--json` prints
STREAM_MODES = ["messages-tuple", "updates", "custom"]
WAIT_SECONDS = 2.0  # time without an event after which the command prints why the run waits
NOTE_SECONDS = 5.0
DRAINED = " are drained"  # the end of the reason why runs wait while all runners of their pool drain
WORKERS_HINT = "`runyard workers` shows the pools."
SENT_AS_MESSAGE = "\nThe input had `messages` only. A graph that takes other fields needs them as JSON."

Show = Callable[[str, Any], None]


@command(json_help="Print one JSON object for each event.")
def run(
    service: Service,
    out: Output,
    name: NameOrPreview = None,
    text: str | None = Argument(
        None,
        help="Input of the run: JSON, or text that becomes a message; `-` reads it from stdin.",
        metavar="INPUT",
    ),
    assistant: str | None = Option(
        None,
        "--assistant",
        "-a",
        help="Graph, or assistant: its name, its id or the end of its id. Default: that of the thread, else the only graph.",
        metavar="ASSISTANT",
    ),
    thread: str | None = Option(
        None,
        "--thread",
        "-t",
        help="Thread to continue: its id or the end of its id. Default: a new thread.",
        metavar="ID",
    ),
    resume: str | None = Option(
        None, help="Answer to the question of the thread: JSON or text.", metavar="ANSWER"
    ),
    stream_mode: list[str] | None = Option(
        None,
        "--stream-mode",
        "-m",
        help="Stream mode; may be repeated. Default: messages-tuple, updates, custom.",
        metavar="MODE",
    ),
    subgraphs: bool = Option(False, "--subgraphs", help="Also stream events of subgraphs."),
) -> None:
    """Start a run and print its events as they stream. Ctrl-C cancels the run.

    The command prints tokens as they come, then the changes of each step. A run that stops at a question prints it:
    answer with --thread and --resume.

    Exit codes: 0 the run succeeded or waits for an answer · 1 it failed · 2 wrong usage · 130 Ctrl-C cancelled it.
    """
    if name is not None and text is None and resume is None and not is_deployment_name(name):
        name, text = None, name  # the input alone: the deployment is that of the project in this directory
    body = _body(text, resume, thread)
    with service.open() as client:
        address, target = serving(client, name)
        headers = {**client.headers, **AS_STUDIO}
        with client.at(address) as api:
            thread = find_thread_id(api, thread) if thread else None
            assistant = find_assistant(api, assistant) if assistant else None
    request = RunCommand(assistant, thread, body, stream_mode or STREAM_MODES, subgraphs)
    text_out, notes = console(), console(stderr=True)
    transcript = Transcript(text_out, notes, streams_messages="messages-tuple" in request.stream_mode)
    show: Show = _json_line if out.as_json else transcript.show
    try:
        result = execute(
            address, headers, request, show, lambda note: None if out.as_json else notes.print(note)
        )
    except httpx.HTTPError as error:
        transcript.finish()
        raise CommandFailed(_refusal(error, address)) from error
    transcript.finish()
    if out.as_json:
        _json_line("result", {name: getattr(result, name) for name in RESULT_FIELDS})
    elif result.interrupts:
        for interrupt in result.interrupts:
            notes.print("It waits for an answer:", style="yellow")
            text_out.print(printable(as_text(interrupt.get("value"))))
        command_line = " ".join(["runyard run", *([name] if name else []), "--thread", result.thread_id])
        notes.print(f"Answer with: {command_line} --resume {_answer(result.interrupts)}", markup=False)
    else:
        notes.print(f"Go on with: --thread {result.thread_id}", style="dim")
    if result.was_cancelled:
        raise typer.Exit(INTERRUPTED)
    if result.status in UNSUCCESSFUL_RUNS:
        if out.as_json:
            raise typer.Exit(FAILED)  # the result names the reason
        reason = kept_paths(settings().data_dir, target)(result.error or "")
        failure = f"The run ended as {result.status}. {printable(reason)}".rstrip()
        advice = f"\nIts traceback and log lines: `runyard logs {target}`"
        raise CommandFailed(failure + (SENT_AS_MESSAGE if result.lacks_field else "") + advice)


def _body(text: str | None, resume: str | None, thread: str | None) -> dict[str, Any]:
    """Return the input or the resume command of the run. Raises BadUsage."""
    if resume is not None:
        if thread is None:
            raise BadUsage("--resume answers a question of a thread: name it with --thread.")
        if text is not None:
            raise BadUsage("A run either begins with INPUT or goes on with --resume.")
        # Without `strict_resume`, an answer on a thread without a question would start a run that does nothing.
        return {"command": {"resume": json_or(resume, lambda text: text)}, "strict_resume": True}
    if text == "-":
        text = sys.stdin.read().strip()
    if not text:
        raise BadUsage('Say what to run it with: `runyard run NAME "Hello!"`, or JSON, or - for stdin.')
    value = json_or(text, _message)
    return {"input": value if isinstance(value, dict) else _message(text)}


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _lacks_field(client: Any, assistant: str, body: dict[str, Any], error: str | None) -> bool:
    """Whether the input is only a message and the error is a KeyError for another field of the graph's input."""
    kind, _, key = (error or "").partition(": ")
    if kind != "KeyError" or (body.get("input") or {}).keys() != {"messages"}:
        return False
    with suppress(httpx.HTTPError):
        schema = client.assistants.get_schemas(assistant).get("input_schema") or {}
        return key.strip("'\"") in schema.get("properties", {}).keys() - {"messages"}
    return False


def json_or(text: str, otherwise: Callable[[str], Any]) -> Any:
    """Parse a text as JSON, else return `otherwise(text)`.

    Raises BadUsage for invalid JSON that begins with `{` or `[`: it is a typing mistake, not a message.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("{", "["):
            raise BadUsage(f"This looks like JSON and is not: {error}") from error
        return otherwise(text)


@dataclass(frozen=True)
class RunCommand:
    """The parameters of a run."""

    assistant: str | None
    thread: str | None
    body: dict[str, Any]
    stream_mode: list[str]
    subgraphs: bool


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    thread_id: str
    run_id: str | None
    status: str
    error: str | None
    interrupts: list[dict[str, Any]]
    was_cancelled: bool
    lacks_field: bool


def execute(
    url: str, headers: Mapping[str, str], request: RunCommand, show: Show, note: Callable[[str], None]
) -> RunResult:
    """Start the run and pass each event to `show`. Returns how the run ended. Raises BadUsage and httpx.HTTPError."""
    from langgraph_sdk import get_sync_client  # an import of half a second that other commands do not need

    client = get_sync_client(url=url, api_key=None, headers=dict(headers))
    assistant = request.assistant or _assistant_of(client, request.thread) or _only_graph(client)
    thread_id = request.thread or client.threads.create()["thread_id"]
    run_ids: list[str] = []
    error, was_cancelled = None, False
    wait = threading.Timer(WAIT_SECONDS, lambda: _explain_wait(client, thread_id, run_ids[0], note))
    wait.daemon = True

    def created(run: Any) -> None:
        run_ids.append(run["run_id"])
        wait.start()

    try:
        stream: Any = client.runs.stream(
            thread_id,
            assistant,
            **request.body,
            stream_mode=request.stream_mode,  # type: ignore[arg-type]  the service knows which there are
            stream_subgraphs=request.subgraphs,
            on_disconnect="cancel",  # Ctrl-C before the run's id is known must cancel the run too
            on_run_created=created,
        )
        note(f"{assistant} on thread {thread_id}")
        for part in stream:
            if part.event != "metadata":  # the service sends `metadata` before the run starts
                wait.cancel()
            show(part.event, part.data)
            error = error_text(part.data) if part.event == "error" else error
    except KeyboardInterrupt:
        was_cancelled = True
        if run_ids:
            _cancel(client, thread_id, run_ids[0])
            note("Cancelled.")
    finally:
        wait.cancel()
        if run_ids:
            wait.join(NOTE_SECONDS)  # a note that is being printed must come before the result
    run: Any = client.runs.get(thread_id, run_ids[0]) if run_ids else {"status": "error"}
    interrupts = [] if was_cancelled else _interrupts(client.threads.get(thread_id))
    lacks_field = _lacks_field(client, assistant, request.body, error)
    run_id = run_ids[0] if run_ids else None
    return RunResult(thread_id, run_id, run["status"], error, interrupts, was_cancelled, lacks_field)


def _cancel(client: Any, thread_id: str, run_id: str) -> None:
    """Cancel the run and wait until it has ended. The disconnect of the stream may have cancelled it already."""
    try:
        client.runs.cancel(thread_id, run_id, wait=True)
    except httpx.HTTPStatusError as refusal:
        if refusal.response.status_code != HTTPStatus.NOT_FOUND:
            raise


def _explain_wait(client: Any, thread_id: str, run_id: str, note: Callable[[str], None]) -> None:
    """Print the run's position in the queue and the reason, if it still waits."""
    with suppress(httpx.HTTPError):
        queue = client.runs.get(thread_id, run_id).get("queue")
        if queue:
            is_drained = queue["reason"].endswith(DRAINED)
            hint = "`runyard workers resume WORKER` ends a drain." if is_drained else WORKERS_HINT
            note(f"The run waits, at position {queue['position']}: {queue['reason']}. {hint}")


def _assistant_of(client: Any, thread_id: str | None) -> str | None:
    """Return the assistant of the thread's last run, or None for a new thread or one without a run."""
    if thread_id is None:
        return None
    metadata = client.threads.get(thread_id).get("metadata") or {}
    return metadata.get("assistant_id") or metadata.get("graph_id")


def _only_graph(client: Any) -> str:
    """Return the id of the deployment's only graph. Raises BadUsage if it has several or none."""
    assistants = client.assistants.search(metadata={"created_by": "system"}, limit=100)
    graphs = sorted({assistant["graph_id"] for assistant in assistants})
    if len(graphs) != 1:
        raise BadUsage(f"Name a graph with --assistant: {', '.join(graphs) or 'the deployment has none'}.")
    return graphs[0]


def _interrupts(thread: Any) -> list[dict[str, Any]]:
    if thread["status"] != "interrupted":
        return []
    return [interrupt for task in (thread.get("interrupts") or {}).values() for interrupt in task]


def _answer(interrupts: list[dict[str, Any]]) -> str:
    """Return a template of the answer for `--resume`. With several questions, it is JSON that names each by its id."""
    if len(interrupts) == 1:
        return "ANSWER"
    return shlex.quote(json.dumps({str(one.get("id")): "ANSWER" for one in interrupts}))


def _json_line(event: str, data: Any) -> None:
    typer.echo(json_text({"event": event, "data": data}))


def _refusal(error: httpx.HTTPError, url: str) -> str:
    if not isinstance(error, httpx.HTTPStatusError):
        return f"{url} does not answer ({error or type(error).__name__})."
    try:
        detail = error.response.json()["detail"]
    except (httpx.ResponseNotRead, ValueError, KeyError, TypeError):
        detail = str(error)
    return f"The run was refused ({error.response.status_code}): {detail}"
