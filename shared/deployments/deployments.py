"""Deployments: creating, finding and changing them, and which changes create a revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text, update
from sqlalchemy.dialects.postgresql import insert
from uuid_utils.compat import uuid7

from shared.audit import Actor
from shared.deployments import (
    limits,
    next_revision,
    records,
    replay_gate,
    revisions,
    shares,
    sources,
    user_code,
)
from shared.deployments import secrets as revision_secrets
from shared.deployments.next_revision import REPOSITORY, Change
from shared.deployments.revisions import Transition
from shared.deployments.shares import Share
from shared.deployments.user_code import UserCode
from shared.errors import Conflict, Invalid, NotFound
from shared.infra.postgres import Row, dumps
from shared.models import (
    DEPLOYMENT,
    REVISION_ENDS,
    DeploymentStatus,
    RevisionStatus,
    status_of_deployment,
)
from shared.sql import statement

SOURCE_CONFIG = (
    "integration_id repo_url deployment_type build_on_push custom_url resource_spec listener_id"
    " listener_config install_command build_command template_id"
).split()
REVISION_CONFIG = "repo_ref langgraph_config_path image_uri source_tarball_path repo_commit_sha".split()


NO_USER_CODE = UserCode()
PATH_PREFIX = "/d/"  # the path of every deployment begins with it, followed by the deployment's name
PREVIEW_SIGN = "--"  # separates deployment and preview name in an address; preview names never contain it

_BY_ADDRESS = statement("deployments.by_address")
_BY_PUBLIC_ADDRESS = statement("deployments.by_public_address")
_BY_ID = statement("deployments.by_id")
_GET = statement("deployments.get", columns=records.DEPLOYMENT.select)
_IS_TAKEN = statement("deployments.is_taken")
_RECENTLY_USED = statement("deployments.recently_used")


@dataclass(frozen=True, slots=True)
class DeploymentRef:
    """A deployment as the deployment API needs it."""

    id: UUID
    organization_id: UUID
    name: str
    pool: str
    active_revision_id: UUID | None  # at a preview's address: the preview's revision
    http: Mapping[str, Any] = field(default_factory=dict)  # from the langgraph.json of the active revision
    user_code: UserCode = NO_USER_CODE  # of the active revision
    traffic: Sequence[Share] = ()  # empty: new runs get the active revision
    preview: str | None = None  # preview whose address was called: new runs get its revision
    is_bench: bool = False  # of a replay: its address is read-only
    is_pinned: bool = False  # new runs get `active_revision_id`, whatever the traffic

    @property
    def address_name(self) -> str:
        """The deployment's name in the address that was called."""
        return self.name if self.preview is None else preview_address_name(self.name, self.preview)


def preview_address_name(name: str, preview: str) -> str:
    """Return the name of a deployment's preview in addresses, `<deployment>--<preview>`."""
    return f"{name}{PREVIEW_SIGN}{preview}"


def _address(name: str) -> dict[str, str]:
    """Return the parameters of a lookup by address: a deployment's name, or a deployment's and a preview's name."""
    previewed, _, preview = name.rpartition(PREVIEW_SIGN)
    return {"name": name, "previewed": previewed, "preview": preview}


def resolve(conn: Connection, organization_id: UUID, name: str) -> DeploymentRef | None:
    """Return the organization's deployment with this name, else its preview with this address name, else None."""
    return _ref(conn, _BY_ADDRESS.row(conn, organization_id=organization_id, **_address(name)))


def resolve_by_id(conn: Connection, deployment_id: UUID) -> DeploymentRef | None:
    """Return the deployment with this id, of any organization, or None."""
    return _ref(conn, _BY_ID.row(conn, id=deployment_id))


def resolve_for_anybody(
    conn: Connection, name: str, organization_id: UUID | None = None
) -> DeploymentRef | None:
    """Return the deployment with this name that may answer callers without a platform key, or None.

    Such a deployment has user code or HTTP settings. If several organizations have one with this name, a deployment
    with user code comes before one with HTTP settings only, then the oldest.
    """
    return _ref(conn, _BY_PUBLIC_ADDRESS.row(conn, organization_id=organization_id, **_address(name)))


