"""Looking at a revision, once or until it changes: cheap enough for hundreds of callers who wait for a build.

One statement a look, and no connection is held between looks: who waits is woken by the revision's own
events, through the one subscriber connection of the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

from shared.deployments import deployments, revisions
from shared.eventlog.hub import Stopping, hub
from shared.infra.postgres import Row, driver, query

LOOK_SECONDS = 5.0  # also without an event: a message may be lost, and Redis may be away
CONFIRM_SECONDS = 1.0

LOOK = """
SELECT r.id, r.number, r.deployment_id, r.created_at, r.updated_at, r.status, r.status_message, r.source,
       r.source_revision_config, r.archive_digest, r.created_by, r.changes, r.preview,
       d.source_config ->> 'repo_url' AS repo_url
FROM deployment d LEFT JOIN revision r ON r.deployment_id = d.id AND r.id = %(revision_id)s
WHERE d.id = %(deployment_id)s AND d.organization_id = %(organization_id)s AND d.deleted_at IS NULL
"""


def look(organization_id: UUID, deployment_id: UUID, revision_id: UUID) -> Row:
    """A revision of one of the organization's deployments; raises NotFound."""
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
    """Yields whenever it is time to look at the row again, first when no event can be missed any more.

    `at` is the channel of its events, by default that of its own. Ends after so many seconds, with a last look, or
    at once when the process stops.
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
