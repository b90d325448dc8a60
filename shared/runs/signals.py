"""Messages to the owners of running runs about cancellations and added stream modes, and ends of event logs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from redis.exceptions import RedisError

from shared.eventlog import events
from shared.infra import broker, redis
from shared.infra.postgres import dumps
from shared.runs import end_event
from shared.runs.backlog import NextRun
from shared.runs.cancel import Displaced

log = logging.getLogger(__name__)

WIDEN = "widen"


def publish_cancels(stopped: Sequence[Displaced], retention_seconds: int) -> None:
    """Notify the owners of running runs, and end the logs of ended runs. Call it after the commit.

    Both messages may be lost: the owner also sees the request when it renews the lease, and readers find the end in the
    run's row.
    """
    for run in stopped:
        if run.owner is not None:
            _notify_owner(run.run_id, run.owner, action=run.action, reason=run.reason)
        if run.is_over:
            _end_log(run, retention_seconds)


def widen(run_id: UUID, owner: str, modes: Sequence[str]) -> None:
    """Notify the owner of a running run that a reader also needs events of these stream modes."""
    _notify_owner(run_id, owner, action=WIDEN, stream_mode=list(modes))


def _notify_owner(run_id: UUID, owner: str, *, action: str, **content: object) -> None:
    message = {"run_id": str(run_id), "action": action, **content}
    try:
        redis.broker().publish(redis.control_channel(owner), dumps(message))
    except RedisError as error:
        log.warning("run %s: could not send the message `%s` to its owner: %s", run_id, action, error)


def _end_log(run: Displaced, retention_seconds: int) -> None:
    """End the run's log as the next attempt. No process can claim that attempt any more, so no owner conflicts."""
    events.close(
        run.run_id,
        attempt=run.attempt + 1,
        owner="cancel",
        floor=run.seq_reserved,
        payloads=[end_event.last_event_of_stopped(run.run_id, run.action, is_deleted=run.is_gone)],
        retention_seconds=retention_seconds,
    )


def notify_next(next_run: NextRun | None) -> None:
    """Notify runners of a thread's next run after another run of the thread has ended. Call it after the commit."""
    if next_run is not None:
        broker.enqueue_run(next_run.pool, next_run.run_id)
