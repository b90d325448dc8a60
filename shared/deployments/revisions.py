"""The life of a revision: created, queued, claimed, moved through its build, ended.

    CREATING ─┬─► QUEUED ─┬─► AWAITING_BUILD ─claim─► BUILDING ─► AWAITING_DEPLOY ─► DEPLOYING ─► DEPLOYED
              │           └─► SKIPPED (a newer one)       └─► BUILD_FAILED                └─► DEPLOY_FAILED
              └─ a built artifact starts at AWAITING_DEPLOY; any that has not ended can be INTERRUPTED

A claim increments `attempt` and takes a lease. Only the builder that holds `(attempt, owner)` may advance the revision;
every other write is refused. Decisions between revisions of one deployment are taken with the deployment's row locked.
All times are the database's.

Revisions for a preview and revisions for the deployment itself queue separately: a new revision skips only older ones
of the same target. One revision of a deployment is built at a time. A `Transition` is announced once its transaction
has committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text
from uuid_utils.compat import uuid7

from shared.deployments.records import REVISION
from shared.errors import Fenced, NotFound
from shared.eventlog.events import RESERVED
from shared.infra.postgres import dumps
from shared.models import REVISION_ENDS, RevisionStatus

IN_PROGRESS = (
    RevisionStatus.AWAITING_BUILD,
    RevisionStatus.BUILDING,
    RevisionStatus.AWAITING_DEPLOY,
    RevisionStatus.DEPLOYING,
)
CLAIMABLE = (RevisionStatus.AWAITING_BUILD, RevisionStatus.AWAITING_DEPLOY)
MAX_ATTEMPTS = 3
NOTIFY_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Transition:
    """A revision's new status, to be published to its followers. `attempt` and `seq` order it in the event log."""

    revision_id: UUID
    status: str
    message: str | None
    attempt: int
    seq: int

    @property
    def is_end(self) -> bool:
        return self.status in REVISION_ENDS


@dataclass(frozen=True, slots=True)
class ClaimedRevision:
    """A revision that a builder has claimed."""

    revision_id: UUID
    deployment_id: UUID
    organization_id: UUID
    pool: str
    status: str
    attempt: int
    owner: str
    floor: int  # event numbers up to this one may have been seen; the claim reserves the RESERVED numbers above it
    build_id: UUID  # names its environment: its own id, or that of the revision whose build it reuses
    archive_digest: str | None
    config: Mapping[str, Any]
    requirements: str | None
    python_version: str | None
    manifest: Mapping[str, Any] | None
    preview: str | None  # None: the revision is for the deployment itself


def lock_deployment(conn: Connection, deployment_id: UUID) -> None:
    """Lock the deployment's row, so that transactions change the order of its revisions one at a time."""
    conn.execute(text("SELECT 1 FROM deployment WHERE id = :id FOR UPDATE"), {"id": deployment_id})


INSERT = text("""
INSERT INTO revision (id, deployment_id, number, status, source, source_revision_config, archive_digest,
                      requirements, python_version, manifest, build_id, preview)
VALUES (:id, :deployment_id,
        (SELECT coalesce(max(number), 0) + 1 FROM revision WHERE deployment_id = :deployment_id),
        'CREATING', :source, CAST(:config AS json), :digest, :requirements, :python_version,
        CAST(:manifest AS json), :build_id, :preview)
""")


def create(
    conn: Connection,
    deployment_id: UUID,
    *,
    source: str,
    config: Mapping[str, Any],
    digest: str | None,
    requirements: str | None = None,
    python_version: str | None = None,
    manifest: Mapping[str, Any] | None = None,
    build_id: UUID | None = None,
    preview: str | None = None,
) -> UUID:
    """Insert a revision in CREATING. It becomes the deployment's latest unless it is for a preview.

    `build_id` is the revision whose build it reuses.
    """
    revision_id = uuid7()
    conn.execute(
        INSERT,
        {
            "id": revision_id,
            "deployment_id": deployment_id,
            "source": source,
            "config": dumps(config),
            "digest": digest,
            "requirements": requirements,
            "python_version": python_version,
            "manifest": None if manifest is None else dumps(manifest),
            "build_id": build_id,
            "preview": preview,
        },
    )
    if preview is None:
        conn.execute(
            text("UPDATE deployment SET latest_revision_id = :rid, updated_at = now() WHERE id = :id"),
            {"rid": revision_id, "id": deployment_id},
        )
    return revision_id


