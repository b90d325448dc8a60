"""Query to a runner whether it still has unsent events of an ended run.

A runner sends the last events of a run after it has committed the end. If the log lacks the end, these events may be
unsent, or the log may have been lost after they were written. Only the runner knows.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID, uuid4

from redis.exceptions import RedisError

from shared.infra import redis
from shared.infra.postgres import dumps

log = logging.getLogger(__name__)

ACTION = "unsent"  # action of the control message
ANSWER_SECONDS = 1
KEPT_SECONDS = 10  # expiry of an answer that was not fetched
YES, NO = b"1", b"0"


def may_have(owner: str, run_id: UUID) -> bool:
    """Return whether a runner may still send events of this run. True if the runner does not answer."""
    answers = f"{redis.PREFIX}unsent:{uuid4().hex}"
    message = dumps({"run_id": str(run_id), "action": ACTION, "answers": answers})
    try:
        if not redis.broker().publish(redis.control_channel(owner), message):
            return True
        found: Any = redis.broker().brpop([answers], timeout=ANSWER_SECONDS)
    except RedisError as error:
        log.warning("run %s: could not ask %s for unsent events: %s", run_id, owner, error)
        return True
    return found is None or found[1] != NO


def answer(answers: str, has_unsent: bool) -> None:
    """Answer the query of another process, which times out if the answer is lost."""
    try:
        with redis.broker().pipeline(transaction=False) as pipeline:
            pipeline.lpush(answers, YES if has_unsent else NO)
            pipeline.expire(answers, KEPT_SECONDS)
            pipeline.execute()
    except RedisError as error:
        log.warning("could not answer whether events are unsent: %s", error)
