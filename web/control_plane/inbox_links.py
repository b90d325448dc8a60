"""Links for answers without an account: create, list and revoke them, and read and answer a question by a link.

The routes for holders of a link are public. The token is in the body, since logs contain addresses. An unknown token
counts as a failed authentication of the client's address.
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.audit import Action
from shared.inbox import links
from shared.infra.postgres import Row, connection
from shared.records import ID, TEXT_OR_NULL, TIME, record
from web.control_plane.inbox import act_on
from web.deployment_api.inbox import Answer
from web.gate import limits
from web.gate.addresses import client_address
from web.gate.audit import record_action
from web.gate.context import caller, configured_url, deployment, settings
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load

bp = RouteGroup("inbox_links", section="Inbox")

MIN_SECONDS, MAX_SECONDS, DEFAULT_SECONDS = 60, 30 * 86_400, 7 * 86_400
MAX_LABEL = 200
PAGE = "/o/answer#"  # the console's page for holders of a link; browsers send no fragment to servers
CREATED = record(
    "CreatedLink", id=ID, url={"type": "string", "format": "uri"}, expires_at=TIME, label=TEXT_OR_NULL
)
EXAMPLE_TOKEN = "dGhpcyBpcyBhIHRva2VuIG9mIDI1NiByYW5kb20gYml0cw"


class LinkCreate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"label": "Ann", "expires_in_seconds": 86_400}

    expires_in_seconds = fields.StrictInteger(
        minimum=MIN_SECONDS, maximum=MAX_SECONDS, load_default=DEFAULT_SECONDS
    )
    label = fields.StrictString(
        min_length=1,
        max_length=MAX_LABEL,
        pattern=r"[^\x00-\x1f\x7f]+",
        allow_none=True,
        load_default=None,
        metadata={
            "description": "For whom the link is. The holder sees it, and the answer is recorded with it"
        },
    )


class LinkToken(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"token": EXAMPLE_TOKEN}

    token = fields.StrictString(required=True, min_length=1, max_length=200)


class LinkAnswer(LinkToken, Answer):
    example: ClassVar[dict[str, Any]] = {"token": EXAMPLE_TOKEN, "answer": True}

    version = fields.StrictString(
        max_length=100,
        allow_none=True,
        load_default=None,
        metadata={"description": "The version of the question that the person has read"},
    )


@bp.operation(
    "POST /v2/inbox/<question_id>/link",
    "Create a link that answers a question",
    role="run",
    body=LinkCreate,
    answer=CREATED,
    status=201,
    errors=(404, 409),
)
def create_link(question_id: UUID, body: dict[str, Any]) -> tuple[Response, int]:
    """Create a link for a person without an account. Its URL is returned only once.

    Anyone who has the URL can read the question and answer it once, until the link expires or is revoked, or until the
    question is answered elsewhere.
    """

    def create(row: Row) -> Response:
        with connection() as conn:
            link, token = links.create(
                conn,
                question_id,
                key_id=caller().key_id,
                seconds=body["expires_in_seconds"],
                label=body["label"],
            )
            _record(conn, Action.QUESTION_LINKED, row, link["link_id"], label=body["label"])
        shown = links.RECORD.show(link)
        url = f"{configured_url()}{PAGE}{token}"
        return jsonify(id=shown["id"], url=url, expires_at=shown["expires_at"], label=shown["label"])

    return act_on(question_id, create, action="update"), 201


@bp.operation(
    "GET /v2/inbox/<question_id>/links",
    "List the links of a question, oldest first",
    role="read",
    answer=links.RECORD.schema,
    many=True,
    errors=(404,),
)
def list_links(question_id: UUID) -> Response:
    """List the links of a question, with the time at which each was used or revoked. Their URLs are not stored."""

    def show(row: Row) -> Response:
        with connection() as conn:
            return jsonify([links.RECORD.show(link) for link in links.list_all(conn, question_id)])

    return act_on(question_id, show)


@bp.operation("DELETE /v2/inbox/links/<link_id>", "Revoke a link", role="run", status=204, errors=(404,))
def revoke_link(link_id: UUID) -> None:
    """Revoke a link. Revoking it again has no effect, nor has revoking a link that was used."""
    with connection() as conn:
        question_id = links.question_of(conn, caller().organization_id, link_id)

    def revoke(row: Row) -> None:
        with connection() as conn:
            if links.revoke(conn, link_id):
                _record(conn, Action.QUESTION_UNLINKED, row, link_id)

    act_on(question_id, revoke, action="update")


def _record(conn: Connection, action: Action, row: Row, link_id: UUID, **detail: Any) -> None:
    question = {"question_id": row["question_id"], "link_id": link_id}
    record_action(conn, action, deployment().name, deployment_id=row["deployment_id"], **question, **detail)


@bp.operation(
    "POST /v2/inbox/link/question",
    "Get the question of a link",
    role="open",
    body=LinkToken,
    answer=links.QUESTION.schema,
    errors=(404, 410, 413, 429),
)
def get_linked_question() -> Response:
    """Return the question of a link. `expires_at` is the end of the time for an answer.

    Returns 410 if the link is expired, revoked or used, or if the question needs no answer any more.
    """
    with limits.open_to_anyone():
        token = load(LinkToken)["token"]
        with connection() as conn:
            link, _ = links.find(conn, token)
        return jsonify(links.QUESTION.show(link))


@bp.operation(
    "POST /v2/inbox/link/answer",
    "Answer the question of a link",
    role="open",
    body=LinkAnswer,
    answer=links.QUESTION.schema,
    errors=(400, 404, 409, 410, 413, 429),
)
def answer_linked_question() -> Response:
    """Answer the question of a link, once. Returns the question, or 410 as the route before.

    With `version`, returns 409 if the question has another value than the person has read.
    """
    with limits.open_to_anyone():
        body = load(LinkAnswer)
        link = links.answer(
            body["token"],
            body["answer"],
            settings(),
            version=body["version"],
            address=client_address(settings()),
        )
    return jsonify(links.QUESTION.show(link))
