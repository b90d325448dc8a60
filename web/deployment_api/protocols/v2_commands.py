"""Commands of protocol v2 over HTTP: the parameters, the result, the answers and the error codes of each.

A refused command is answered with status 200 and an error code. Only a body that is not a command is a 400.
`shared/protocol/` determines what a command does to a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify

from shared.errors import Denied, Forbidden, Invalid, NotFound, Refused
from shared.infra.postgres import connection
from shared.protocol import events, lifecycle, resume, stream
from shared.protocol.lifecycle import NoSuchRun
from shared.protocol.resume import NoSuchInterrupt, NotStoredYet
from shared.records import ANYTHING, COUNT, OBJECT, TEXT, one_of, record
from shared.runs.create import Created
from shared.runs.drafts import RunRequest
from shared.runs.read import PROTOCOL, STRATEGIES
from shared.user_code import filters
from web.deployment_api.assistants import CONFIG_BYTES, METADATA_BYTES, ConfigField
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.run_request import Goto, Update, of_command
from web.gate.context import allow, deployment
from web.http.errors import status_of
from web.schemas import fields
from web.schemas.openapi import ERROR
from web.schemas.openapi_examples import GRAPH, MESSAGES
from web.schemas.operations import IdText, Role, RouteGroup
from web.schemas.validation import BAD_JSON, checked, parse_body, raw_body, uuid_path

ERROR_CODES = (
    "invalid_argument", "unknown_command", "unknown_error", "no_such_run", "no_such_subscription",
    "no_such_namespace", "no_such_interrupt", "no_such_checkpoint", "permission_denied", "not_supported",
)  # fmt: skip

SUCCESS = record(
    "CommandSuccess",
    type=one_of("success"),
    id={"type": "integer"},
    result=OBJECT,
    meta=record(applied_through_seq=COUNT),
)
REFUSED = record(
    "CommandRefusal", type=one_of("error"), id=ANYTHING, error=one_of(*ERROR_CODES), message=TEXT
)
ANSWER: dict[str, Any] = {"anyOf": [SUCCESS, REFUSED]}
NO_COMMAND: dict[str, Any] = {"anyOf": [REFUSED, ERROR]}


def success_answer(id: int, result: Mapping[str, Any], through: int) -> dict[str, Any]:
    """Return a success. `through` is the number of the thread's newest event before those that the command causes."""
    return {"type": "success", "id": id, "result": result, "meta": {"applied_through_seq": through}}


def error_answer(id: Any, code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "id": id, "error": code, "message": message}


# Role that a key needs to send commands, and to wait for a thread that a command has yet to create.
COMMAND_ROLE: Role = "run"

bp = RouteGroup(
    "protocol_commands",
    section="Protocol v2",
    switches=("disable_threads", "disable_runs"),
)

# The end of a run is stored a moment after its interrupts appear in the event log: usually after 20 ms, on a busy
# machine after up to some seconds.
STORED_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.2

# Stream options of a run that a command creates: they serve readers of this protocol and of the older event streams.
STREAMED: dict[str, Any] = {
    "stream_mode": ["values", "updates", "messages-tuple", "custom", PROTOCOL],
    "stream_subgraphs": True,
    "stream_resumable": True,
    "durability": "async",
}


class ProtocolCommand(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "id": 1,
        "method": "run.start",
        "params": {"assistant_id": GRAPH, "input": MESSAGES},
    }

    id = fields.StrictInteger(required=True)
    method = fields.StrictString(required=True)
    params = fields.JsonObject()


class RunStart(fields.Schema):
    assistant_id = fields.StrictString(required=True, min_length=1)
    input = fields.AnyJson()
    config = ConfigField(max_bytes=CONFIG_BYTES, allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)
    multitask_strategy = fields.OneOf(*STRATEGIES, allow_none=True)
    multitaskStrategy = fields.OneOf(*STRATEGIES, allow_none=True)


