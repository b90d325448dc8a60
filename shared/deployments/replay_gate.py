"""The gate of a deployment that requires replays: a revision gets traffic only if its newest judged replay has passed.

A revision that has served all traffic before gets it back without a replay, so that a rollback is possible at once. Until
a first revision serves there are no past runs, and every deploy is admitted.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from shared.errors import Conflict
from shared.infra.postgres import Row
from shared.sql import statement

PREVIEW_FIRST = (
    "The deployment requires a passed replay, and a deploy without a preview would serve at once. Deploy to a preview,"
    " replay past runs on it, and promote it: `runyard deploy --preview NAME --replay 100 --fail-on RULE --promote`."
)
_STANDING = statement("replays.standing")


def needs_replay(deployment: Row, *, require_replay: bool | None = None) -> bool:
    """Whether a new revision must have passed a replay before it serves. `require_replay` is a change of the setting."""
    is_required = deployment["require_replay"] if require_replay is None else require_replay
    return is_required and deployment["active_revision_id"] is not None


def require_passed(
    conn: Connection, deployment_id: UUID, revision_id: UUID, *, exempts_served: bool = True
) -> bool:
    """Raise Conflict unless the newest judged replay of a revision passed.

    With `exempts_served`, a revision that has served before needs no replay. Returns whether it was exempt.
    """
    (row,) = _STANDING.rows(conn, deployment_id=deployment_id, revision_id=revision_id)
    if row["verdict"] == "passed":
        return False
    if exempts_served and row["has_served"]:
        return True
    if row["verdict"] is None:
        raise Conflict(
            f"v{row['number']} gets no traffic before a replay of it has passed, and none was judged."
        )
    failed = ", ".join(row["failed"])
    raise Conflict(
        f"v{row['number']} gets no traffic: its newest replay, {row['replay_id']}, failed: {failed}."
    )


def require_preview(deployment: Row, *, require_replay: bool | None) -> None:
    """Raise Conflict if a new revision would serve without a replay. `require_replay` is a change of the setting."""
    if needs_replay(deployment, require_replay=require_replay):
        raise Conflict(PREVIEW_FIRST)
