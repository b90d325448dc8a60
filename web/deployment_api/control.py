"""Telling a run's owner, or its followers, that somebody wants it stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shared import bus, events
from shared.database import dumps
from shared.runs import Displaced

log = logging.getLogger(__name__)


def tell(stopped: Sequence[Displaced], retention_seconds: int, *, reason: str | None = None) -> None:
    """After the commit: a hint to the owner of each running run, an end of its log for each pending one.

    Both may be lost: a renewal carries the wish too, and readers find the end in the row.
    """
    for run in stopped:
        if run.owner is not None:
            _hint(run, reason)
        else:
            last = {"run_id": str(run.run_id), "status": "interrupted", "output": None}
            events.close(
                run.run_id,
                attempt=run.attempt,
                owner="cancel",
                floor=run.seq_reserved,
                payloads=[events.payload(events.END, dumps(last).encode())],
                retention_seconds=retention_seconds,
            )


def _hint(run: Displaced, reason: str | None) -> None:
    message = {"run_id": str(run.run_id), "action": run.action, "reason": reason}
    try:
        bus.client().publish(f"{bus.PREFIX}control:{run.owner}", dumps(message))
    except bus.RedisError as error:
        log.warning("run %s: its owner learns of the cancel with the next renewal: %s", run.run_id, error)