def start(conn: Connection, deployment_id: UUID, revision_id: UUID) -> list[Transition]:
    """Queue a prepared revision, or start it if none is in progress. Skips older queued ones of its target.

    The deployment must be locked.
    """
    moved = _skip_queued(conn, deployment_id, except_id=revision_id)
    if _has_one_in_progress(conn, deployment_id):
        return [*moved, _move(conn, revision_id, RevisionStatus.QUEUED)]
    return [*moved, _move(conn, revision_id, _first_step(conn, revision_id))]


def _first_step(conn: Connection, revision_id: UUID) -> RevisionStatus:
    built = text("SELECT requirements IS NOT NULL AND manifest IS NOT NULL FROM revision WHERE id = :id")
    is_built = conn.execute(built, {"id": revision_id}).scalar_one()
    return RevisionStatus.AWAITING_DEPLOY if is_built else RevisionStatus.AWAITING_BUILD


def _has_one_in_progress(conn: Connection, deployment_id: UUID) -> bool:
    query = text("SELECT EXISTS (SELECT FROM revision WHERE deployment_id = :id AND status = ANY(:statuses))")
    return bool(conn.execute(query, {"id": deployment_id, "statuses": list(IN_PROGRESS)}).scalar())


def interrupt_preview(conn: Connection, deployment_id: UUID, preview: str) -> list[Transition]:
    """Interrupt a preview's revisions that have not ended, and start the next queued one.

    The deployment must be locked.
    """
    query = text(
        "SELECT id FROM revision WHERE deployment_id = :id AND preview = :preview AND status <> ALL(:ends)"
    )
    values = {"id": deployment_id, "preview": preview, "ends": [str(end) for end in REVISION_ENDS]}
    ids = conn.execute(query, values).scalars().all()
    stopped = [_move(conn, id, RevisionStatus.INTERRUPTED, "its preview was deleted") for id in ids]
    return [*stopped, *promote(conn, deployment_id)]


def _skip_queued(conn: Connection, deployment_id: UUID, *, except_id: UUID) -> list[Transition]:
    query = text(
        "SELECT id FROM revision WHERE deployment_id = :id AND status = 'QUEUED' AND id <> :except"
        " AND preview IS NOT DISTINCT FROM (SELECT preview FROM revision WHERE id = :except)"
    )
    ids = conn.execute(query, {"id": deployment_id, "except": except_id}).scalars().all()
    return [_move(conn, id, RevisionStatus.SKIPPED, "replaced by a newer revision") for id in ids]


def promote(conn: Connection, deployment_id: UUID) -> list[Transition]:
    """Start the next queued revision if none is in progress.

    The newest revision for the deployment itself comes first, then the oldest for a preview. The deployment must be
    locked.
    """
    query = text(
        "SELECT id FROM revision WHERE deployment_id = :id AND status = 'QUEUED'"
        " ORDER BY preview IS NOT NULL, CASE WHEN preview IS NULL THEN -number ELSE number END"
    )
    next_one = conn.execute(query, {"id": deployment_id}).scalars().first()
    if next_one is None or _has_one_in_progress(conn, deployment_id):
        return []
    return start(conn, deployment_id, next_one)


MOVE = text("""
UPDATE revision SET status = :status, status_message = :message, updated_at = now(), owner = NULL,
       lease_until = NULL, notified_at = CASE WHEN :notifications THEN clock_timestamp() ELSE notified_at END,
       seq_reserved = seq_reserved + 2
WHERE id = :id AND status <> ALL(:ends)
RETURNING attempt, seq_reserved - 1 AS seq
""")


