"""The variables that a revision changed against the previous one, and who requested it. Never the variables' values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments import secrets
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import Row, dumps
from shared.records import COUNT_OR_NULL, TEXT, TEXT_OR_NULL, listed, or_null, record

COMMIT_MESSAGE = "commit_message"
NAMES_OR_NULL = or_null(listed(TEXT))
SCHEMA = record(
    "RevisionChanges",
    source=record(
        archive_digest=TEXT_OR_NULL,
        repo_url=TEXT_OR_NULL,
        repo_ref=TEXT_OR_NULL,
        repo_commit_sha=TEXT_OR_NULL,
        commit_message=TEXT_OR_NULL,
    ),
    redeployed_number=COUNT_OR_NULL,
    variables_set=NAMES_OR_NULL,
    variables_unset=NAMES_OR_NULL,
)

BEFORE = text("""
SELECT o.id FROM revision r JOIN revision o ON o.deployment_id = r.deployment_id AND o.number < r.number
WHERE r.id = :id ORDER BY o.number DESC LIMIT 1
""")
KEEP = text("""
UPDATE revision SET changes = CAST(CAST(coalesce(changes, '{}') AS jsonb) || CAST(:changes AS jsonb) AS json),
    created_by = coalesce(CAST(:created_by AS json), created_by)
WHERE id = :id
""")


def keep(conn: Connection, revision_id: UUID, created_by: Mapping[str, str] | None, **more: Any) -> None:
    """Record who requested a revision, and which variables it sets and unsets.

    Call it once all its variables are stored.
    """
    earlier = conn.execute(BEFORE, {"id": revision_id}).scalar()
    changed = _between({} if earlier is None else _known(conn, earlier), _known(conn, revision_id))
    values = {
        "id": revision_id,
        "changes": dumps({**changed, **more}),
        "created_by": None if created_by is None else dumps(created_by),
    }
    conn.execute(KEEP, values)


def keep_message(conn: Connection, revision_id: UUID, message: str) -> None:
    """Record the message of the commit that the revision is built from."""
    values = {"id": revision_id, "changes": dumps({COMMIT_MESSAGE: message}), "created_by": None}
    conn.execute(KEEP, values)


def show(row: Row) -> dict[str, Any]:
    """Return a revision's changes as in the API. The variables are None for revisions without a record."""
    kept = row["changes"] or {}
    config = row["source_revision_config"]
    return {
        "source": {
            "archive_digest": row["archive_digest"],
            "repo_url": row["repo_url"],
            "repo_ref": config.get("repo_ref"),
            "repo_commit_sha": config.get("repo_commit_sha"),
            COMMIT_MESSAGE: kept.get(COMMIT_MESSAGE),
        },
        "redeployed_number": kept.get("redeployed_number"),
        "variables_set": kept.get("variables_set"),
        "variables_unset": kept.get("variables_unset"),
    }


def _known(conn: Connection, revision_id: UUID) -> dict[str, str | None]:
    """Return a revision's variables; with None as values if they cannot be decrypted."""
    try:
        return dict(secrets.secrets_of(conn, revision_id))
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
