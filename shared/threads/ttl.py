"""How long a thread of a deployment lives that nobody has given a time: what the serving revision's project says.

It is written to the thread when it is made, so that another revision changes nothing of the threads there are.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from shared.infra.postgres import Driver, query

GIVE_DEFAULT = """
UPDATE thread
SET ttl_minutes = CAST(configured.ttl ->> 'default_ttl' AS double precision),
    ttl_strategy = configured.ttl ->> 'strategy'
FROM (SELECT revision.manifest -> 'checkpointer' -> 'ttl' AS ttl
      FROM deployment JOIN revision ON revision.id = deployment.active_revision_id
      WHERE deployment.id = %(deployment_id)s) AS configured
WHERE thread.deployment_id = %(deployment_id)s AND thread.thread_id = %(thread_id)s
  AND configured.ttl ->> 'default_ttl' IS NOT NULL
"""


def give_default(conn: Connection | Driver, deployment_id: UUID, thread_id: UUID) -> None:
    """Let a new thread live as long as the configuration says; without such a word for ever."""
    query(conn, GIVE_DEFAULT, {"deployment_id": deployment_id, "thread_id": thread_id})
