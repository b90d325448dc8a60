"""Polling a revision, once or until it changes, at a cost that allows hundreds of callers to wait for a build.

Each look is one statement, and no connection is held between looks. The revision's events wake up waiting callers
through the one subscriber connection of the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

from shared.deployments import deployments, revisions
from shared.eventlog.hub import Stopping, hub
from shared.infra.postgres import Row, driver, query

LOOK_SECONDS = 5.0  # without an event: a message may be lost, and Redis may be unreachable
CONFIRM_SECONDS = 1.0

LOOK = """
SELECT r.id, r.number, r.deployment_id, r.created_at, r.updated_at, r.status, r.status_message, r.source,
       r.source_revision_config, r.archive_digest, r.created_by, r.changes, r.preview,
       d.source_config ->> 'repo_url' AS repo_url
FROM deployment d LEFT JOIN revision r ON r.deployment_id = d.id AND r.id = %(revision_id)s
WHERE d.id = %(deployment_id)s AND d.organization_id = %(organization_id)s AND d.deleted_at IS NULL
"""


def look(organization_id: UUID, deployment_id: UUID, revision_id: UUID) -> Row:
    """Return a revision of one of the organization's deployments. Raises NotFound."""
    asked = {
        "organization_id": organization_id,
        "deployment_id": deployment_id,
        "revision_id": revision_id,
    }
    with driver() as conn:
        row = query(conn, LOOK, asked).fetchone()
    if row is None:
        raise deployments.missing(deployment_id)
    if row["id"] is None:
        raise revisions.missing(revision_id)
    return row


def changes(id: UUID, *, seconds: float, at: bytes | None = None) -> Iterator[None]:
    """Yield whenever the caller should read the row again. The first time is when the subscription is confirmed.

    `at` is the channel of the events, by default the channel of `id`. Ends after `seconds`, or at once when the process
    shuts down.
    """
    ends_at = time.monotonic() + seconds
    with hub().reader(id, at=at) as reader:
        reader.wait_confirmed(min(seconds, CONFIRM_SECONDS))
        now = time.monotonic()
        look_at = now + LOOK_SECONDS
        while now < ends_at:
            try:
                events, is_stale = reader.take(min(ends_at, look_at) - now)
            except Stopping:
                return
            now = time.monotonic()
            if is_stale or now >= min(ends_at, look_at) or any(event.name != "log" for event in events):
                look_at = now + LOOK_SECONDS
                yield
