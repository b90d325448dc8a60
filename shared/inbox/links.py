"""Links that let a person without an account answer one question.

The holder of a link's token may read the question and answer it once, until the link expires or is revoked. The token has
256 random bits, and only its SHA-256 is stored. The transaction that inserts the answering run also marks the link, so
of two simultaneous answers one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, Denied, Forbidden, Gone, NotFound
from shared.inbox import answers, records
from shared.inbox.records import QuestionClosed
from shared.infra.postgres import Row, connection
from shared.infra.tokens import new_token, token_hash
from shared.records import ANYTHING, ID, TEXT, TEXT_OR_NULL, TIME, TIME_OR_NULL, Record, RecordField, one_of
from shared.runs import creation
from shared.runs.create import Created
from shared.runs.drafts import Creator
from shared.settings import Settings
from shared.sql import statement
from shared.threads import records as threads
from shared.user_code import authorization
from shared.user_code.users import studio_user

MAX_LINKS = 100  # valid links of a question
MAX_LISTED = 1_000

UNKNOWN = "This link is not known. Check that it is complete."
REVOKED = "This link was revoked."
USED = "This link has been used. It is for one answer."
EXPIRED = "This link has expired."
REFUSED = "This answer is not allowed."
CLOSED = "This question does not need an answer any more."
CHANGED = "This question has changed. Read it again before you answer."

RECORD = Record(
    "QuestionLink",
    {
        "id": RecordField(ID, reads=("link_id",)),
        "label": RecordField(TEXT_OR_NULL),
        "created_by": RecordField(TEXT),
        "created_at": RecordField(TIME),
        "expires_at": RecordField(TIME),
        "used_at": RecordField(TIME_OR_NULL),
        "revoked_at": RecordField(TIME_OR_NULL),
    },
)
# What the holder of a link sees. `expires_at` is the end of the time for an answer.
QUESTION = Record(
    "LinkedQuestion",
    {
        "value": RecordField(ANYTHING),
        "version": RecordField(
            {"description": "Changes when the graph asks the question again with another value", **TEXT}
        ),
        "kind": RecordField(one_of(records.INTERRUPT, records.BREAKPOINT)),
        "thread_title": RecordField(TEXT, reads=("title",)),
        "deployment_name": RecordField(TEXT),
        "asked_at": RecordField(TIME),
        "expires_at": RecordField(TIME),
        "label": RecordField(TEXT_OR_NULL),
    },
)

_CREATE = statement("inbox_links.create", columns=RECORD.select)
_LIST = statement("inbox_links.list", columns=RECORD.select)
_QUESTION_OF = statement("inbox_links.question_of")
_REVOKE = statement("inbox_links.revoke")
_FIND = statement("inbox_links.find")
_USE = statement("inbox_links.use")


def create(
    conn: Connection, question_id: UUID, *, key_id: str, seconds: float, label: str | None
) -> tuple[Row, str]:
    """Create a link for an open question. Returns its row and its token, which is not stored.

    Raises QuestionClosed, and Conflict if the question has MAX_LINKS valid links.
    """
    token = new_token()
    values = {"link_id": uuid7(), "question_id": question_id, "token_hash": token_hash(token), "label": label}
    row = _CREATE.row(conn, **values, key_id=key_id, seconds=seconds, most=MAX_LINKS)
    if row is None:
        if records.get(conn, question_id)["closed_at"] is not None:
            raise QuestionClosed
        raise Conflict(f"This question has {MAX_LINKS} links that are valid: revoke some first.")
    return row, token


def list_all(conn: Connection, question_id: UUID) -> Sequence[Row]:
    """Return the links of a question, oldest first, at most MAX_LISTED."""
    return _LIST.rows(conn, question_id=question_id, limit=MAX_LISTED)


def question_of(conn: Connection, organization_id: UUID, link_id: UUID) -> UUID:
    """Return the question of a link of the organization. Raises NotFound."""
    row = _QUESTION_OF.row(conn, link_id=link_id, organization_id=organization_id)
    if row is None:
        raise NotFound("Link not found")
    question_id: UUID = row["question_id"]
    return question_id


def revoke(conn: Connection, link_id: UUID) -> bool:
    """Revoke a link. Returns False if it is revoked already."""
    return _REVOKE.count(conn, link_id=link_id) == 1


def find(conn: Connection, token: str) -> tuple[Row, DeploymentRef]:
    """Return the link with its question, and the deployment.

    Raises NotFound for an unknown token, and Gone for a link that is not valid.
    """
    row = _FIND.row(conn, token_hash=token_hash(token))
    deployment = None if row is None else deployments.resolve_by_id(conn, row["deployment_id"])
    if row is None or deployment is None or _hides_questions(deployment):
        raise NotFound(UNKNOWN)
    for state, reason in (
        ("is_revoked", REVOKED),
        ("is_used", USED),
        ("is_expired", EXPIRED),
        ("is_closed", CLOSED),
    ):
        if row[state]:
            raise Gone(reason)
    return row, deployment


def _hides_questions(deployment: DeploymentRef) -> bool:
    """Return whether the deployment's author has locked out tools of the platform, since the link was created."""
    auth = deployment.user_code.auth
    return auth is not None and auth.disable_studio_auth


def answer(token: str, answer: Any, settings: Settings, *, version: str | None, address: str) -> Row:
    """Answer the question of a link. Returns the link's row as it was before.

    A node that runs again may ask the same question with another value. Raises Conflict if `version` is that of an
    earlier value.

    At a deployment with its own authorization, the handlers decide about the Studio user, as for an answer by a tool of
    the platform. Raises NotFound, Gone, Invalid for a value at a breakpoint, Forbidden if a handler refuses, and what
    the creation of a run raises.
    """
    with connection() as conn:
        link, deployment = find(conn, token)
    tool = None if deployment.user_code.auth is None else studio_user()
    creator = Creator(
        deployment,
        user=None if tool is None else tool.document,
        authorize=None if tool is None else partial(authorization.authorize, deployment, tool),
        name=f"link:{link['link_id']}" + (f" ({link['label']})" if link["label"] else ""),
        address=address,
        max_pending_per_thread=settings.max_pending_per_thread,
        event_retention_seconds=settings.event_retention_seconds,
    )
    try:
        creation.create_runs(creator, [answers.answer_request(link, answer)], part=_Use(link, token, version))
    except (QuestionClosed, NotFound) as error:  # their texts say more than the holder of a link may know
        raise Gone(CLOSED) from error
    except Denied as error:
        raise Forbidden(REFUSED) from error
    return link


@dataclass(frozen=True, slots=True)
class _Use:
    """The part of an answer that is committed with the run: the link is marked as used."""

    link: Row
    token: str
    version: str | None

    def begin(self, conn: Connection) -> None:
        """Mark the link. Raises NotFound, Gone, Conflict. Locks the thread first, as every answer does."""
        threads.lock(conn, self.link["deployment_id"], self.link["thread_id"])
        current, _ = find(conn, self.token)
        if self.version not in (None, current["version"]):
            raise Conflict(CHANGED)
        if not _USE.count(conn, link_id=self.link["link_id"]):
            raise Gone(USED)

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        """Do nothing: the insert of the run records the answer."""
