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
from typing import Annotated, Any

import httpx
import typer

from cli.api.client import AS_STUDIO
from cli.api.statuses import UNSUCCESSFUL_RUNS
from cli.deployments.deployments import NameOrPreview
from cli.deployments.project import kept_paths
from cli.deployments.served import serving
from cli.errors import FAILED, INTERRUPTED, BadUsage, CommandFailed
from cli.options import Key, Org, Url, open_client, sentences, settings
from cli.output import console, printable
from cli.runs.transcript import Transcript, as_text, error_text

STREAM_MODES = ["messages-tuple", "updates", "custom"]
WAIT_SECONDS = 2.0  # time without an event after which the command prints why the run waits
NOTE_SECONDS = 5.0
DRAINED = " are drained"  # the end of the reason why runs wait while all runners of their pool drain
WORKERS_HINT = "`runyard workers` shows the pools."
SENT_AS_MESSAGE = "\nThe input had `messages` only. A graph that takes other fields needs them as JSON."

Show = Callable[[str, Any], None]


def command(
    name: NameOrPreview = None,
    said: Annotated[
        str | None,
        typer.Argument(
            help="Input of the run: JSON, or text that becomes a message; `-` reads it from stdin.",
            metavar="INPUT",
            show_default=False,
        ),
    ] = None,
    assistant: Annotated[
        str | None,
        typer.Option(
            "--assistant",
            "-a",
            help="Id of an assistant or of a graph. Default: the only graph.",
            metavar="ID",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread to continue. Default: a new thread.", metavar="ID"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", help="Answer to the question of the thread: JSON or text.", metavar="ANSWER"
        ),
    ] = None,
    stream_mode: Annotated[
        list[str] | None,
        typer.Option(
            "--stream-mode",
            "-m",
            help="Stream mode; may be repeated. Default: messages-tuple, updates, custom.",
            metavar="MODE",
        ),
    ] = None,
    subgraphs: Annotated[bool, typer.Option("--subgraphs", help="Also stream events of subgraphs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each event.")] = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Start a run and print its events as they stream. Ctrl-C cancels the run.

    The command prints tokens as they come, then the changes of each step. A run that stops at a question prints it:
    answer with --thread and --resume.

    Exit codes: 0 the run succeeded or waits for an answer · 1 it failed · 2 wrong usage · 130 Ctrl-C cancelled it.
    """
    with sentences(as_json=as_json):
        body = _body(said, resume, thread)
        with open_client(url, api_key, org) as client:
            address, target = serving(client, name)
            headers = {**client.headers, **AS_STUDIO}
        request = RunCommand(assistant, thread, body, stream_mode or STREAM_MODES, subgraphs)
        out, notes = console(), console(stderr=True)
        transcript = Transcript(out, notes, streams_messages="messages-tuple" in request.stream_mode)
        show: Show = _json_line if as_json else transcript.show
        try:
            ended = execute(
                address, headers, request, show, lambda text: None if as_json else notes.print(text)
            )
        except httpx.HTTPError as error:
            transcript.finish()
            raise CommandFailed(_refusal(error, address)) from error
        transcript.finish()
        if as_json:
            _json_line("result", ended.record)
        elif ended.interrupts:
            for interrupt in ended.interrupts:
                notes.print("It waits for an answer:", style="yellow")
                out.print(printable(as_text(interrupt.get("value"))))
            where = " ".join(["runyard run", *([name] if name else []), "--thread", str(ended.thread_id)])
            notes.print(f"Answer with: {where} --resume {_answer(ended.interrupts)}", markup=False)
        else:
            notes.print(f"Go on with: --thread {ended.thread_id}", style="dim")
        if ended.was_cancelled:
            raise typer.Exit(INTERRUPTED)
        if ended.status in UNSUCCESSFUL_RUNS:
            if as_json:
                raise typer.Exit(FAILED)  # the result names the reason
            reason = kept_paths(settings().data_dir, target)(ended.error or "")
            failure = f"The run ended as {ended.status}. {printable(reason)}".rstrip()
            advice = f"\nIts traceback and log lines: `runyard logs {target}`"
            raise CommandFailed(failure + (SENT_AS_MESSAGE if ended.lacks_field else "") + advice)


def _body(said: str | None, resume: str | None, thread: str | None) -> dict[str, Any]:
    """Return the input or the resume command of the run. Raises BadUsage."""
    if resume is not None:
        if thread is None:
            raise BadUsage("--resume answers a question of a thread: name it with --thread.")
        if said is not None:
            raise BadUsage("A run either begins with INPUT or goes on with --resume.")
        # Without `strict_resume`, an answer on a thread without a question would start a run that does nothing.
        return {"command": {"resume": _json_or(resume, lambda text: text)}, "strict_resume": True}
    if said == "-":
        said = sys.stdin.read().strip()
    if not said:
        raise BadUsage('Say what to run it with: `runyard run NAME "Hello!"`, or JSON, or - for stdin.')
    found = _json_or(said, _message)
    return {"input": found if isinstance(found, dict) else _message(said)}


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


def _json_or(text: str, otherwise: Callable[[str], Any]) -> Any:
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
class Ended:
    """The result of a run."""

    thread_id: str
    run_id: str | None
    status: str
    error: str | None
    interrupts: list[dict[str, Any]]
    was_cancelled: bool = False
    lacks_field: bool = False

    @property
    def record(self) -> dict[str, Any]:
        return {
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "status": self.status,
            "error": self.error,
            "interrupts": self.interrupts,
        }


def execute(
    url: str, headers: Mapping[str, str], request: RunCommand, show: Show, note: Callable[[str], None]
) -> Ended:
    """Start the run and pass each event to `show`. Returns how the run ended. Raises BadUsage and httpx.HTTPError."""
    from langgraph_sdk import get_sync_client  # an import of half a second that other commands do not need

    client = get_sync_client(url=url, api_key=None, headers=dict(headers))
    assistant = request.assistant or _only_graph(client)
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
            try:
                client.runs.cancel(thread_id, run_ids[0], wait=True)
            except httpx.HTTPStatusError as refusal:
                if refusal.response.status_code != HTTPStatus.NOT_FOUND:
                    raise
                # The run has ended: the disconnect of the stream may have cancelled it.
            note("Cancelled.")
    finally:
        wait.cancel()
        if run_ids:
            wait.join(NOTE_SECONDS)  # a note that is being printed must come before the result
    run: Any = client.runs.get(thread_id, run_ids[0]) if run_ids else {"status": "error"}
    interrupts = [] if was_cancelled else _interrupts(client.threads.get(thread_id))
    run_id = run_ids[0] if run_ids else None
    return Ended(
        thread_id,
        run_id,
        run["status"],
        error,
        interrupts,
        was_cancelled=was_cancelled,
        lacks_field=_lacks_field(client, assistant, request.body, error),
    )


def _explain_wait(client: Any, thread_id: str, run_id: str, note: Callable[[str], None]) -> None:
    """Print the run's position in the queue and the reason, if it still waits."""
    with suppress(httpx.HTTPError):
        queue = client.runs.get(thread_id, run_id).get("queue")
        if queue:
            is_drained = queue["reason"].endswith(DRAINED)
            hint = "`runyard workers resume WORKER` ends a drain." if is_drained else WORKERS_HINT
            note(f"The run waits, at position {queue['position']}: {queue['reason']}. {hint}")


def _only_graph(client: Any) -> str:
    """Return the id of the deployment's only graph. Raises BadUsage if it has several or none."""
    found = client.assistants.search(metadata={"created_by": "system"}, limit=100)
    graphs = sorted({assistant["graph_id"] for assistant in found})
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
    typer.echo(json.dumps({"event": event, "data": data}, ensure_ascii=False))


def _refusal(error: httpx.HTTPError, url: str) -> str:
    if not isinstance(error, httpx.HTTPStatusError):
        return f"{url} does not answer ({error or type(error).__name__})."
    try:
        detail = error.response.json()["detail"]
    except (httpx.ResponseNotRead, ValueError, KeyError, TypeError):
        detail = str(error)
    return f"The run was refused ({error.response.status_code}): {detail}"
