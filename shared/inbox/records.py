"""Records of questions: reading, searching and changing them.

Open and snoozed questions are listed oldest first, ended ones by the time of their end, latest first, and all questions
newest first. Each order has an index that begins with the deployment, so the cost of a page does not depend on the
number of questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.deployments.records import ON_EXPIRY
from shared.errors import Conflict, NotFound
from shared.infra.arrays import uuids
from shared.infra.postgres import Row, dumps
from shared.records import (
    ANYTHING,
    BOOLEAN,
    ID,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    one_of,
    or_null,
)
from shared.sql import pages, part, statement
from shared.user_code import filters
from shared.user_code.filters import Filter

# The kind of a question, and the `interrupt_id` of a breakpoint. shared/sql/inbox.sql repeats both.
INTERRUPT, BREAKPOINT = "interrupt", "breakpoint"
EXPIRY = "expiry"  # `answered_from` of a question that its expiry closed
MAX_LISTED_VALUE = 64 * 1024  # bytes of JSON; a client may poll a list of many questions


class QuestionStatus(StrEnum):
    OPEN = "open"
    SNOOZED = "snoozed"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CLOSED = "closed"  # without an answer: the thread went on without one, or a person cancelled it


ALL = "all"
_SQL_OF_STATUS = {
    QuestionStatus.OPEN: "q.closed_at IS NULL AND (q.snoozed_until IS NULL OR q.snoozed_until <= now())",
    QuestionStatus.SNOOZED: "q.closed_at IS NULL AND q.snoozed_until > now()",
    QuestionStatus.EXPIRED: f"q.closed_at IS NOT NULL AND q.answered_from = '{EXPIRY}'",
    QuestionStatus.ANSWERED: "q.closed_at IS NOT NULL AND q.answered_at IS NOT NULL"
    f" AND q.answered_from IS DISTINCT FROM '{EXPIRY}'",
    QuestionStatus.CLOSED: "q.closed_at IS NOT NULL AND q.answered_at IS NULL"
    f" AND q.answered_from IS DISTINCT FROM '{EXPIRY}'",
}
_OLDEST_FIRST, _LAST_CLOSED_FIRST, _NEWEST_FIRST = (
    "q.asked_at, q.question_id",
    "q.closed_at DESC, q.question_id DESC",
    "q.asked_at DESC, q.question_id DESC",
)
_ORDERS = {QuestionStatus.OPEN: _OLDEST_FIRST, QuestionStatus.SNOOZED: _OLDEST_FIRST, ALL: _NEWEST_FIRST}
_STATUS = " ".join(f"WHEN {sql} THEN '{status}'" for status, sql in _SQL_OF_STATUS.items())

_FIELDS = {
    "id": RecordField(ID, reads=("question_id",)),
    "deployment_id": RecordField(ID),
    "deployment_name": RecordField(TEXT),
    "thread_id": RecordField(ID),
    "thread_title": RecordField(TEXT, reads=("title",)),
    "run_id": RecordField(ID_OR_NULL),
    "assistant_id": RecordField(ID_OR_NULL),
    "assistant_name": RecordField(TEXT_OR_NULL),
    "graph_id": RecordField(TEXT_OR_NULL),
    "interrupt_id": RecordField(TEXT),
    "kind": RecordField(one_of(INTERRUPT, BREAKPOINT)),
    "value": RecordField(ANYTHING),
    "asked_at": RecordField(TIME),
    "asked_by": RecordField(TEXT_OR_NULL),
    "status": RecordField(one_of(*QuestionStatus)),
    "assignee": RecordField(TEXT_OR_NULL),
    "snoozed_until": RecordField(TIME_OR_NULL),
    "expires_at": RecordField(TIME_OR_NULL),
    "on_expiry": RecordField(or_null(ON_EXPIRY)),
    "answered_at": RecordField(TIME_OR_NULL),
    "answered_by": RecordField(TEXT_OR_NULL),
    "answered_from": RecordField(TEXT_OR_NULL),
    "answer": RecordField(ANYTHING),
    "answer_run_id": RecordField(ID_OR_NULL),
    "metadata": RecordField(OBJECT),
}
_EXPRESSIONS = {
    "deployment_name": "d.name",
    "assistant_name": "v.name",
    "graph_id": "coalesce(v.graph_id, t.metadata ->> 'graph_id')",
    "status": f"CASE {_STATUS} END",
    "metadata": "t.metadata",
}
# The stored size, which may be compressed, is checked first: it is known without reading the value.
_IS_LEFT_OUT = f"""coalesce(pg_column_size(q.value) > {MAX_LISTED_VALUE}
    OR octet_length(CAST(q.value AS text)) > {MAX_LISTED_VALUE}, false)"""
RECORD = Record("Question", _FIELDS, table="q", expressions=_EXPRESSIONS, internal=("closed_at",))
# In lists that clients poll, the value is null if it is large.
LISTED = Record(
    "ListedQuestion",
    {**_FIELDS, "is_value_left_out": RecordField(BOOLEAN)},
    table="q",
    expressions={
        **_EXPRESSIONS,
        "value": f"CASE WHEN NOT {_IS_LEFT_OUT} THEN q.value END",
        "is_value_left_out": _IS_LEFT_OUT,
    },
)
_JOINED = part("inbox.joined")
_GET = statement("inbox.get", columns=RECORD.select, joined=_JOINED)
_CHANGE = statement("inbox.change")
_DEPLOYMENTS = statement("inbox.deployments")
CHANGEABLE = ("assignee", "snoozed_until")


@dataclass(frozen=True, slots=True)
class VisibleThreads:
    """The threads of a deployment that its authorization shows to a caller: those that match both."""

    filter: Filter | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scope:
    """The questions that a caller may see: all of these deployments, or those of visible threads."""

    deployment_ids: Sequence[UUID]
    threads: Mapping[UUID, VisibleThreads] = field(default_factory=dict)

    def conditions(self) -> tuple[list[str], dict[str, Any]]:
        """Return SQL conditions on `q`, and their values."""
        conditions: list[str] = []
        values: dict[str, Any] = {}
        for number, (deployment_id, threads) in enumerate(self.threads.items()):
            visible, bound = filters.condition(threads.filter, "visible.metadata", prefix=f"s{number}_")
            conditions.append(f"""(q.deployment_id <> :scope{number} OR EXISTS (
                SELECT FROM thread visible WHERE visible.deployment_id = q.deployment_id
                  AND visible.thread_id = q.thread_id AND {visible}
                  AND visible.metadata @> CAST(:with{number} AS jsonb)))""")
            values |= {**bound, f"scope{number}": deployment_id, f"with{number}": dumps(threads.metadata)}
        return conditions, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The filters of a search. None: any."""

    status: str = QuestionStatus.OPEN
    assistant_id: UUID | None = None
    assignee: str | None = None
    asked_before: datetime | None = None
    asked_after: datetime | None = None
    metadata: Mapping[str, Any] | None = None  # of the thread

    @property
    def order(self) -> str:
        return _ORDERS.get(self.status, _LAST_CLOSED_FIRST)

    def conditions(self) -> tuple[list[str], dict[str, Any]]:
        """Return SQL conditions on `q`, and their values."""
        conditions = [] if self.status == ALL else [_SQL_OF_STATUS[QuestionStatus(self.status)]]
        values: dict[str, Any] = {}
        for name, sql in (
            ("assistant_id", "q.assistant_id = :assistant_id"),
            ("assignee", "q.assignee = :assignee"),
            ("asked_before", "q.asked_at < :asked_before"),
            ("asked_after", "q.asked_at > :asked_after"),
        ):
            if getattr(self, name) is not None:
                conditions.append(sql)
                values[name] = getattr(self, name)
        of_thread, bound = filters.of_visible_threads(None, "q", self.metadata or {})
        return [*conditions, of_thread], {**values, **bound}