def _move(
    conn: Connection, revision_id: UUID, status: RevisionStatus, message: str | None = None
) -> Transition:
    """Set the status of a revision that has not ended, and release the claim of its builder, if any. Raises Fenced."""
    row = conn.execute(
        MOVE,
        {
            "id": revision_id,
            "status": status,
            "message": message,
            "notifications": status in CLAIMABLE,
            "ends": [str(end) for end in REVISION_ENDS],
        },
    ).one_or_none()
    if row is None:
        raise Fenced(f"revision {revision_id} has ended")
    # Control plane attempts are odd, builder attempts even: each fences off the writer before it.
    return Transition(revision_id, status, message, row.attempt * 2 + 1, row.seq)


def interrupt(conn: Connection, deployment_id: UUID, revision_id: UUID, *, reason: str) -> list[Transition]:
    """Interrupt a revision that has not ended and start the next queued one. The deployment must be locked."""
    try:
        stopped = _move(conn, revision_id, RevisionStatus.INTERRUPTED, reason)
    except Fenced:
        return []
    return [stopped, *promote(conn, deployment_id)]


def interrupt_all(conn: Connection, deployment_id: UUID, *, reason: str) -> list[Transition]:
    """Interrupt every revision of the deployment that has not ended. The deployment must be locked."""
    query = text("SELECT id FROM revision WHERE deployment_id = :id AND status <> ALL(:ends)")
    ids = conn.execute(query, {"id": deployment_id, "ends": [str(end) for end in REVISION_ENDS]})
    return [_move(conn, id, RevisionStatus.INTERRUPTED, reason) for id in ids.scalars().all()]


CLAIM = text("""
UPDATE revision r
SET status = CASE r.status WHEN 'AWAITING_BUILD' THEN 'BUILDING' ELSE 'DEPLOYING' END,
    attempt = r.attempt + 1, owner = :owner, seq_reserved = r.seq_reserved + :reserved,
    lease_until = now() + make_interval(secs => :lease), updated_at = now()
FROM deployment d
WHERE r.id = :id AND d.id = r.deployment_id AND d.deleted_at IS NULL AND r.owner IS NULL
  AND r.status = ANY(:claimable) AND is_due(r.not_before)
RETURNING r.id, r.deployment_id, d.organization_id, d.pool, r.status, r.attempt,
          r.seq_reserved - :reserved AS floor, r.archive_digest, r.source_revision_config, r.requirements,
          r.python_version, r.manifest, coalesce(r.build_id, r.id) AS build_id, r.preview
""")


def claim(conn: Connection, revision_id: UUID, *, owner: str, lease_seconds: float) -> ClaimedRevision | None:
    """Claim a revision that waits for a builder. Returns None if another builder already claimed it."""
    row = conn.execute(
        CLAIM,
        {
            "id": revision_id,
            "owner": owner,
            "lease": lease_seconds,
            "reserved": RESERVED,
            "claimable": list(CLAIMABLE),
        },
    ).one_or_none()
    if row is None:
        return None
    return ClaimedRevision(
        revision_id=row.id,
        deployment_id=row.deployment_id,
        organization_id=row.organization_id,
        pool=row.pool,
        status=row.status,
        attempt=row.attempt,
        owner=owner,
        floor=row.floor,
        build_id=row.build_id,
        archive_digest=row.archive_digest,
        config=row.source_revision_config,
        requirements=row.requirements,
        python_version=row.python_version,
        manifest=row.manifest,
        preview=row.preview,
    )


HELD = "id = :id AND attempt = :attempt AND owner = :owner"


def _held(claimed: ClaimedRevision) -> dict[str, Any]:
    return {"id": claimed.revision_id, "attempt": claimed.attempt, "owner": claimed.owner}


def renew(conn: Connection, claimed: ClaimedRevision, *, lease_seconds: float) -> bool:
    """Renew the lease. Returns False if this attempt no longer owns the revision."""
    query = text(f"UPDATE revision SET lease_until = now() + make_interval(secs => :lease) WHERE {HELD}")
    return conn.execute(query, {**_held(claimed), "lease": lease_seconds}).rowcount == 1


