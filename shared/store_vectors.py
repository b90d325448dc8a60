"""Search by meaning: vectors beside store items, by PostgreSQL's `vector` extension where there is one.

The table is made at release (`python -m shared.migrations`) once the extension can be had; without it a
build whose store has an index is refused. A vector counts only for the very value it was made of: it carries
that value's `updated_at`. Graph hosts make the vectors, for only they know the project's embeddings.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

Vectors = Sequence[tuple[str, Sequence[float]]]  # field path, embedding

NAME = "store_vector"
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
    """Make the table if it is missing and the extension can be had; whether it is there now."""
    if is_prepared(conn):
        return True
    offered = conn.execute(text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")).first()
    if offered is None:
        return False
    try:
        with conn.begin_nested():
            conn.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
            conn.execute(text(TABLE))
    except DBAPIError as error:
        log.warning("the vector extension is there, but this database user may not create it: %s", error.orig)
        return False
    return True


def is_prepared(conn: Connection) -> bool:
    """Whether vectors can be kept."""
    return conn.execute(text("SELECT to_regclass('store_vector')")).scalar_one() is not None


def replace(
    conn: Connection, deployment_id: UUID, path: str, key: str, vectors: Vectors, written_at: datetime
) -> None:
    """The vectors of the value that was written then, in place of earlier ones."""
    place = {"deployment_id": deployment_id, "path": path, "key": key}
    conn.execute(
        text("DELETE FROM store_vector WHERE deployment_id = :deployment_id AND path = :path AND key = :key"),
        place,
    )
    rows = [
        {**place, "n": n, "field": field, "written_at": written_at, "embedding": literal(embedding)}
        for n, (field, embedding) in enumerate(vectors)
    ]
    if rows:
        conn.execute(
            text(
                "INSERT INTO store_vector (deployment_id, path, key, n, field, written_at, embedding) VALUES"
                " (:deployment_id, :path, :key, :n, :field, :written_at, CAST(:embedding AS vector))"
            ),
            rows,
        )


# How near the nearest vector of an item is to the query: 1 is the same direction. To be joined to store_item.
SCORE = """
LEFT JOIN LATERAL (
    SELECT nullif(max(CASE WHEN vector_dims(v.embedding) = :dims
                      THEN 1 - (v.embedding <=> CAST(:near AS vector)) END), 'NaN') AS score
    FROM store_vector AS v
    WHERE v.deployment_id = i.deployment_id AND v.path = i.path AND v.key = i.key
      AND v.written_at = i.updated_at
) AS s ON true
"""


def literal(embedding: Sequence[float]) -> str:
    """A vector as PostgreSQL reads it."""
    return "[" + ",".join(repr(float(number)) for number in embedding) + "]"


def score_values(near: Sequence[float]) -> dict[str, Any]:
    """What SCORE needs to know."""
    return {"near": literal(near), "dims": len(near)}
