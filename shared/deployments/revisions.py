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
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, text, update
from uuid_utils.compat import uuid7

from shared.deployments.records import REVISION
from shared.errors import Fenced, NotFound
from shared.eventlog.events import RESERVED
from shared.infra.arrays import texts
from shared.infra.postgres import Row, dumps
from shared.models import REVISION as TABLE
from shared.models import REVISION_ENDS, RevisionStatus
from shared.sql import statement

IN_PROGRESS = (
    RevisionStatus.AWAITING_BUILD,
    RevisionStatus.BUILDING,
    RevisionStatus.AWAITING_DEPLOY,
    RevisionStatus.DEPLOYING,
)
CLAIMABLE = (RevisionStatus.AWAITING_BUILD, RevisionStatus.AWAITING_DEPLOY)
MAX_ATTEMPTS = 3
NOTIFY_AGAIN_SECONDS = 5.0

_ENDS = texts(sorted(REVISION_ENDS))
_INSERT = statement("revisions.insert")
_GET = statement("revisions.get", columns=REVISION.select)
_OF_DEPLOYMENT = statement("revisions.of_deployment", columns=REVISION.select)
_OLDER_QUEUED = statement("revisions.older_queued")
_NEXT_QUEUED = statement("revisions.next_queued")
_UNENDED = statement("revisions.unended")
_MOVE = statement("revisions.move")
_CLAIM = statement("revisions.claim")
_GIVE_BACK = statement("revisions.give_back")
_DUE = statement("revisions.due")
_EXPIRED = statement("revisions.expired")


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
    _INSERT.count(
        conn,
        id=revision_id,
        deployment_id=deployment_id,
        source=source,
        config=dumps(config),
        digest=digest,
        requirements=requirements,
        python_version=python_version,
        manifest=None if manifest is None else dumps(manifest),
        build_id=build_id,
        preview=preview,
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
    older = _OLDER_QUEUED.rows(conn, deployment_id=deployment_id, revision_id=revision_id)
    moved = [_move(conn, row["id"], RevisionStatus.SKIPPED, "replaced by a newer revision") for row in older]
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
    rows = _UNENDED.rows(conn, deployment_id=deployment_id, preview=preview, ends=_ENDS)
    stopped = [_move(conn, row["id"], RevisionStatus.INTERRUPTED, "its preview was deleted") for row in rows]
    return [*stopped, *promote(conn, deployment_id)]


def promote(conn: Connection, deployment_id: UUID) -> list[Transition]:
    """Start the next queued revision if none is in progress.

    The newest revision for the deployment itself comes first, then the oldest for a preview. The deployment must be
    locked.
    """
    row = _NEXT_QUEUED.row(conn, deployment_id=deployment_id)
    if row is None or _has_one_in_progress(conn, deployment_id):
        return []
    return start(conn, deployment_id, row["id"])


def _move(
    conn: Connection, revision_id: UUID, status: RevisionStatus, message: str | None = None
) -> Transition:
    """Set the status of a revision that has not ended, and release the claim of its builder, if any. Raises Fenced."""
    row = _MOVE.row(
        conn, id=revision_id, status=status, message=message, is_notified=status in CLAIMABLE, ends=_ENDS
    )
    if row is None:
        raise Fenced(f"revision {revision_id} has ended")
    # Control plane attempts are odd, builder attempts even: each fences off the writer before it.
    return Transition(revision_id, status, message, row["attempt"] * 2 + 1, row["seq"])


def interrupt(conn: Connection, deployment_id: UUID, revision_id: UUID, *, reason: str) -> list[Transition]:
    """Interrupt a revision that has not ended and start the next queued one. The deployment must be locked."""
    try:
        stopped = _move(conn, revision_id, RevisionStatus.INTERRUPTED, reason)
    except Fenced:
        return []
    return [stopped, *promote(conn, deployment_id)]


def interrupt_all(conn: Connection, deployment_id: UUID, *, reason: str) -> list[Transition]:
    """Interrupt every revision of the deployment that has not ended. The deployment must be locked."""
    rows = _UNENDED.rows(conn, deployment_id=deployment_id, preview=None, ends=_ENDS)
    return [_move(conn, row["id"], RevisionStatus.INTERRUPTED, reason) for row in rows]


def claim(conn: Connection, revision_id: UUID, *, owner: str, lease_seconds: float) -> ClaimedRevision | None:
    """Claim a revision that waits for a builder. Returns None if another builder already claimed it."""
    row = _CLAIM.row(
        conn,
        id=revision_id,
        owner=owner,
        lease_seconds=lease_seconds,
        reserved=RESERVED,
        claimable=texts(CLAIMABLE),
    )
    return None if row is None else ClaimedRevision(**row)


def _change_if_held(conn: Connection, claimed: ClaimedRevision, **values: Any) -> bool:
    """Set columns of a claimed revision. Returns False if this attempt no longer owns it."""
    is_held = (
        (TABLE.c.id == claimed.revision_id)
        & (TABLE.c.attempt == claimed.attempt)
        & (TABLE.c.owner == claimed.owner)
    )
    return conn.execute(update(TABLE).where(is_held).values(**values)).rowcount == 1


def _change(conn: Connection, claimed: ClaimedRevision, **values: Any) -> None:
    """Set columns of a claimed revision. Raises Fenced."""
    if not _change_if_held(conn, claimed, **values):
        raise Fenced(f"revision {claimed.revision_id} no longer belongs to attempt {claimed.attempt}")


def renew(conn: Connection, claimed: ClaimedRevision, *, lease_seconds: float) -> bool:
    """Renew the lease. Returns False if this attempt no longer owns the revision."""
    return _change_if_held(conn, claimed, lease_until=func.now() + timedelta(seconds=lease_seconds))


def reserve(conn: Connection, claimed: ClaimedRevision, upto: int) -> None:
    """Reserve event numbers up to `upto` for this attempt. Raises Fenced."""
    _change(conn, claimed, seq_reserved=func.greatest(TABLE.c.seq_reserved, upto))


def advance(conn: Connection, claimed: ClaimedRevision, status: RevisionStatus) -> None:
    """Move the claimed revision to its next step. Raises Fenced."""
    _change(conn, claimed, status=status, updated_at=func.now())


def keep_artifact(
    conn: Connection,
    claimed: ClaimedRevision,
    *,
    requirements: str,
    python_version: str | None,
    manifest: Mapping[str, Any],
) -> None:
    """Store what is needed to rebuild the same environment on any machine. Raises Fenced."""
    _change(
        conn,
        claimed,
        requirements=requirements,
        python_version=python_version,
        manifest=manifest,
        updated_at=func.now(),
    )


def keep_user_code(conn: Connection, claimed: ClaimedRevision, document: Mapping[str, Any] | None) -> None:
    """Store the description of the revision's authorization and app. Raises Fenced."""
    _change(conn, claimed, user_code=document)


def keep_source(conn: Connection, claimed: ClaimedRevision, *, digest: str, commit: str) -> ClaimedRevision:
    """Record the archive and the repository commit that the claimed revision is built from. Raises Fenced."""
    config = {**claimed.config, "repo_commit_sha": commit}
    _change(conn, claimed, archive_digest=digest, source_revision_config=config, updated_at=func.now())
    return replace(claimed, archive_digest=digest, config=config)


def reuse_build(conn: Connection, claimed: ClaimedRevision, build_id: UUID) -> None:
    """Let the claimed revision reuse the build of an earlier one. Raises Fenced."""
    _change(conn, claimed, build_id=build_id)


def end(
    conn: Connection, claimed: ClaimedRevision, status: RevisionStatus, message: str | None
) -> list[Transition]:
    """Set the claimed revision's final status and start the next queued one. Raises Fenced.

    The deployment must be locked. Returns the transitions of other revisions; the builder publishes the end of its own.
    """
    _change(
        conn,
        claimed,
        status=status,
        status_message=message,
        updated_at=func.now(),
        owner=None,
        lease_until=None,
    )
    return promote(conn, claimed.deployment_id)


def give_back(conn: Connection, claimed: ClaimedRevision) -> bool:
    """Release the claim so that another builder can continue at once. Returns False if this attempt had lost it."""
    values = {"id": claimed.revision_id, "attempt": claimed.attempt, "owner": claimed.owner}
    return _GIVE_BACK.count(conn, **values) == 1


def due(conn: Connection) -> list[UUID]:
    """Return revisions that wait for a builder and whose notification may be lost. Marks them as notified now."""
    rows = _DUE.rows(conn, claimable=texts(CLAIMABLE), again_seconds=NOTIFY_AGAIN_SECONDS)
    return [row["id"] for row in rows]


def shorten_leases(conn: Connection, *, lease_seconds: float) -> int:
    """Shorten leases that last over twice `lease_seconds` to `lease_seconds`, as `claims.shorten_leases` does for runs.

    Returns the number of changed leases.
    """
    lease = timedelta(seconds=lease_seconds)
    is_longer = TABLE.c.owner.is_not(None) & (TABLE.c.lease_until > func.now() + 2 * lease)
    return conn.execute(update(TABLE).where(is_longer).values(lease_until=func.now() + lease)).rowcount


def expire(conn: Connection) -> list[Transition]:
    """Release revisions whose builder's lease expired. Each gets its next attempt, or ends after MAX_ATTEMPTS."""
    moved: list[Transition] = []
    for row in _EXPIRED.rows(conn, in_progress=texts(IN_PROGRESS)):
        revision_id, deployment_id, attempt = row["id"], row["deployment_id"], row["attempt"]
        lock_deployment(conn, deployment_id)
        still = text("SELECT 1 FROM revision WHERE id = :id AND attempt = :attempt AND lease_until < now()")
        if conn.execute(still, {"id": revision_id, "attempt": attempt}).first() is None:
            continue
        if attempt < MAX_ATTEMPTS:
            moved.append(_move(conn, revision_id, _first_step(conn, revision_id)))
            continue
        is_deploying = row["status"] in (RevisionStatus.AWAITING_DEPLOY, RevisionStatus.DEPLOYING)
        failed = RevisionStatus.DEPLOY_FAILED if is_deploying else RevisionStatus.BUILD_FAILED
        why = f"abandoned: the builder died in each of {attempt} attempts"
        moved += [_move(conn, revision_id, failed, why), *promote(conn, deployment_id)]
    return moved


def get(conn: Connection, deployment_id: UUID, revision_id: UUID) -> Row:
    """Return a revision's row. Raises NotFound."""
    row = _GET.row(conn, deployment_id=deployment_id, id=revision_id)
    if row is None:
        raise missing(revision_id)
    return row


def missing(revision_id: UUID) -> NotFound:
    return NotFound(f"Revision ID {revision_id} not found.")


def list_of(
    conn: Connection, deployment_id: UUID, *, statuses: Sequence[str], limit: int, offset: int
) -> list[dict[str, Any]]:
    """Return a deployment's revisions in one of the statuses (all if empty), newest first."""
    return _OF_DEPLOYMENT.rows(
        conn, deployment_id=deployment_id, statuses=texts(statuses), limit=limit, offset=offset
    )
