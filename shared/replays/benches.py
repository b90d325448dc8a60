"""Benches: the hidden deployment of a replay, at which its cases run.

A bench is a row of `deployment` whose `replay_of` names the original deployment. The view `listed_deployment` has all
others: whatever lists, counts or changes deployments reads that view. The address of a bench can be read only.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.deployments.deployments import PREVIEW_SIGN
from shared.sql import statement

MAX_NAME = 63  # a label of a host name
_CREATE = statement("replays.create_bench")


def name_of(deployment: str, replay_id: UUID) -> str:
    """Return the name of a replay's bench: that of the deployment, shortened if necessary, and the end of the id."""
    end = f"{PREVIEW_SIGN}replay-{replay_id.hex[-8:]}"
    return deployment[: MAX_NAME - len(end)] + end


def create(
    conn: Connection,
    deployment_id: UUID,
    name: str,
    replay_id: UUID,
    revision_id: UUID,
    *,
    concurrency: int,
    max_tokens: int | None,
) -> UUID:
    """Insert the bench of a new replay. `max_tokens` bounds each of its runs. Returns its id."""
    bench_id = uuid7()
    _CREATE.count(
        conn,
        bench_id=bench_id,
        deployment_id=deployment_id,
        name=name_of(name, replay_id),
        revision_id=revision_id,
        concurrency=concurrency,
        max_tokens=max_tokens,
    )
    return bench_id