def reserve(conn: Connection, claimed: ClaimedRevision, upto: int) -> None:
    """Reserve event numbers up to `upto` for this attempt. Raises Fenced."""
    query = text(f"UPDATE revision SET seq_reserved = greatest(seq_reserved, :upto) WHERE {HELD}")
    _require_one(conn.execute(query, {**_held(claimed), "upto": upto}).rowcount, claimed)


def advance(conn: Connection, claimed: ClaimedRevision, status: RevisionStatus) -> None:
    """Move the claimed revision to its next step. Raises Fenced."""
    query = text(f"UPDATE revision SET status = :status, updated_at = now() WHERE {HELD}")
    _require_one(conn.execute(query, {**_held(claimed), "status": status}).rowcount, claimed)


def keep_artifact(
    conn: Connection,
    claimed: ClaimedRevision,
    *,
    requirements: str,
    python_version: str,
    manifest: Mapping[str, Any],
) -> None:
    """Store what is needed to rebuild the same environment on any machine. Raises Fenced."""
    query = text(
        "UPDATE revision SET requirements = :requirements, python_version = :python_version,"
        f" manifest = CAST(:manifest AS json), updated_at = now() WHERE {HELD}"
    )
    values = {"requirements": requirements, "python_version": python_version, "manifest": dumps(manifest)}
    _require_one(conn.execute(query, {**_held(claimed), **values}).rowcount, claimed)


def keep_user_code(conn: Connection, claimed: ClaimedRevision, document: Mapping[str, Any] | None) -> None:
    """Store the description of the revision's authorization and app. Raises Fenced."""
    query = text(f"UPDATE revision SET user_code = CAST(:document AS json) WHERE {HELD}")
    values = {**_held(claimed), "document": None if document is None else dumps(document)}
    _require_one(conn.execute(query, values).rowcount, claimed)


def keep_source(conn: Connection, claimed: ClaimedRevision, *, digest: str, commit: str) -> ClaimedRevision:
    """Record the archive and the repository commit that the claimed revision is built from. Raises Fenced."""
    config = {**claimed.config, "repo_commit_sha": commit}
    query = text(
        "UPDATE revision SET archive_digest = :digest, source_revision_config = CAST(:config AS json),"
        f" updated_at = now() WHERE {HELD}"
    )
    values = {**_held(claimed), "digest": digest, "config": dumps(config)}
    _require_one(conn.execute(query, values).rowcount, claimed)
    return replace(claimed, archive_digest=digest, config=config)


def repeat(conn: Connection, claimed: ClaimedRevision, build_id: UUID) -> None:
    """Let the claimed revision reuse the build of an earlier one. Raises Fenced."""
    query = text(f"UPDATE revision SET build_id = :build_id WHERE {HELD}")
    _require_one(conn.execute(query, {**_held(claimed), "build_id": build_id}).rowcount, claimed)


def end(
    conn: Connection, claimed: ClaimedRevision, status: RevisionStatus, message: str | None
) -> list[Transition]:
    """Set the claimed revision's final status and start the next queued one. Raises Fenced.

    The deployment must be locked. Returns the transitions of other revisions; the builder publishes the end of its own.
    """
    query = text(
        "UPDATE revision SET status = :status, status_message = :message, updated_at = now(), owner = NULL,"
        f" lease_until = NULL WHERE {HELD}"
    )
    done = conn.execute(query, {**_held(claimed), "status": status, "message": message})
    _require_one(done.rowcount, claimed)
    return promote(conn, claimed.deployment_id)


def give_back(conn: Connection, claimed: ClaimedRevision) -> bool:
    """Release the claim so that another builder can continue at once. Returns False if this attempt had lost it."""
    query = text(
        "UPDATE revision SET status = CASE WHEN requirements IS NULL OR manifest IS NULL THEN 'AWAITING_BUILD'"
        f" ELSE 'AWAITING_DEPLOY' END, owner = NULL, lease_until = NULL, notified_at = NULL WHERE {HELD}"
    )
    return conn.execute(query, _held(claimed)).rowcount == 1


def _require_one(rowcount: int, claimed: ClaimedRevision) -> None:
    if rowcount != 1:
        raise Fenced(f"revision {claimed.revision_id} no longer belongs to attempt {claimed.attempt}")


