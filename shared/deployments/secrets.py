"""A revision's secrets: the environment variables of its builds and graph hosts, encrypted in the database.

Secrets belong to one revision and do not change once it has started. The next revision copies them or brings its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments import project_rules
from shared.errors import Invalid
from shared.infra import encryption

MOST = 500


def check(names: Collection[str], *, field: str = "secrets") -> None:
    """Raise Invalid (400) naming the variables that a deployment may not set."""
    if bad := project_rules.refused_variables(names):
        raise Invalid(
            f"these names cannot be set by a deployment: {', '.join(sorted(set(bad)))}",
            loc=("body", field),
            status=400,
        )


def replace(conn: Connection, revision_id: UUID, secrets: Sequence[Mapping[str, str]]) -> None:
    """Replace all secrets of the revision. Raises Invalid."""
    values = {secret["name"]: secret["value"] for secret in secrets}  # of duplicate names the last wins
    check(values)
    conn.execute(text("DELETE FROM secret WHERE revision_id = :id"), {"id": revision_id})
    _insert(conn, revision_id, values)


def change(conn: Connection, revision_id: UUID, changes: Mapping[str, str | None]) -> None:
    """Set some of the revision's secrets and remove those that are None. Raises Invalid."""
    if not changes:
        return
    values = {name: value for name, value in changes.items() if value is not None}
    check(values, field="secret_changes")
    conn.execute(
        text("DELETE FROM secret WHERE revision_id = :id AND name = ANY(:names)"),
        {"id": revision_id, "names": list(changes)},
    )
    _insert(conn, revision_id, values)
    count = conn.execute(text("SELECT count(*) FROM secret WHERE revision_id = :id"), {"id": revision_id})
    if count.scalar_one() > MOST:
        raise Invalid(
            f"a deployment can have at most {MOST} secrets", loc=("body", "secret_changes"), status=400
        )


def _insert(conn: Connection, revision_id: UUID, values: Mapping[str, str]) -> None:
    if values:
        conn.execute(
            text("INSERT INTO secret (revision_id, name, value) VALUES (:id, :name, :value)"),
            [
                {"id": revision_id, "name": name, "value": encryption.encrypt(value)}
                for name, value in values.items()
            ],
        )


def carry_over(conn: Connection, old_id: UUID, new_id: UUID) -> None:
    """Copy the stored secrets of one revision to another."""
    query = text(
        "INSERT INTO secret (revision_id, name, value) SELECT :new, name, value FROM secret"
        " WHERE revision_id = :old"
    )
    conn.execute(query, {"old": old_id, "new": new_id})


def secrets_of(conn: Connection, revision_id: UUID, names: Collection[str] | None = None) -> dict[str, str]:
    """Return a revision's secrets, or those with these names, decrypted. For builders and runners. Raises Undecryptable."""
    query = text(
        "SELECT name, value FROM secret WHERE revision_id = :id"
        " AND (CAST(:names AS text[]) IS NULL OR name = ANY(:names))"
    )
    rows = conn.execute(query, {"id": revision_id, "names": None if names is None else list(names)})
    return {row.name: encryption.decrypt(row.value) for row in rows}
