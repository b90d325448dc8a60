"""Traffic of a deployment: the serving revision, a split over several revisions, and previews.

    a revision is DEPLOYED ──► it serves alone          (for the deployment itself: ends a split)
                          └──► its preview shows it     (for a preview)
    split ──► several share the traffic ──► promote: one of them serves alone
                                        └─► abort: the serving revision gets all traffic again

Each change is one `UPDATE` of the deployment with its row locked. Every revision it names must be DEPLOYED. A revision
is kept as long as it has traffic. If the deployment or the request requires a replay, the newest judged replay of each
revision that gets traffic must have passed: see `replay_gate.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.audit import Actor
from shared.deployments import deployments, replay_gate, revisions
from shared.deployments.next_revision import Change
from shared.deployments.records import PREVIEW
from shared.deployments.revisions import Transition
from shared.deployments.shares import MOST, WHOLE, Share
from shared.errors import Conflict, Invalid, NotFound
from shared.infra.arrays import texts
from shared.infra.postgres import Row, dumps
from shared.models import REVISION_ENDS, RevisionStatus
from shared.sql import statement

MOST_PREVIEWS = 100  # of a deployment

_SERVE = statement("deployments.serve")
_PROMOTE = statement("deployments.promote")
_ADDRESS_OF_PREVIEW = statement("deployments.address_of_preview")
_PREVIEWS = statement("deployments.previews", columns=PREVIEW.select)
_SHOW_PREVIEW = statement("deployments.show_preview")


def serve(conn: Connection, deployment_id: UUID, revision_id: UUID) -> str:
    """Send all traffic to this revision. Returns the deployment's name. The deployment must be locked."""
    (row,) = _SERVE.rows(conn, id=deployment_id, revision_id=revision_id)
    return row["name"]


def split(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    requested: Sequence[Share],
    *,
    require_replay: bool = False,
) -> list[int]:
    """Split the traffic by these shares. 100 % for the serving revision ends a split.

    `require_replay` requires passed replays even if the deployment's setting does not, and also of revisions that have
    served before. The serving revision may keep its traffic. Returns the numbers of the revisions that the setting
    exempted. Raises NotFound, Invalid, Conflict.
    """
    _require_whole(requested)
    deployment = deployments.lock(conn, organization_id, deployment_id)
    query = text("SELECT active_revision_id FROM deployment WHERE id = :id")
    serving = conn.execute(query, {"id": deployment_id}).scalar_one()
    if serving is None:
        raise Conflict("The deployment has no serving revision yet: there is nothing to split.")
    numbers = {
        share.revision_id: _deployed(conn, deployment_id, share.revision_id, "traffic", index, "revision_id")
        for index, share in enumerate(requested)
    }
    kept = [share for share in requested if share.percent]
    kept.sort(key=lambda share: numbers[share.revision_id])
    exempt = [
        numbers[share.revision_id]
        for share in kept
        if share.revision_id != serving
        and _is_exempt(conn, deployment, share.revision_id, require_replay=require_replay)
    ]
    shown = [{"revision_id": share.revision_id, "percent": share.percent} for share in kept]
    is_split = kept != [Share(serving, WHOLE)]
    query = text(
        "UPDATE deployment SET traffic = CAST(:traffic AS jsonb), traffic_at = now(), updated_at = now()"
        " WHERE id = :id"
    )
    conn.execute(query, {"id": deployment_id, "traffic": dumps(shown) if is_split else None})
    return exempt


def _is_exempt(conn: Connection, deployment: Row, revision_id: UUID, *, require_replay: bool) -> bool:
    """Return whether a revision gets traffic without a required replay because it has served. Raises Conflict."""
    if not require_replay and not deployment["require_replay"]:
        return False
    return replay_gate.require_passed(conn, deployment["id"], revision_id, exempts_served=not require_replay)


def _require_whole(requested: Sequence[Share]) -> None:
    """Raise Invalid unless the shares add up to 100 % and no revision occurs twice."""
    ids = [share.revision_id for share in requested]
    if len(requested) > MOST:
        raise Invalid(f"must have at most {MOST} items", loc=("body", "traffic"), kind="too_long")
    if len(set(ids)) != len(ids):
        raise Invalid("a revision is named twice", loc=("body", "traffic"))
    total = sum(share.percent for share in requested)
    if total != WHOLE:
        raise Invalid(f"the percentages must add up to {WHOLE}, not {total}", loc=("body", "traffic"))


def _deployed(conn: Connection, deployment_id: UUID, revision_id: UUID, *loc: str | int) -> int:
    """Return the number of a DEPLOYED revision. Raises Invalid naming the field `loc`."""
    query = text("SELECT number, status FROM revision WHERE deployment_id = :deployment_id AND id = :id")
    row = conn.execute(query, {"deployment_id": deployment_id, "id": revision_id}).one_or_none()
    if row is None:
        raise Invalid("the deployment has no such revision", loc=("body", *loc))
    if row.status != RevisionStatus.DEPLOYED:
        raise Invalid(f"the revision is {row.status}, not DEPLOYED", loc=("body", *loc))
    return row.number


