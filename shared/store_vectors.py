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

from shared.infra.arrays import bigints, texts
from shared.infra.postgres import Row
from shared.sql import statement

log = logging.getLogger(__name__)

Vectors = Sequence[tuple[str, Sequence[float]]]  # field path, embedding
MARK = -1  # number of the row that says how an item was indexed

_REMOVE_VECTORS = statement("store.remove_vectors")
_INSERT_VECTORS = statement("store.insert_vectors")
_INDEXES = statement("store.indexes")
_UNINDEXED = statement("store.unindexed")
_LOCK_UNCHANGED = statement("store.lock_unchanged")


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
    item = {"deployment_id": deployment_id, "path": path, "key": key}
    _REMOVE_VECTORS.count(conn, **item)
    mark = json.dumps({"by": indexed.by, "index": indexed.index})
    _INSERT_VECTORS.count(
        conn,
        **item,
        written_at=written_at,
        numbers=bigints([MARK, *range(len(indexed.vectors))]),
        fields=texts([mark, *(field for field, _ in indexed.vectors)]),
        embeddings=texts(["[0]", *(literal(embedding) for _, embedding in indexed.vectors)]),
    )


def digest(config: Mapping[str, Any]) -> str:
    """Return the digest of an index configuration. `workers/graph_host/store.py` computes the same."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def indexes(conn: Connection) -> list[dict[str, Any]]:
    """Return the deployments whose store has an index: id, revision_id, pool, and the index's `config`."""
    return _INDEXES.rows(conn) if is_prepared(conn) else []


def unindexed(
    conn: Connection, deployment_id: UUID, by: str, *, after: tuple[str, str] = ("", ""), limit: int
) -> list[dict[str, Any]]:
    """Return items not yet indexed with this digest, in order: path, key, value, updated_at and `index`."""
    return _UNINDEXED.rows(
        conn,
        deployment_id=deployment_id,
        by=by,
        mark=MARK,
        after_path=after[0],
        after_key=after[1],
        limit=limit,
    )


def add(conn: Connection, deployment_id: UUID, item: Row, indexed: ItemVectors) -> None:
    """Store the vectors of an item of `unindexed`, unless its value has changed meanwhile."""
    path, key, updated_at = item["path"], item["key"], item["updated_at"]
    if _LOCK_UNCHANGED.count(conn, deployment_id=deployment_id, path=path, key=key, updated_at=updated_at):
        replace(conn, deployment_id, path, key, indexed, updated_at)


def literal(embedding: Sequence[float]) -> str:
    """Return a vector in PostgreSQL's text format."""
    return "[" + ",".join(repr(float(number)) for number in embedding) + "]"
