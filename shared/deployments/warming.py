"""Starting graph hosts of a revision before it gets runs. Its first runs would otherwise wait for a host to start."""

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
IS_READY = "ready"  # operation of a query that only needs a host to answer


def announce(revision_id: UUID, pool: str) -> None:
    """Notify every runner of the pool to start a host of the revision.

    If the message is lost, the revision's first run waits longer.
    """
    try:
        redis.broker().publish(redis.warm_channel(pool), str(revision_id))
    except redis.RedisError as error:
        log.info("revision %s: could not tell the runners to start a host: %s", revision_id, error)


def prepare(deployment_id: UUID, revision_id: UUID, pool: str) -> None:
    """Notify the runners as `announce` does, and wait up to WAIT_SECONDS until one has a host of the revision.

    Returns at once if the pool has no runner. Raises HostUnusable if the host cannot be started.
    """
    with connection() as conn:
        if not fleet.has_runner(conn, pool):
            return
    announce(revision_id, pool)
    question = Question(deployment_id, revision_id, pool, None, {"op": IS_READY})
    try:
        graph_queries.ask(question, patience_seconds=WAIT_SECONDS)
    except (Unanswered, Unavailable) as error:
        log.warning("revision %s: no runner has started a host yet: %s", revision_id, error.message)
