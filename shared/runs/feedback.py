"""Feedback on runs: scores, values and comments of people, by key, and tokens that let anyone add one record.

A record belongs to a run, a key and a source. The source is the caller, or `url` for all URLs of the run and key. A
second record of a source replaces its first. A client that joins a run twice gets two URLs, and still one record.

A token is a sealed text (`shared/infra/sealed.py`) that names the run and the key. It is not stored, so runs without
feedback keys cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import Conflict, Gone, NotFound
from shared.infra import sealed
from shared.infra.postgres import Row, dumps
from shared.infra.sealed import InvalidSeal, SealExpired
from shared.records import ANYTHING, ID, OBJECT_OR_NULL, TEXT, TEXT_OR_NULL, TIME, Record, RecordField
from shared.sql import statement

VALID_SECONDS = 24 * 3600.0
MOST_RECORDS = 100  # of a run
URL = "url"  # the source of records that were sent to a URL

UNKNOWN = "This feedback URL is not known. Check that it is complete."
EXPIRED = "This feedback URL has expired."
RUN_DELETED = "The run of this feedback URL is deleted."

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,2000}")
_PURPOSE = "feedback"

RECORD = Record(
    "RunFeedback",
    {
        "run_id": RecordField(ID),
        "key": RecordField(TEXT),
        "score": RecordField({"type": ["number", "null"]}),
        "value": RecordField(ANYTHING),
        "comment": RecordField(TEXT_OR_NULL),
        "correction": RecordField(OBJECT_OR_NULL),
        "source": RecordField(
            {"description": "`url` if it was sent to a feedback URL, else the id of the caller", **TEXT}
        ),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
)

_PUT = statement("feedback.put", columns=RECORD.select)
_HAS_RUN = statement("feedback.has_run")
_LIST = statement("feedback.list", columns=RECORD.select)


def put(
    conn: Connection, deployment_id: UUID, run_id: UUID, key: str, source: str, content: Mapping[str, Any]
) -> Row:
    """Store feedback. Replaces the earlier record of the source under the key. Returns the record's row.

    `content` has the score, value, comment and correction. Raises NotFound if the run is gone, and Conflict if it has
    MOST_RECORDS other records.
    """
    value, correction = content.get("value"), content.get("correction")
    row = _PUT.row(
        conn,
        deployment_id=deployment_id,
        run_id=run_id,
        key=key,
        source=source,
        score=content.get("score"),
        value=None if value is None else dumps(value),
        comment=content.get("comment"),
        correction=None if correction is None else dumps(correction),
        most=MOST_RECORDS,
    )
    if row is None:
        if not _HAS_RUN.count(conn, run_id=run_id, deployment_id=deployment_id):
            raise NotFound("Not Found")
        raise Conflict(f"This run has {MOST_RECORDS} records of feedback, the maximum.")
    return row


def list_of_run(conn: Connection, run_id: UUID) -> Sequence[Row]:
    """Return all feedback on a run, oldest first."""
    return _LIST.rows(conn, run_id=run_id)


def filter_values(feedback: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of the SQL condition `feedback.matches`."""
    names = ("key", "below", "at_least")
    return {f"feedback_{name}": None if feedback is None else feedback.get(name) for name in names}


# URLs


@dataclass(frozen=True, slots=True)
class FeedbackUrls:
    """The feedback URLs of a run. `root` is the URL of its deployment."""

    root: str
    deployment_id: UUID
    run_id: UUID
    keys: Sequence[str]

    def by_key(self) -> dict[str, str]:
        """Return the URLs by key, each valid from now on for VALID_SECONDS."""
        tokens = {key: _seal(Target(self.deployment_id, self.run_id, key)) for key in self.keys}
        return {key: f"{self.root}/feedback/{token}" for key, token in tokens.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """The run and key for which a token takes feedback."""

    deployment_id: UUID
    run_id: UUID
    key: str


def _seal(target: Target) -> str:
    named = [target.deployment_id.hex, target.run_id.hex, target.key]
    return sealed.seal(_PURPOSE, named, seconds=VALID_SECONDS).rstrip("=")


def target_of(token: str) -> Target:
    """Return the target of a token. Raises NotFound for an unknown token, and Gone for an expired one."""
    if not _TOKEN.fullmatch(token):
        raise NotFound(UNKNOWN)
    padded = token + "=" * (-len(token) % 4)
    try:
        deployment_id, run_id, key = sealed.unseal(_PURPOSE, padded)
    except SealExpired as error:
        raise Gone(EXPIRED) from error
    except InvalidSeal as error:
        raise NotFound(UNKNOWN) from error
    return Target(UUID(deployment_id), UUID(run_id), key)


def require_run(conn: Connection, target: Target) -> None:
    """Raise Gone if the run of a feedback URL is deleted."""
    if not _HAS_RUN.count(conn, run_id=target.run_id, deployment_id=target.deployment_id):
        raise Gone(RUN_DELETED)


def put_by_token(conn: Connection, target: Target, content: Mapping[str, Any]) -> Row:
    """Store what was sent to a feedback URL. Raises Gone if the run is deleted, and Conflict as `put` does."""
    try:
        return put(conn, target.deployment_id, target.run_id, target.key, URL, content)
    except NotFound as error:
        raise Gone(RUN_DELETED) from error
