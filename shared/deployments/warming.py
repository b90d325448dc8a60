"""Has graph hosts of a revision ready before runs get there, so that the first of them waits for no start."""

from __future__ import annotations

import logging
from uuid import UUID

from shared import fleet, graph_queries
from shared.errors import Unanswered, Unavailable
from shared.graph_queries import Question
from shared.infra import redis
from shared.infra.postgres import connection

log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0  # within the 30 seconds after which clients and proxies give up
IS_READY = "ready"  # what is asked of a runner that only has to have a host


def announce(revision_id: UUID, pool: str) -> None:
    """Have every runner of the pool start a host of the revision; a lost message costs only time."""
    try:
        redis.broker().publish(redis.warm_channel(pool), str(revision_id))
    except redis.RedisError as error:
        log.info("revision %s: not warmed: %s", revision_id, error)


def prepare(deployment_id: UUID, revision_id: UUID, pool: str) -> None:
    """The same, and wait until one of them has it: not longer than a caller would, and not where there is no runner.

    Raises HostUnusable when it cannot be started.
    """
    with connection() as conn:
        if not fleet.has_runner(conn, pool):
            return
    announce(revision_id, pool)
    question = Question(deployment_id, revision_id, pool, None, {"op": IS_READY})
    try:
        graph_queries.ask(question, patience_seconds=WAIT_SECONDS)
    except (Unanswered, Unavailable) as error:
        log.warning("revision %s: has no host yet: %s", revision_id, error.message)