class InterruptAnswer(fields.Schema):
    interrupt_id = fields.StrictString(required=True, min_length=1)
    response = fields.AnyJson(load_default=None)


class InputRespond(fields.Schema):
    interrupt_id = fields.StrictString(min_length=1)
    response = fields.AnyJson(load_default=None)
    responses = fields.ListOf(fields.Nested(InterruptAnswer), not_empty=True)
    update = Update(allow_none=True)
    goto = Goto(allow_none=True)
    config = ConfigField(max_bytes=CONFIG_BYTES, allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)
    strict_resume = fields.StrictBoolean(allow_none=True)


class GetTree(fields.Schema):
    run_id = fields.UuidField(allow_none=True)


@dataclass(frozen=True, slots=True)
class CommandDone:
    """The result of a command; `through` is the number of the thread's newest event before those it causes."""

    result: Mapping[str, Any]
    through: int


class CommandRefused(Exception):
    """The refusal of a command, with an error code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@bp.operation(
    "POST /threads/<thread_id>/commands",
    "Execute a command of protocol v2",
    role=COMMAND_ROLE,
    body=ProtocolCommand,
    answer=ANSWER,
    errors=(400,),
    refusals={400: NO_COMMAND},
)
def command(thread_id: IdText) -> Response:
    """Execute `run.start` (which creates a missing thread), `input.respond` or `agent.getTree`."""
    sent = _sent()
    try:
        loaded = checked(ProtocolCommand, sent if isinstance(sent, dict) else {}, "body")
    except Invalid as error:
        response = jsonify(error_answer(id_of(sent), "invalid_argument", error.message))
        response.status_code = 400
        return response
    return jsonify(execute(thread_id, loaded))


def _sent() -> Any:
    try:
        return parse_body(raw_body())
    except Invalid as error:
        if error.message == BAD_JSON:
            error.status = 400
        raise


def id_of(sent: Any) -> Any:
    """Return the id in a body that is not a valid command, whatever its type, or None."""
    return sent.get("id") if isinstance(sent, dict) else None


def execute(thread_id: str, command: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a command and return the answer to it, a success or an error."""
    try:
        done = _result(thread_id, command["method"], command.get("params", {}))
    except CommandRefused as refusal:
        return error_answer(command["id"], refusal.code, refusal.message)
    return success_answer(command["id"], done.result, done.through)


def _result(thread_id: str, method: str, params: Mapping[str, Any]) -> CommandDone:
    """Return the result of a command. Raises CommandRefused.

    Invalid parameters have the code `invalid_argument`. The same error class has other codes if a rule raises it, so each
    method is prepared first and executed afterwards.
    """
    if method in NOT_SUPPORTED:
        raise CommandRefused("not_supported", f"{method} is not supported here")
    if method not in METHODS:
        raise CommandRefused("unknown_command", f"Unknown command '{method[:100]}'")
    schema, prepare = METHODS[method]
    try:
        key = uuid_path(thread_id, "thread_id", message="Invalid thread ID")
    except Invalid as error:
        raise _refusal(error) from error
    try:
        loaded = checked(schema, params, "params")
        prepared = prepare(key, loaded)
    except Invalid as error:
        raise CommandRefused("invalid_argument", error.message) from error
    try:
        return prepared()
    except Refused as error:
        raise _refusal(error) from error
    except Denied as error:
        raise _denial(error) from error


def _denial(error: Denied) -> Exception:
    """Return the error of a command for a refusal by the deployment's authorization.

    A failure of the authorization itself (5xx) is returned as it is: it fails the request, not the command.
    """
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return error
    code = "no_such_run" if error.status == HTTPStatus.NOT_FOUND else "permission_denied"
    return CommandRefused(code, error.message)


CODE_OF_ERROR: dict[type[Refused], str] = {
    NoSuchRun: "no_such_run",
    NoSuchInterrupt: "no_such_interrupt",
    Forbidden: "permission_denied",
}


