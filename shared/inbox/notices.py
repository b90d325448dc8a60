"""Webhooks of questions: the announcement, one reminder, and the expiry.

Upkeep inserts deliveries into the outbox of the runs' webhooks (`shared/runs/webhooks.py`), in the transaction that
claims the questions. Two processes that both lead upkeep therefore insert each webhook once. The address is read when the
delivery is inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from shared.inbox import records
from shared.infra.arrays import texts, uuids
from shared.infra.postgres import Row, dumps
from shared.runs.webhooks import QuestionEvent
from shared.sql import part, statement

CLAIMED_AT_ONCE = 20  # records may be large

_RULES = part("inbox_upkeep.rules")
_CLAIM = statement("inbox_upkeep.claim_webhooks", rules=_RULES)
_WEBHOOK_OF = statement("inbox_upkeep.webhook_of", rules=_RULES)
_GET_ALL = statement("inbox_upkeep.get_all", columns=records.RECORD.select, joined=part("inbox.joined"))
_HASTEN = statement("inbox_upkeep.hasten")
_INSERT = statement("inbox_upkeep.insert_deliveries")


def send_due(conn: Connection) -> int:
    """Insert deliveries of due announcements and reminders. Returns how many questions were claimed."""
    claimed = _CLAIM.rows(conn, limit=CLAIMED_AT_ONCE)
    _insert(conn, [row for row in claimed if row["url"] is not None])
    return len(claimed)


def hasten(conn: Connection) -> int:
    """Make announcements due at once that are due in the future. Returns how many.

    Such times exist after the database's clock was set back (`claims.shorten_leases`).
    """
    return _HASTEN.count(conn)


def send_expired(conn: Connection, question_id: UUID) -> None:
    """Insert the delivery of a question's expiry, if its deployment has a webhook for questions."""
    row = _WEBHOOK_OF.row(conn, question_id=question_id)
    if row is not None and row["url"] is not None:
        _insert(conn, [{"question_id": question_id, "event": QuestionEvent.EXPIRED, "url": row["url"]}])


def _insert(conn: Connection, sent: Sequence[Row]) -> None:
    if not sent:
        return
    found = _GET_ALL.rows(conn, question_ids=uuids([row["question_id"] for row in sent]))
    by_id = {row["question_id"]: dumps(records.RECORD.show(row)) for row in found}
    sent = [row for row in sent if row["question_id"] in by_id]
    _INSERT.count(
        conn,
        question_ids=uuids([row["question_id"] for row in sent]),
        urls=texts([row["url"] for row in sent]),
        events=texts([str(row["event"]) for row in sent]),
        records=texts([by_id[row["question_id"]] for row in sent]),
    )