def _ref(conn: Connection, row: Row | None) -> DeploymentRef | None:
    if row is None:
        return None
    return DeploymentRef(
        row["id"],
        row["organization_id"],
        row["name"],
        row["pool"],
        row["active_revision_id"],
        http=row["http"],
        user_code=user_code.of_revision(conn, row["active_revision_id"])
        if row["has_user_code"]
        else NO_USER_CODE,
        traffic=shares.from_stored(row["traffic"]),
        preview=row["preview"],
        is_bench=row["is_bench"],
        is_pinned=row["preview"] is not None,
    )


def is_taken(conn: Connection, name: str) -> bool:
    """Whether any organization has a deployment with this name or a preview with this address name."""
    row = _IS_TAKEN.row(conn, **_address(name))
    return row is not None and row["is_taken"]


def create(
    conn: Connection,
    organization_id: UUID,
    *,
    name: str | None,
    source: str,
    source_config: Mapping[str, Any],
    revision_config: Mapping[str, Any],
    secrets: Sequence[Mapping[str, str]],
    agent: Mapping[str, str] | None = None,
    pool: str = "default",
    limit_changes: Mapping[str, Any] | None = None,
    inbox: Mapping[str, Any] | None = None,
    by: Actor | None = None,
) -> UUID:
    """Insert a deployment with its first revision, which stays in CREATING until its source arrives.

    `by` is the id and name of the key that made the request, here and in the functions below. Returns the deployment's
    id. Raises Invalid, Conflict.
    """
    if revision_config.get("source_tarball_path"):
        raise Invalid(
            "source_tarball_path must be the object_path of an upload URL of this deployment", status=400
        )
    agent = agent or {}
    name = name or _name_of_agent(conn, organization_id, agent)
    deployment_id = uuid7()
    inserted = conn.execute(
        insert(DEPLOYMENT)
        .values(
            id=deployment_id,
            organization_id=organization_id,
            name=name,
            source=source,
            source_config=_filled(SOURCE_CONFIG, source_config),
            status=DeploymentStatus.READY,
            pool=pool,
            inbox=inbox,
            agent_id=agent.get("agent_id"),
            agent_environment=agent.get("environment"),
        )
        .on_conflict_do_nothing()
        .returning(DEPLOYMENT.c.id)
    )
    if inserted.first() is None:
        what = "This agent" if agent else f"A deployment named {name!r}"
        raise Conflict(f"{what} already exists in this environment." if agent else f"{what} already exists.")
    limits.change(conn, deployment_id, limit_changes or {})
    revision_id = revisions.create(
        conn,
        deployment_id,
        source=source,
        config=_filled(REVISION_CONFIG, revision_config),
        digest=None,
    )
    revision_secrets.replace(conn, revision_id, secrets)
    next_revision.record_changes(conn, revision_id, by)
    return deployment_id


def _name_of_agent(conn: Connection, organization_id: UUID, agent: Mapping[str, str]) -> str:
    """Return the default name of an agent's deployment, with a random suffix if another deployment has that name."""
    name = "-".join(("agent", agent["agent_id"], agent["environment"]))
    query = text(
        "SELECT 1 FROM deployment WHERE organization_id = :organization_id AND name = :name"
        " AND agent_id IS NULL AND deleted_at IS NULL"
    )
    is_taken = conn.execute(query, {"organization_id": organization_id, "name": name}).first()
    return f"{name}-{token_hex(3)}" if is_taken else name


def begin(conn: Connection, deployment_id: UUID) -> list[Transition]:
    """Start a new deployment's first revision if its source is a repository.

    An upload starts only when a PATCH names it.
    """
    query = text("SELECT source, latest_revision_id FROM deployment WHERE id = :id")
    deployment = conn.execute(query, {"id": deployment_id}).one()
    if deployment.source != REPOSITORY:
        return []
    return revisions.start(conn, deployment_id, deployment.latest_revision_id)