class QuestionClosed(Conflict):
    """This question is not open any more."""


def missing() -> NotFound:
    return NotFound("Question not found")


def deployments_with_questions(
    conn: Connection, organization_id: UUID, name: str | None = None
) -> Sequence[Row]:
    """Return `id` and `has_user_code` of the organization's deployments with open or ended questions.

    `name`: only the deployment with this name.
    """
    return _DEPLOYMENTS.rows(conn, organization_id=organization_id, name=name)


def get(conn: Connection, question_id: UUID, *, organization_id: UUID | None = None) -> Row:
    """Return a question of a deployment that is not deleted. Raises NotFound."""
    row = _GET.row(conn, question_id=question_id, organization_id=organization_id)
    if row is None:
        raise missing()
    return row


def search(
    conn: Connection,
    scope: Scope,
    criteria: Criteria,
    *,
    limit: int,
    offset: int,
    columns: str = RECORD.select,
) -> tuple[Sequence[Row], int]:
    """Return a page of questions, and the number of matches as `pages` counts them.

    `columns`: the SELECT list of the record that is returned.
    """
    (where, values), (seen, bound) = criteria.conditions(), scope.conditions()
    condition, values = " AND ".join([*where, *seen]), {**values, **bound}
    values["deployment_ids"] = uuids(scope.deployment_ids)
    parts = {"condition": condition, "order": criteria.order, "columns": columns, "joined": _JOINED}
    found = statement("inbox.search", **parts)
    counted = statement("inbox.count", condition=condition)
    return pages.statement_page(conn, found, counted, values, limit=limit, offset=offset)


def change(conn: Connection, question_id: UUID, changes: Mapping[str, Any]) -> None:
    """Change the assignee, and the time until which a question is snoozed. Raises QuestionClosed."""
    values = {name: changes.get(name) for name in CHANGEABLE}
    has = {f"has_{name}": name in changes for name in CHANGEABLE}
    if not _CHANGE.count(conn, question_id=question_id, **values, **has):
        raise QuestionClosed
