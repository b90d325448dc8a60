"""Search by meaning: vectors of store items, with PostgreSQL's `vector` extension if it is available.

`python -m shared.migrations` creates the table once the extension is available. Without it, builds whose store has an
index are refused. A vector is valid only for the value from which it was computed: it carries that value's
`updated_at`. Graph hosts compute the vectors, because only they can load the project's embeddings.

Besides its vectors, an item has a row MARK whose `field` says how it was indexed, even if it has no text to embed.
Upkeep indexes items without a MARK, such as those older than the index (`workers/upkeep/reindexing.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

Vectors = Sequence[tuple[str, Sequence[float]]]  # field path, embedding
MARK = -1  # number of the row that says how an item was indexed


@dataclass(frozen=True, slots=True)
class ItemVectors:
    """An item's vectors. `index` is the option of its put: None as configured, False for none, or paths."""

    vectors: Vectors
    by: str | None  # digest of the index configuration
    index: Any = None

    @classmethod
    def of(cls, op: Mapping[str, Any], answer: Mapping[str, Any]) -> ItemVectors | None:
        """Return the vectors of a put from a graph host's answer, or None without an index."""
        vectors = answer.get("vectors")
        return None if vectors is None else cls(vectors, answer.get("indexed_by"), op.get("index"))


NAME = "store_vector"
COLUMNS = ("deployment_id", "path", "key", "n", "field", "written_at", "embedding")
TABLE = """
CREATE TABLE IF NOT EXISTS store_vector (
    deployment_id uuid NOT NULL,
    path text COLLATE "C" NOT NULL,
    key text NOT NULL,
    n integer NOT NULL,
    field text NOT NULL,
    written_at timestamptz NOT NULL,
    embedding vector NOT NULL,
    PRIMARY KEY (deployment_id, path, key, n),
    FOREIGN KEY (deployment_id, path, key) REFERENCES store_item ON DELETE CASCADE
)
"""


def prepare(conn: Connection) -> bool:
    """Create the table if it is missing and the extension is available. Returns whether the table exists."""
    if is_prepared(conn):
        return True
    if not conn.execute(text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")).first():
        return False
    try:
        with conn.begin_nested():
            conn.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
            conn.execute(text(TABLE))
    except DBAPIError as error:
        log.warning(
            "the vector extension is installed, but this database user may not create it: %s", error.orig
        )
        return False
    return True


def is_prepared(conn: Connection) -> bool:
    """Whether vectors can be stored."""
    return conn.execute(text("SELECT to_regclass('store_vector')")).scalar_one() is not None


def replace(
    conn: Connection, deployment_id: UUID, path: str, key: str, indexed: ItemVectors, written_at: datetime
) -> None:
    """Replace the vectors of an item by those of the value written at `written_at`."""
    place = {"deployment_id": deployment_id, "path": path, "key": key}
    conn.execute(
        text("DELETE FROM store_vector WHERE deployment_id = :deployment_id AND path = :path AND key = :key"),
        place,
    )
    mark = {"n": MARK, "field": json.dumps({"by": indexed.by, "index": indexed.index}), "embedding": "[0]"}
    rows = [mark]
    for n, (field, embedding) in enumerate(indexed.vectors):
        rows.append({"n": n, "field": field, "embedding": literal(embedding)})
    conn.execute(
        text(
            "INSERT INTO store_vector (deployment_id, path, key, n, field, written_at, embedding) VALUES"
            " (:deployment_id, :path, :key, :n, :field, :written_at, CAST(:embedding AS vector))"
        ),
        [{**place, "written_at": written_at, **row} for row in rows],
    )


def digest(config: Mapping[str, Any]) -> str:
    """Return the digest of an index configuration. `workers/graph_host/store.py` computes the same."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


INDEXES = text("""
SELECT d.id, d.active_revision_id AS revision_id, d.pool, r.manifest -> 'store' -> 'index' AS config
FROM deployment AS d JOIN revision AS r ON r.id = d.active_revision_id
WHERE d.deleted_at IS NULL AND jsonb_typeof(r.manifest::jsonb -> 'store' -> 'index') = 'object'
""")
# The `index` option of an item's put is kept as long as its value.
UNINDEXED = text("""
SELECT i.path, i.key, i.value, i.updated_at,
       CASE WHEN mark.written_at = i.updated_at THEN mark.field::json -> 'index' END AS index
FROM store_item AS i LEFT JOIN store_vector AS mark
    ON mark.deployment_id = i.deployment_id AND mark.path = i.path AND mark.key = i.key AND mark.n = :mark
WHERE i.deployment_id = :deployment_id AND (i.expires_at IS NULL OR i.expires_at > now())
  AND (i.path, i.key) > (:after_path, :after_key)
  AND (mark.written_at IS DISTINCT FROM i.updated_at OR mark.field::json ->> 'by' IS DISTINCT FROM :by)
ORDER BY i.path, i.key LIMIT :limit
""")
HOLD = text("""
SELECT 1 FROM store_item WHERE deployment_id = :deployment_id AND path = :path AND key = :key
  AND updated_at = :updated_at FOR UPDATE
""")


def indexes(conn: Connection) -> Sequence[Any]:
    """Return the deployments whose store has an index: id, revision_id, pool, and the index's `config`."""
    return conn.execute(INDEXES).all() if is_prepared(conn) else []


def unindexed(
    conn: Connection, deployment_id: UUID, by: str, *, after: tuple[str, str] = ("", ""), limit: int
) -> Sequence[Any]:
    """Return items not yet indexed with this digest, in order: path, key, value, updated_at and `index`."""
    parameters = {"deployment_id": deployment_id, "by": by, "mark": MARK, "limit": limit}
    return conn.execute(UNINDEXED, {**parameters, "after_path": after[0], "after_key": after[1]}).all()


def add(conn: Connection, deployment_id: UUID, item: Any, indexed: ItemVectors) -> None:
    """Store the vectors of an item of `unindexed`, unless its value has changed meanwhile."""
    place = {"deployment_id": deployment_id, "path": item.path, "key": item.key}
    if conn.execute(HOLD, {**place, "updated_at": item.updated_at}).first():
        replace(conn, deployment_id, item.path, item.key, indexed, item.updated_at)


def literal(embedding: Sequence[float]) -> str:
    """Return a vector in PostgreSQL's text format."""
    return "[" + ",".join(repr(float(number)) for number in embedding) + "]"
