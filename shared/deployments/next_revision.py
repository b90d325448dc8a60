"""The revision that a change of a deployment creates, or the placeholder that it fills, and the record of its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared import audit
from shared.audit import Action, Actor
from shared.deployments import replay_gate, revisions
from shared.deployments import secrets as revision_secrets
from shared.deployments.records import COMMIT_MESSAGE
from shared.deployments.revisions import Transition
from shared.errors import Invalid
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import Row, dumps
from shared.models import RevisionStatus
from shared.sql import statement

REPOSITORY = "github"  # the API contract's name of any git repository source, on whichever server

_BEFORE = statement("revisions.before")
_RECORD_CHANGES = statement("revisions.record_changes")


@dataclass(frozen=True, kw_only=True)
class Change:
    """The changes of a PATCH or a new revision. None and empty fields stay as they are."""

    display_name: str | None = None
    source: str | None = None
    source_config: Mapping[str, Any] = field(default_factory=dict)
    revision_config: Mapping[str, Any] = field(default_factory=dict)
    secrets: Sequence[Mapping[str, str]] = ()
    # applied after `secrets`; None removes a variable
    secret_changes: Mapping[str, str | None] = field(default_factory=dict)
    tracked_packages: Sequence[str] = ()
    pool: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    require_replay: bool | None = None
    changes_inbox: bool = False
    inbox: Mapping[str, Any] | None = None  # with `changes_inbox`, None removes the deployment's rules

    @property
    def makes_revision(self) -> bool:
        return bool(
            self.secrets
            or self.secret_changes
            or any(value is not None for value in self.revision_config.values())
            or self.source_config.get("resource_spec") is not None
        )


def make(
    conn: Connection,
    deployment: Row,
    change: Change,
    by: Actor | None,
    preview: str | None = None,
) -> tuple[UUID, list[Transition]]:
    """Apply the change to the latest revision: create a new revision, or fill the placeholder.

    A placeholder is a revision in CREATING without an archive. The revision starts if it has source. Raises Invalid, and
    Conflict if it would serve without a required replay.
    """
    if preview is None:
        replay_gate.require_preview(deployment, require_replay=change.require_replay)
    deployment_id = deployment["id"]
    latest = revisions.get(conn, deployment_id, deployment["latest_revision_id"])
    source = change.source or latest["source"]
    config, digest = _config_and_digest(conn, deployment, latest, change, source)
    has_source = digest is not None or source == REPOSITORY
    if preview is not None and not has_source:
        loc = ("body", "source_revision_config", "source_tarball_path")
        raise Invalid("a preview needs a source: the deployment has none yet", loc=loc, status=400)
    is_placeholder = latest["status"] == RevisionStatus.CREATING and latest["archive_digest"] is None
    if is_placeholder and preview is None:
        revision_id = latest["id"]
        query = text(
            "UPDATE revision SET source = :source, source_revision_config = CAST(:config AS json),"
            " archive_digest = :digest, updated_at = now() WHERE id = :id"
        )
        values = {"id": revision_id, "source": source, "config": dumps(config), "digest": digest}
        conn.execute(query, values)
    else:
        revision_id = revisions.create(
            conn, deployment_id, source=source, config=config, digest=digest, preview=preview
        )
        if not change.secrets:
            revision_secrets.carry_over(conn, latest["id"], revision_id)
    if change.secrets:
        revision_secrets.replace(conn, revision_id, change.secrets)
    revision_secrets.change(conn, revision_id, change.secret_changes)
    record_changes(conn, revision_id, by)
    return revision_id, revisions.start(conn, deployment_id, revision_id) if has_source else []


def _config_and_digest(
    conn: Connection, deployment: Row, latest: Row, change: Change, source: str
) -> tuple[dict[str, Any], str | None]:
    """Return the new revision's configuration, and the digest of its archive if it is known. Raises Invalid."""
    config_changes = {key: value for key, value in change.revision_config.items() if value is not None}
    config = {**latest["source_revision_config"], **config_changes}
    if change.tracked_packages:
        config["tracked_packages"] = list(change.tracked_packages)
    if source == REPOSITORY:
        _require_repository(deployment, config_changes)
        config["repo_commit_sha"] = None  # the builder resolves the ref anew
        return config, None
    if not config_changes.get("source_tarball_path"):
        return config, latest["archive_digest"]
    config["repo_commit_sha"] = None
    return config, _uploaded(conn, deployment["id"], config_changes["source_tarball_path"])