DUE = text("""
UPDATE revision SET notified_at = clock_timestamp(), notifications = notifications + 1
WHERE id IN (
    SELECT id FROM revision
    WHERE status = ANY(:claimable) AND owner IS NULL AND is_due(revision.not_before)
      AND (notified_at IS NULL OR notified_at NOT BETWEEN
        clock_timestamp() - make_interval(secs => :again * least(notifications + 1, 12)) AND clock_timestamp())
    ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id
""")


def due(conn: Connection) -> Sequence[UUID]:
    """Return revisions that wait for a builder and whose notification may be lost. Marks them as notified now."""
    values = {"claimable": list(CLAIMABLE), "again": NOTIFY_AGAIN_SECONDS}
    return conn.execute(DUE, values).scalars().all()


SHORTEN = text("""
UPDATE revision SET lease_until = now() + make_interval(secs => :lease)
WHERE owner IS NOT NULL AND lease_until > now() + make_interval(secs => 2 * :lease)
""")


def shorten_leases(conn: Connection, *, lease_seconds: float) -> int:
    """Shorten leases that last over twice `lease_seconds` to `lease_seconds`, as `claims.shorten_leases` does for runs.

    Returns the number of changed leases.
    """
    return conn.execute(SHORTEN, {"lease": lease_seconds}).rowcount


EXPIRED = text("""
SELECT id, deployment_id, status, attempt FROM revision
WHERE owner IS NOT NULL AND status = ANY(:statuses) AND lease_until < now()
ORDER BY lease_until LIMIT 20
""")


def expire(conn: Connection) -> list[Transition]:
    """Release revisions whose builder's lease expired. Each gets its next attempt, or ends after MAX_ATTEMPTS."""
    moved: list[Transition] = []
    for row in conn.execute(EXPIRED, {"statuses": list(IN_PROGRESS)}).all():
        lock_deployment(conn, row.deployment_id)
        still = text("SELECT 1 FROM revision WHERE id = :id AND attempt = :attempt AND lease_until < now()")
        if conn.execute(still, {"id": row.id, "attempt": row.attempt}).first() is None:
            continue
        if row.attempt < MAX_ATTEMPTS:
            moved.append(_move(conn, row.id, _first_step(conn, row.id)))
            continue
        is_deploying = row.status in (RevisionStatus.AWAITING_DEPLOY, RevisionStatus.DEPLOYING)
        failed = RevisionStatus.DEPLOY_FAILED if is_deploying else RevisionStatus.BUILD_FAILED
        why = f"abandoned: the builder died in each of {row.attempt} attempts"
        moved += [_move(conn, row.id, failed, why), *promote(conn, row.deployment_id)]
    return moved


def get(conn: Connection, deployment_id: UUID, revision_id: UUID) -> RowMapping:
    """Return a revision's row. Raises NotFound."""
    query = text(
        f"SELECT {REVISION.select}, r.deployment_id, r.requirements, r.python_version, r.manifest,"
        " r.build_id, r.attempt, r.seq_reserved FROM revision r WHERE r.deployment_id = :deployment_id AND r.id = :id"
    )
    row = conn.execute(query, {"deployment_id": deployment_id, "id": revision_id}).mappings().one_or_none()
    if row is None:
        raise missing(revision_id)
    return row


def missing(revision_id: UUID) -> NotFound:
    return NotFound(f"Revision ID {revision_id} not found.")


def list_of(
    conn: Connection, deployment_id: UUID, *, statuses: Sequence[str], limit: int, offset: int
) -> list[RowMapping]:
    """Return a deployment's revisions in one of the statuses (all if empty), newest first."""
    query = text(
        f"SELECT {REVISION.select} FROM revision r WHERE r.deployment_id = :id"
        " AND (cardinality(CAST(:statuses AS text[])) = 0 OR r.status = ANY(:statuses))"
        " ORDER BY r.number DESC LIMIT :limit OFFSET :offset"
    )
    values = {"id": deployment_id, "statuses": list(statuses), "limit": limit, "offset": offset}
    return list(conn.execute(query, values).mappings())
