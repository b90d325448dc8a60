"""The inbox: the questions of an organization's graphs to people.

A caller sees and answers questions of a deployment with its own authorization as a tool of the platform does: its
handlers decide about the Studio user, a key needs the role `run`, and with `disable_studio_auth` nothing is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import orjson
from flask import Response, jsonify
from marshmallow import ValidationError

from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, RunyardError
from shared.inbox import answers, records
from shared.inbox.records import Criteria, Scope, VisibleThreads
from shared.infra.postgres import Row, connection
from shared.infra.replica import read
from shared.records import COUNT, ID, TEXT, listed, record
from web.deployment_api.inbox import (
    ANSWER,
    ANSWERED,
    ASSIGNEE_LENGTH,
    QuestionCriteria,
    question_page,
    respond_with_answer,
    visible_question,
)
from web.deployment_api.runs.creation import create_run
from web.gate import deployments
from web.gate.addresses import client_address
from web.gate.callers import acting_at, may_use_tools
from web.gate.context import allow, caller, deployment, metadata_of, settings, user_document
from web.gate.idempotency import once
from web.schemas import fields
from web.schemas.operations import RouteGroup

log = logging.getLogger(__name__)

bp = RouteGroup("inbox", section="Inbox")

MAX_BATCH = 100
R = TypeVar("R")
QUESTIONS = record("ListedQuestions", resources=listed(records.LISTED.schema), offset=COUNT, total=COUNT)
RESULT = record("AnswerResult", ("run_id", "error"), id=ID, run_id=ID, error=TEXT)
RESULTS = record("AnswerResults", results=listed(RESULT))


class QueryFilter(fields.Filter):
    """A filter in a query string, as JSON."""

    json_schema: ClassVar[dict[str, Any]] = {"type": "string", "contentMediaType": "application/json"}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValidationError([self.type_rule]) from error
        return super()._deserialize(parsed, attr, data, **kwargs)


class QuestionQuery(QuestionCriteria, fields.Page):
    deployment = fields.StrictString(max_length=255)
    metadata = QueryFilter()
    limit = fields.QueryInteger(minimum=0, maximum=fields.MAX_PAGE, load_default=20)


class QuestionPatch(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"assignee": "ann"}

    assignee = fields.StrictString(min_length=1, max_length=ASSIGNEE_LENGTH, allow_none=True)
    snoozed_until = fields.TimeField(allow_none=True)


class AnswerOrAction(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"answer": True}

    answer = fields.AnyJson(metadata={"description": f"{ANSWER}. Required without `action`"})
    action = fields.OneOf("answer", "cancel", load_default="answer")


class AnswerMany(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"ids": ["0198c0de-0000-7000-8000-000000000000"], "answer": True}

    ids = fields.ListOf(fields.UuidField(), required=True, max_items=MAX_BATCH)
    answer = fields.AnyJson(required=True, metadata={"description": ANSWER})


@bp.operation(
    "GET /v2/inbox",
    "List the questions of all deployments",
    role="read",
    slow=True,
    query=QuestionQuery,
    answer=QUESTIONS,
)
def list_questions(query: dict[str, Any]) -> Response:
    """List questions. `deployment` is a deployment's name, and `metadata` a JSON object that the thread's metadata holds.

    Open and snoozed questions are listed oldest first, ended ones by the time of their end, latest first, and all
    questions newest first. `total` is exact up to 10,000. With `limit=0` only the total is
    counted. `offset` in the response is the offset of the next page.

    A `value` of more than 64 KiB is null, and `is_value_left_out` true: `GET /v2/inbox/{id}` returns it.

    A deployment with its own authorization is included for keys with the role `run`, as far as its handler of
    `threads.search` lets the Studio user, and not at all if it sets `disable_studio_auth`.
    """
    limit, offset, name = query.pop("limit"), query.pop("offset"), query.pop("deployment", None)
    criteria = Criteria(**query)
    return question_page(_scope(name, criteria), criteria, limit=limit, offset=offset, shown=records.LISTED)


def _scope(name: str | None, criteria: Criteria) -> Scope:
    """Return the caller's view of its organization's questions. Calls the handlers of deployments with questions."""
    rows = read(records.deployments_with_questions, caller().organization_id, name)
    visible = [row["id"] for row in rows if not row["has_user_code"]]
    threads = {}
    for row in rows:
        serving = deployments.by_id(row["id"]) if row["has_user_code"] else None
        if serving is None or not may_use_tools(caller(), serving):
            continue
        auth = serving.user_code.auth
        if auth is not None and auth.decides("threads", "search"):
            _, total = read(records.search, Scope([serving.id]), criteria, limit=0, offset=0)
            shown = _visible_threads(serving) if total else None
            if shown is None:
                continue
            threads[serving.id] = shown
        visible.append(serving.id)
    return Scope(visible, threads)


def _visible_threads(serving: DeploymentRef) -> VisibleThreads | None:
    """Return the threads that the Studio user may see. None if the handler shows none, or does not answer."""
    try:
        with acting_at(serving):
            granted = allow("threads", "search", metadata={})
            return VisibleThreads(granted.filter, metadata_of(granted))
    except RunyardError as error:
        log.info("deployment %s: its questions are not listed: %s", serving.id, error.message)
        return None


def act_on(question_id: UUID, act: Callable[[Row], R], *, action: str = "read") -> R:
    """Call `act` with a question that the caller may see, at its deployment. Raises NotFound, Denied."""
    with connection() as conn:
        row = records.get(conn, question_id, organization_id=caller().organization_id)
    serving = deployments.by_id(row["deployment_id"])
    if serving is None or not may_use_tools(caller(), serving):
        raise records.missing()
    with acting_at(serving):
        return act(visible_question(question_id, action))


@bp.operation(
    "GET /v2/inbox/<question_id>", "Get a question", role="read", answer=records.RECORD.schema, errors=(404,)
)
def get_question(question_id: UUID) -> Response:
    return act_on(question_id, lambda row: jsonify(records.RECORD.show(row)))


@bp.operation(
    "PATCH /v2/inbox/<question_id>",
    "Assign or snooze a question",
    role="run",
    body=QuestionPatch,
    answer=records.RECORD.schema,
    errors=(404, 409),
)
def change_question(question_id: UUID, body: dict[str, Any]) -> Response:
    """Change the assignee, or the time until which the question is listed as snoozed. Null removes either.

    Returns 409 if the question is not open.
    """

    def change(row: Row) -> Response:
        with connection() as conn:
            records.change(conn, question_id, body)
            return jsonify(records.RECORD.show(records.get(conn, question_id)))

    return act_on(question_id, change, action="update")


@bp.operation(
    "POST /v2/inbox/<question_id>/answer",
    "Answer a question",
    role="run",
    body=AnswerOrAction,
    answer=ANSWERED,
    idempotent=True,
    errors=(400, 404, 409, 424, 429, 504),
)
def answer_question(question_id: UUID, body: dict[str, Any]) -> Response:
    """Create the run that resumes the question's thread with the answer. Other questions of the thread stay open.

    The run has the configuration of the run that asked. Returns 409 if the question is not open any more, and says who
    answered it.

    With `{"action": "cancel"}` no run is created. The thread's state is updated as the node `__end__`: its open tasks are
    dropped, it becomes idle and keeps its values, and all of its questions are closed. `run_id` is then null.
    """
    if body["action"] == "cancel":
        if "answer" in body:
            raise Invalid("not allowed with the action cancel", loc=("body", "answer"))
        return act_on(question_id, _cancel, action="update")
    if "answer" not in body:
        raise Invalid("this field is required", loc=("body", "answer"), kind="missing")
    return act_on(question_id, lambda row: respond_with_answer(row, body["answer"]))


def _cancel(row: Row) -> Response:
    question_id, address = row["question_id"], client_address(settings())
    with connection() as conn:
        once(conn)  # answers a repeated request before any call to a graph host
    answers.cancel(deployment(), question_id, key_id=caller().key_id, address=address, user=user_document())
    with connection() as conn:
        keep = once(conn)
        return keep(jsonify(question=records.RECORD.show(records.get(conn, question_id)), run_id=None))


@bp.operation(
    "POST /v2/inbox/answer",
    "Give several questions the same answer",
    role="run",
    slow=True,
    body=AnswerMany,
    answer=RESULTS,
)
def answer_questions(body: dict[str, Any]) -> Response:
    """Answer each question as `POST /v2/inbox/{id}/answer` does. A question that cannot be answered has an `error`."""
    return jsonify(results=[_answer_one(id, body["answer"]) for id in dict.fromkeys(body["ids"])])


def _answer_one(question_id: UUID, answer: Any) -> dict[str, Any]:
    try:
        created = act_on(question_id, lambda row: create_run(answers.answer_request(row, answer)))
    except RunyardError as error:
        return {"id": question_id, "error": error.message}
    return {"id": question_id, "run_id": created.run_id}