def require_deployed(
    conn: Connection, organization_id: UUID, deployment_id: UUID, revision_id: UUID, *loc: str | int
) -> None:
    """Raise NotFound for a missing deployment, and Invalid for a revision that is not DEPLOYED."""
    deployments.require(conn, organization_id, deployment_id)
    _deployed(conn, deployment_id, revision_id, *loc)


def promote(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    revision_id: UUID,
    *,
    require_replay: bool = False,
) -> bool:
    """Send all traffic to a DEPLOYED revision, which ends a split.

    `require_replay` requires a passed replay even if the deployment's setting does not, and also of a revision that has
    served before. Returns whether the setting exempted the revision. Raises NotFound, Invalid, Conflict.
    """
    deployment = deployments.lock(conn, organization_id, deployment_id)
    _deployed(conn, deployment_id, revision_id, "revision_id")
    is_exempt = _is_exempt(conn, deployment, revision_id, require_replay=require_replay)
    serve(conn, deployment_id, revision_id)
    _PROMOTE.count(conn, id=deployment_id, revision_id=revision_id, ends=texts(sorted(REVISION_ENDS)))
    conn.execute(text("UPDATE revision SET preview = NULL WHERE id = :id"), {"id": revision_id})
    return is_exempt


def abort(conn: Connection, organization_id: UUID, deployment_id: UUID) -> bool:
    """End a split: send all traffic to the serving revision. Returns whether there was one. Raises NotFound."""
    deployments.lock(conn, organization_id, deployment_id)
    query = text(
        "UPDATE deployment SET traffic = NULL, traffic_at = now(), updated_at = now()"
        " WHERE id = :id AND traffic IS NOT NULL"
    )
    return conn.execute(query, {"id": deployment_id}).rowcount == 1


# Previews.


def add_preview(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    name: str,
    change: Change,
    *,
    by: Actor | None = None,
) -> tuple[UUID, list[Transition]]:
    """Create a revision for a preview. The preview shows its previous revision until this one is DEPLOYED.

    Raises NotFound, Invalid, Conflict.
    """
    deployments.lock(conn, organization_id, deployment_id)
    _require_address(conn, organization_id, deployment_id, name)
    query = text(
        "INSERT INTO preview (deployment_id, name) VALUES (:id, :name)"
        " ON CONFLICT (deployment_id, name) DO UPDATE SET updated_at = now()"
    )
    conn.execute(query, {"id": deployment_id, "name": name})
    return deployments.add_revision(conn, organization_id, deployment_id, change, by=by, preview=name)


def _require_address(conn: Connection, organization_id: UUID, deployment_id: UUID, name: str) -> None:
    """Raise Conflict for too many previews, or if another deployment already has the preview's address name."""
    (row,) = _ADDRESS_OF_PREVIEW.rows(conn, id=deployment_id, name=name, sign=deployments.PREVIEW_SIGN)
    if row["is_taken"]:
        raise Conflict("The name of this preview's address is already the name of a deployment.")
    if row["others"] >= MOST_PREVIEWS:
        raise Conflict(f"The deployment has {MOST_PREVIEWS} previews already: delete some.")


def show_preview(conn: Connection, deployment_id: UUID, name: str, revision_id: UUID) -> str:
    """Point a preview to this revision. Returns the preview's address name. The deployment must be locked."""
    (row,) = _SHOW_PREVIEW.rows(conn, id=deployment_id, name=name, revision_id=revision_id)
    return deployments.preview_address_name(row["name"], name)


def previews(conn: Connection, organization_id: UUID, deployment_id: UUID) -> list[dict[str, Any]]:
    """Return a deployment's previews. Raises NotFound."""
    deployments.require(conn, organization_id, deployment_id)
    return _PREVIEWS.rows(conn, id=deployment_id)


def delete_preview(
    conn: Connection, organization_id: UUID, deployment_id: UUID, name: str
) -> list[Transition]:
    """Delete a preview with its address, and interrupt its revisions that have not ended. Raises NotFound."""
    deployments.lock(conn, organization_id, deployment_id)
    query = text("DELETE FROM preview WHERE deployment_id = :id AND name = :name")
    if conn.execute(query, {"id": deployment_id, "name": name}).rowcount != 1:
        raise NotFound(f"Preview {name} not found.")
    conn.execute(text("UPDATE deployment SET traffic_at = now() WHERE id = :id"), {"id": deployment_id})
    return revisions.interrupt_preview(conn, deployment_id, name)
