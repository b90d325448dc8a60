"""Questions of a deployment's graphs to people, for the users of its own authorization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.errors import NotFound
from shared.inbox import answers, records
from shared.inbox.records import Criteria, QuestionStatus, Scope, VisibleThreads
from shared.infra.postgres import Row, connection
from shared.infra.replica import read
from shared.records import COUNT, ID, Record, listed, record
from shared.runs.create import Created
from shared.user_code import filters
from web.deployment_api.runs.creation import create_run
from web.gate.context import allow, deployment, metadata_of, unchecked_deployment
from web.gate.idempotency import once
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("deployment_inbox", section="Inbox", switches=("disable_runs",))

QUESTIONS = record("Questions", resources=listed(records.RECORD.schema), offset=COUNT, total=COUNT)
ANSWERED = record("AnsweredQuestion", question=records.RECORD.schema, run_id=ID)
ASSIGNEE_LENGTH = 255
ANSWER = "The value that `interrupt` returns. Null at a breakpoint"


class QuestionCriteria(fields.Schema):
    status = fields.OneOf(*map(str, QuestionStatus), records.ALL, load_default=str(QuestionStatus.OPEN))
    assistant_id = fields.UuidField()
    assignee = fields.StrictString(max_length=ASSIGNEE_LENGTH)
    asked_before = fields.TimeField()
    asked_after = fields.TimeField()


class QuestionSearch(QuestionCriteria):
    example: ClassVar[dict[str, Any]] = {"status": "open", "limit": 10}

    metadata = fields.Filter(metadata={"description": "Metadata of the thread"})
    limit = fields.StrictInteger(minimum=0, maximum=fields.MAX_PAGE, load_default=20)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)


class Answer(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"answer": True}

    answer = fields.AnyJson(required=True, metadata={"description": ANSWER})


@bp.operation(
    "POST /inbox/search",
    "Search the questions of a deployment",
    role="read",
    slow=True,
    body=QuestionSearch,
    answer=QUESTIONS,
)
def search_questions(body: dict[str, Any]) -> Response:
    """List questions of threads that the caller may see: the handler of `threads.search` decides.

    Open and snoozed questions are listed oldest first, ended ones by the time of their end, latest first, and all
    questions newest first. `offset` in the response is the offset of the next page.
    """
    limit, offset = body.pop("limit"), body.pop("offset")
    granted = allow("threads", "search", metadata=body.get("metadata", {}), limit=limit, offset=offset)
    if metadata := metadata_of(granted):
        body["metadata"] = metadata
    scope = Scope([deployment().id], {deployment().id: VisibleThreads(granted.filter)})
    return question_page(scope, Criteria(**body), limit=limit, offset=offset)


@bp.operation(
    "POST /inbox/<question_id>/answer",
    "Answer a question of a deployment",
    role="run",
    body=Answer,
    answer=ANSWERED,
    idempotent=True,
    errors=(400, 404, 409, 429),
)
def answer_question(question_id: UUID, body: dict[str, Any]) -> Response:
    """Create the run that resumes the question's thread with the answer. Other questions of the thread stay open.

    The run has the configuration of the run that asked. Returns 409 if the question is not open any more, and says who
    answered it. The handlers of `threads.read` and `threads.create_run` decide.
    """
    return respond_with_answer(visible_question(question_id), body["answer"])


def question_page(
    scope: Scope, criteria: Criteria, *, limit: int, offset: int, shown: Record = records.RECORD
) -> Response:
    rows, total = read(records.search, scope, criteria, limit=limit, offset=offset, columns=shown.select)
    resources = [shown.show(row) for row in rows]
    return jsonify(resources=resources, offset=offset + len(rows), total=total)


def visible_question(question_id: UUID, action: str = "read") -> Row:
    """Return a question of the current deployment on whose thread the caller may do this. Raises NotFound, Denied."""
    row = _find(question_id)
    granted = allow("threads", action, thread_id=question_id if row is None else row["thread_id"])
    if row is None:
        raise records.missing()
    with connection() as conn:
        filters.require_thread(
            conn, deployment().id, row["thread_id"], granted.filter, error=records.missing()
        )
    return row


def _find(question_id: UUID) -> Row | None:
    with connection() as conn:
        try:
            row = records.get(conn, question_id)
        except NotFound:
            return None
    return row if row["deployment_id"] == unchecked_deployment().id else None


def respond_with_answer(row: Row, answer: Any) -> Response:
    """Create the run that answers a question, under the idempotency key of the current request, if it has one."""
    part = _AnswerResponse(row["question_id"])
    create_run(answers.answer_request(row, answer), part=part)
    return part.response


class _AnswerResponse:
    """The response to an answer, which is stored in the transaction that creates the run."""

    response: Response

    def __init__(self, question_id: UUID) -> None:
        self._question_id = question_id

    def begin(self, conn: Connection) -> None:
        self._keep = once(conn)

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        question = records.RECORD.show(records.get(conn, self._question_id))
        self.response = self._keep(jsonify(question=question, run_id=created[0].run_id))