def _require_repository(deployment: Row, config_changes: Mapping[str, Any]) -> None:
    """Raise Invalid (400) if the deployment has no repository or the change names an upload."""
    if not deployment["source_config"].get("repo_url"):
        loc = ("body", "revision_source")
        raise Invalid("this deployment has no repository (source_config.repo_url)", loc=loc, status=400)
    if config_changes.get("source_tarball_path"):
        loc = ("body", "source_revision_config", "source_tarball_path")
        raise Invalid(
            "an upload cannot be built from a repository: send revision_source 'internal_source'",
            loc=loc,
            status=400,
        )


def _uploaded(conn: Connection, deployment_id: UUID, object_path: str) -> str:
    """Return the digest of the archive uploaded to the path. Raises Invalid (400)."""
    # FOR KEY SHARE: upkeep must not remove the upload, and then the archive, before a revision refers to it.
    query = text("SELECT digest FROM upload WHERE object_path = :path AND deployment_id = :id FOR KEY SHARE")
    row = conn.execute(query, {"path": object_path, "id": deployment_id}).one_or_none()
    loc = ("body", "source_revision_config", "source_tarball_path")
    if row is None:
        raise Invalid(
            "source_tarball_path must be the object_path of an upload URL of this deployment",
            loc=loc,
            status=400,
        )
    if row.digest is None:
        raise Invalid("nothing was uploaded to source_tarball_path", loc=loc, status=400)
    return str(row.digest)


def record_changes(
    conn: Connection, revision_id: UUID, by: Actor | None, *, without_replay: bool = False, **more: Any
) -> None:
    """Record who requested a revision, and which variables it sets and unsets, in the revision and in the audit log.

    Call it once all its variables are stored. The audit log has no entry of a revision that still waits for its source.
    `without_replay`: the deployment's setting exempted the revision from a replay.
    """
    before = _BEFORE.row(conn, id=revision_id)
    changed = _between(
        {} if before is None else _variables(conn, before["id"]), _variables(conn, revision_id)
    )
    row = _RECORD_CHANGES.row(
        conn,
        id=revision_id,
        changes=dumps({**changed, **more}),
        created_by=None if by is None else dumps(by.identity),
    )
    assert row is not None
    entries: list[tuple[Action, dict[str, Any]]] = []
    if row["has_source"]:
        redeployed = {"redeployed_number": more.get("redeployed_number")}
        entries.append((Action.REVISION_CREATED, {**redeployed, "without_replay": without_replay or None}))
    if any(changed.values()):
        entries.append((Action.SECRETS_CHANGED, {**changed}))
    of_revision = {"revision_number": row["number"], "preview": row["preview"]}
    for action, detail in entries:
        audit.add(
            conn,
            row["organization_id"],
            action,
            row["name"],
            by=by,
            deployment_id=row["deployment_id"],
            **of_revision,
            **detail,
        )


def record_commit_message(conn: Connection, revision_id: UUID, message: str) -> None:
    """Record the message of the commit that the revision is built from."""
    _RECORD_CHANGES.count(conn, id=revision_id, changes=dumps({COMMIT_MESSAGE: message}), created_by=None)


def _variables(conn: Connection, revision_id: UUID) -> dict[str, str | None]:
    """Return a revision's variables; with None as values if they cannot be decrypted."""
    try:
        return dict(revision_secrets.secrets_of(conn, revision_id))
    except Undecryptable:
        names = conn.execute(text("SELECT name FROM secret WHERE revision_id = :id"), {"id": revision_id})
        return dict.fromkeys(names.scalars())


def _between(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> dict[str, list[str]]:
    return {
        "variables_set": sorted(
            name for name, value in after.items() if name not in before or before[name] != value
        ),
        "variables_unset": sorted(before.keys() - after.keys()),
    }
