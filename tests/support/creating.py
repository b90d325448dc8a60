"""Create runs without HTTP, and fire crons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import Driver
from shared.runs import create
from shared.runs.create import Created
from shared.runs.drafts import Creator, RunRequest
from shared.settings import Settings
from workers.upkeep.upkeep import DueCrons


def insert_run(
    conn: Connection | Driver,
    deployment: DeploymentRef,
    request: RunRequest,
    *,
    thread_id: UUID | None,
    run_id: UUID | None = None,
    depth: int = 0,
    max_pending: int = 1_000,
    **creator: Any,
) -> Created:
    """Insert a pending run. On a driver's connection, in the way in which most runs are inserted."""
    request = replace(request, thread_id=thread_id, run_id=run_id or uuid7())
    by = Creator(deployment, max_pending_per_thread=max_pending, **creator)
    insert = create.insert_request if isinstance(conn, Connection) else create.insert_alone
    return insert(conn, by, request, depth=depth)


SETTINGS = Settings.from_env({})


def fire_due_crons() -> list[Created]:
    """Fire the due crons that need no authorization. Returns the created runs."""
    return DueCrons(SETTINGS).fire_unguarded()
