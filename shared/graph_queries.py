"""Queries about threads that need user code: web sends them, a runner of the deployment's pool answers.

A query waits in Redis under its own id and is taken once. Its notification is repeated until then. The answer is the
one event of the id's log (`shared/eventlog/events.py`), so waiting for it holds no connection. A query ends with its
caller's timeout; a retry is a new query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from redis.exceptions import RedisError
from uuid_utils.compat import uuid7

from shared.errors import Conflict, HostUnusable, Invalid, TooLarge, Unanswered, Unavailable
from shared.eventlog import events, follow
from shared.eventlog.hub import hub
from shared.infra import broker, redis
from shared.infra.postgres import dumps

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
NOTIFY_AGAIN_SECONDS = 2.0
KEPT_SECONDS = 60  # lifetime of an answer without a reader


@dataclass(frozen=True, slots=True)
class Question:
    """A query to the graphs of a revision. `document` is the QUERY frame of `workers/graph_host`."""

    deployment_id: UUID
    revision_id: UUID
    pool: str
    thread_id: UUID | None
    document: Mapping[str, Any]


def ask(question: Question, *, patience_seconds: float | None = None) -> bytes:
    """Send a query and return its answer as JSON.

    Raises Unanswered if no runner answers in time, and the error of a refusal: Invalid (400), Conflict, TooLarge,
    Unavailable, HostUnusable.
    """
    id = uuid7()
    deadline = time.monotonic() + (patience_seconds or PATIENCE_SECONDS)
    with hub().reader(id) as reader:
        _put(id, question)
        broker.enqueue_query(question.pool, id)
        for batch in follow.follow(
            reader, id, after=0, ended=lambda _last: None, quiet_seconds=lambda: NOTIFY_AGAIN_SECONDS
        ):
            if batch:
                return _accepted(batch[-1].data)
            if time.monotonic() > deadline:
                _take_back(id)
                raise Unanswered(f"no runner of the pool '{question.pool}' answered in time")
            broker.enqueue_query(question.pool, id)
    raise Unanswered


def take(id: UUID) -> Question | None:
    """Take a query. Returns None if another runner has taken it. Raises Unavailable."""
    try:
        stored: Any = redis.client().getdel(_key(id))
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error
    if stored is None:
        return None
    stored_query = orjson.loads(stored)
    return Question(
        UUID(stored_query["deployment_id"]),
        UUID(stored_query["revision_id"]),
        stored_query["pool"],
        UUID(stored_query["thread_id"]) if stored_query["thread_id"] else None,
        stored_query["document"],
    )


def answer(id: UUID, document: bytes) -> None:
    """Publish the answer to the caller."""
    events.close(
        id,
        attempt=1,
        owner="query",
        floor=0,
        payloads=[events.payload(events.END, document)],
        retention_seconds=KEPT_SECONDS,
    )


def refusal(kind: str, message: str) -> bytes:
    """Return the document of a refusal. `kind` is a key of REFUSALS."""
    return orjson.dumps({"refused": {"kind": kind, "error": kind, "message": message}})


def _put(id: UUID, question: Question) -> None:
    stored = dumps(
        {
            "deployment_id": question.deployment_id,
            "revision_id": question.revision_id,
            "pool": question.pool,
            "thread_id": question.thread_id,
            "document": question.document,
        }
    )
    try:
        redis.client().set(_key(id), stored, ex=int(PATIENCE_SECONDS))
    except RedisError as error:
        raise Unavailable(f"the event bus does not answer: {error}") from error


def _take_back(id: UUID) -> None:
    try:
        redis.client().delete(_key(id))
    except RedisError:
        log.info("query %s: could not be deleted, it expires later", id)


def _key(id: UUID) -> str:
    return f"{redis.PREFIX}{{{id}}}:query"


# The caller's error for each `kind` of a refusal.
REFUSALS = {
    "invalid": lambda message: Invalid(message, status=400),
    "conflict": Conflict,
    "too_large": TooLarge,
    "unavailable": Unavailable,
    "failed": HostUnusable,
}


def _accepted(document: bytes) -> bytes:
    if not document.startswith(b'{"refused"'):
        return document
    refused = orjson.loads(document)["refused"]
    text = refused["message"]
    if refused["kind"] == "failed":
        text = f"{refused['error']}: {text}"
    raise REFUSALS[refused["kind"]](text)