def _filled(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in None for every key of the API contract that was not sent. Keeps all other keys."""
    return {**dict.fromkeys(names), **values}


def change(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    change: Change,
    *,
    by: Actor | None = None,
) -> tuple[UUID | None, list[Transition]]:
    """Apply a PATCH. Returns the revision that it created or filled, if any, and the transitions to announce."""
    deployment = lock(conn, organization_id, deployment_id)
    _change_settings(conn, deployment, change)
    if not change.makes_revision:
        return None, []
    return next_revision.make(conn, deployment, change, by)


def add_revision(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    change: Change,
    *,
    by: Actor | None = None,
    preview: str | None = None,
) -> tuple[UUID, list[Transition]]:
    """Create a revision even if nothing differs. A preview's revision leaves the deployment's settings unchanged."""
    deployment = lock(conn, organization_id, deployment_id)
    if preview is None:
        _change_settings(conn, deployment, change)
    return next_revision.make(conn, deployment, change, by, preview)


def _change_settings(conn: Connection, deployment: Row, change: Change) -> None:
    """Change settings of the deployment that apply to all its revisions."""
    changes = {key: value for key, value in change.source_config.items() if value is not None}
    conn.execute(
        text(
            "UPDATE deployment SET display_name = coalesce(:display_name, display_name),"
            " pool = coalesce(:pool, pool), require_replay = coalesce(:require_replay, require_replay), source_config = CAST(:source_config AS json), updated_at = now()"
            " WHERE id = :id"
        ),
        {
            "id": deployment["id"],
            "display_name": change.display_name,
            "pool": change.pool,
            "require_replay": change.require_replay,
            "source_config": dumps({**deployment["source_config"], **changes}),
        },
    )
    limits.change(conn, deployment["id"], change.limits)
    if change.changes_inbox:
        is_deployment = DEPLOYMENT.c.id == deployment["id"]
        conn.execute(update(DEPLOYMENT).where(is_deployment).values(inbox=change.inbox))
    if change.pool is not None:
        of_benches = text("UPDATE deployment SET pool = :pool WHERE replay_of = :id")
        conn.execute(of_benches, {"id": deployment["id"], "pool": change.pool})
        limits.move_waiting(conn, deployment["id"], change.pool)


def redeploy(
    conn: Connection,
    organization_id: UUID,
    deployment_id: UUID,
    revision_id: UUID,
    *,
    by: Actor | None = None,
) -> tuple[UUID, list[Transition]]:
    """Create a revision with the source, secrets and build artifact of another one.

    If the deployment requires replays, the other one must have served or passed one. Raises NotFound, Invalid, Conflict.
    """
    deployment = lock(conn, organization_id, deployment_id)
    old = revisions.get(conn, deployment_id, revision_id)
    if old["archive_digest"] is None and old["source"] != REPOSITORY:
        raise Invalid("this revision has no source to deploy", status=400)
    is_built = old["requirements"] is not None and old["manifest"] is not None
    if not is_built and old["archive_digest"] and not sources.archive_exists(conn, old["archive_digest"]):
        raise Invalid(
            "this revision was never built, and its source was deleted: upload it again", status=400
        )
    is_exempt = replay_gate.needs_replay(deployment) and replay_gate.require_passed(
        conn, deployment_id, revision_id
    )
    new_id = revisions.create(
        conn,
        deployment_id,
        source=old["source"],
        config=old["source_revision_config"],
        digest=old["archive_digest"],
        requirements=old["requirements"] if is_built else None,
        python_version=old["python_version"] if is_built else None,
        manifest=old["manifest"] if is_built else None,
        build_id=(old["build_id"] or old["id"]) if is_built else None,
    )
    revision_secrets.carry_over(conn, revision_id, new_id)
    message = (old["changes"] or {}).get(records.COMMIT_MESSAGE) if is_built else None
    next_revision.record_changes(
        conn,
        new_id,
        by,
        redeployed_number=old["number"],
        commit_message=message,
        without_replay=is_exempt,
    )
    return new_id, revisions.start(conn, deployment_id, new_id)


def interrupt(
    conn: Connection, organization_id: UUID, deployment_id: UUID, revision_id: UUID
) -> list[Transition]:
    """Interrupt a revision that has not ended. An ended revision keeps its status. Raises NotFound."""
    lock(conn, organization_id, deployment_id)
    revisions.get(conn, deployment_id, revision_id)
    return revisions.interrupt(conn, deployment_id, revision_id, reason="interrupted by a user")


def get(conn: Connection, organization_id: UUID, deployment_id: UUID) -> Row:
    """Return a deployment, including one that is being deleted. Raises NotFound."""
    row = _GET.row(conn, organization_id=organization_id, id=deployment_id)
    if row is None:
        raise missing(deployment_id)
    return row


def require(conn: Connection, organization_id: UUID, deployment_id: UUID) -> None:
    """Raise NotFound unless the organization has the deployment and it is not being deleted."""
    query = text(
        "SELECT 1 FROM listed_deployment"
        " WHERE id = :id AND organization_id = :organization_id AND deleted_at IS NULL"
    )
    if conn.execute(query, {"id": deployment_id, "organization_id": organization_id}).first() is None:
        raise missing(deployment_id)


def missing(deployment_id: UUID) -> NotFound:
    return NotFound(f"Deployment ID {deployment_id} not found.")


def lock(conn: Connection, organization_id: UUID, deployment_id: UUID) -> RowMapping:
    """Lock the deployment's row until the transaction ends and return it. Raises NotFound."""
    query = text(
        "SELECT id, name, latest_revision_id, active_revision_id, source_config, require_replay"
        " FROM listed_deployment WHERE id = :id"
        " AND organization_id = :organization_id AND deleted_at IS NULL FOR UPDATE"
    )
    values = {"id": deployment_id, "organization_id": organization_id}
    row = conn.execute(query, values).mappings().one_or_none()
    if row is None:
        raise missing(deployment_id)
    return row


FILTERS = {
    "name": "d.name = :name",
    "name_contains": "strpos(d.name, :name_contains) > 0",
    "replayed_at": "d.id = (SELECT b.replay_of FROM deployment b"
    " WHERE b.organization_id = :organization_id AND b.name = :replayed_at AND b.deleted_at IS NULL)",
    "status": f"{status_of_deployment('d')} = :status",
    "deployment_type": "d.source_config ->> 'deployment_type' = :deployment_type",
    "deployment_ids": "d.id = ANY(:deployment_ids)",
    "agent_id": "d.agent_id = :agent_id",
    "agent_environment": "d.agent_environment = :agent_environment",
    # Deployments here have neither of these, so a caller who filters by one gets an empty list.
    "image_version": "CAST(:image_version AS text) IS NULL",
    "tag_value_ids": "CAST(:tag_value_ids AS text) IS NULL",
}


def search(
    conn: Connection, organization_id: UUID, *, filters: Mapping[str, Any], limit: int, offset: int
) -> list[dict[str, Any]]:
    """Return the organization's deployments that match every filter, newest first."""
    active = {name: value for name, value in filters.items() if value not in (None, "")}
    condition = " AND ".join(FILTERS[name] for name in active) or "true"
    page = statement("deployments.search", columns=records.DEPLOYMENT.select, condition=condition)
    return page.rows(conn, **active, organization_id=organization_id, limit=limit, offset=offset)


def recently_used(conn: Connection, pool: str, *, limit: int) -> list[UUID]:
    """Return the revisions with traffic of the pool's `limit` most recently used deployments.

    Deployments with the latest run come first, then the most recently changed.
    """
    return [row["revision_id"] for row in _RECENTLY_USED.rows(conn, pool=pool, limit=limit)]


def ended(conn: Connection, revision_id: UUID) -> tuple[str, str | None] | None:
    """Return a revision's final `(status, message)`, or None while it has not ended."""
    query = text("SELECT status, status_message FROM revision WHERE id = :id")
    row = conn.execute(query, {"id": revision_id}).one_or_none()
    if row is None:
        return RevisionStatus.INTERRUPTED, "the deployment was deleted"
    return (row.status, row.status_message) if row.status in REVISION_ENDS else None