def _refusal(error: Refused) -> CommandRefused:
    """Return the error of a command for a refusal by a rule.

    A refusal without a code of its own becomes `unknown_error`, with the HTTP status that it has elsewhere.
    """
    code = next((code for kind, code in CODE_OF_ERROR.items() if isinstance(error, kind)), None)
    if code is not None:
        return CommandRefused(code, error.message)
    status = 422 if isinstance(error, NotFound) else status_of(error)
    return CommandRefused("unknown_error", f"{status}: {error.message}")


Prepared = Callable[[], CommandDone]  # executes a command whose parameters are valid


def _run_start(thread_id: UUID, params: dict[str, Any]) -> Prepared:
    older = params.pop("multitaskStrategy", None)
    params["multitask_strategy"] = params.get("multitask_strategy") or older
    rule = resume.ResumeOrStart(thread_id)
    request = of_command(params, thread_id, **STREAMED, if_not_exists="create", rule=rule)
    return lambda: _start_run(request)


def _start_run(request: RunRequest) -> CommandDone:
    created = create_run(request)
    return CommandDone({"run_id": str(created.run_id)}, _before(created))


def _input_respond(thread_id: UUID, params: dict[str, Any]) -> Prepared:
    one = {"interrupt_id": params.pop("interrupt_id", None), "response": params.pop("response")}
    several = params.pop("responses", None) or [one]
    responses = {each["interrupt_id"]: each["response"] for each in several}
    if None in responses:
        raise Invalid("interrupt_id: this field is required")
    if len(responses) < len(several):
        raise Invalid("responses: an interrupt can be answered only once")
    params["command"] = {name: params.pop(name, None) for name in ("update", "goto")}
    rule = resume.AnswerInterrupts(thread_id, responses)
    request = of_command({**params, "assistant_id": ""}, thread_id, **STREAMED, rule=rule)
    return lambda: _respond(request)


def _respond(request: RunRequest) -> CommandDone:
    try:
        created = create_run(request)
    except NotStoredYet as refusal:
        if not resume.has_published(refusal.run_id, refusal.ids):
            raise
        _wait_for_end(refusal.run_id)
        created = create_run(request)
    return CommandDone({}, _before(created))


def _wait_for_end(run_id: UUID) -> None:
    """Wait until the end of a run is stored, for at most STORED_SECONDS."""
    give_up_at, pause = time.monotonic() + STORED_SECONDS, FIRST_PAUSE_SECONDS
    while time.monotonic() < give_up_at:
        with connection() as conn:
            if not resume.is_running(conn, run_id):
                return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _before(created: Created) -> int:
    return events.event_number(created.row["created_seq"])


def _get_tree(thread_id: UUID, params: dict[str, Any]) -> Prepared:
    def read_tree() -> CommandDone:
        granted = allow("threads", "read", thread_id=thread_id)
        with connection() as conn:
            unknown = NoSuchRun("Run not found") if params.get("run_id") else lifecycle.no_run(thread_id)
            filters.require_thread(conn, deployment().id, thread_id, granted.filter, error=unknown)
            root = lifecycle.tree_of_run(conn, deployment().id, thread_id, params.get("run_id"))
            return CommandDone({"tree": root}, stream.newest(conn, deployment().id, thread_id))

    return read_tree


METHODS: dict[str, tuple[type[fields.Schema], Callable[[UUID, dict[str, Any]], Prepared]]] = {
    "run.start": (RunStart, _run_start),
    "input.respond": (InputRespond, _input_respond),
    "agent.getTree": (GetTree, _get_tree),
}
# Subscriptions need a WebSocket. The others are in the protocol's types, but no server implements them.
NOT_SUPPORTED = frozenset(
    {
        "subscription.subscribe",
        "subscription.unsubscribe",
        "subscription.reconnect",
        "state.get",
        "state.listCheckpoints",
        "state.fork",
        "input.inject",
    }
)
