"""Vector indexes: search by meaning in a large store, without comparing the query with all of its vectors.

A deployment with enough vectors gets an HNSW index. It holds the vectors normalised and at half precision, which takes
half the memory and allows twice the dimensions. It finds at least 95 % of the nearest vectors; scores are computed from
the stored vectors. All deployments share the table of vectors, so each index is limited to the vectors of one
deployment and one dimension. Upkeep creates and drops the indexes (`workers/upkeep/vector_indexing.py`).

Vectors are compared exactly without an index, below a prefix with few items, and when a filter matches so few of the
nearest vectors that a page is not filled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared import store_vectors
from shared.infra.postgres import Driver
from shared.sql import statement

log = logging.getLogger(__name__)

FEW = 10_000  # vectors or items that are compared in about 30 ms: fewer need no index
MAX_INDEXES = 32  # each makes every write of a vector a little slower
MAX_DIMS = 4_000  # limit of HNSW indexes at half precision
# Vectors that a search by an index finds: of all items, and with a prefix, a filter or a far page. In an index with more
# than LARGE vectors, fewer than OF_LARGE would miss one in ten of the nearest.
CANDIDATES, MORE_CANDIDATES = 200, 1_000
LARGE, OF_LARGE = 200_000, 800

PREFIX = "store_vector_hnsw_"
LOCK = 0x72756E79766563  # advisory lock of the process that builds indexes
# Memory that a build may use where `maintenance_work_mem` is smaller. A larger index takes many times longer.
MAX_BUILD_BYTES = 1024**3
ELEMENT_BYTES = 800  # of a vector in a build, without its numbers

_EXISTING = statement("vector_indexes.existing")
_SUPPORTED = statement("vector_indexes.supported")
_COUNT = statement("vector_indexes.count")
_LOCK = statement("vector_indexes.lock")
_CONFIGURE = statement("vector_indexes.configure")


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """The index of a deployment's vectors of one dimension, whether or not it exists."""

    deployment_id: UUID
    dims: int

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.deployment_id.hex}_{self.dims}"

    @property
    def parts(self) -> Mapping[str, str]:
        """The indexed expression and the condition. A query has to repeat both, with the same constants."""
        return {
            "embedding": f"CAST(l2_normalize(embedding) AS halfvec({self.dims}))",
            "indexed": f"deployment_id = '{self.deployment_id}' AND n >= 0 AND vector_dims(embedding) = {self.dims}",
        }


def search(
    conn: Connection,
    deployment_id: UUID,
    near: Sequence[float],
    *,
    columns: str,
    below: str,
    condition: str,
    values: Mapping[str, Any],
) -> list[dict[str, Any]] | None:
    """Return a page of items by similarity, from the deployment's vector index.

    `below` is the condition of the prefix, or empty. `condition` includes it. `values` are their parameters, with the
    page's `limit` and `offset`. Returns None if there is no index, or if it does not fill the page.
    """
    limit, offset = values["limit"], values["offset"]
    is_number = isinstance(limit, int) and isinstance(offset, int)  # graphs may send any type
    if not is_number or offset + limit > MORE_CANDIDATES:
        return None
    is_near = condition == "true" and 2 * (offset + limit) <= CANDIDATES
    candidates = CANDIDATES if is_near else MORE_CANDIDATES
    index = VectorIndex(deployment_id, len(near))
    use = statement("vector_indexes.use", below=below or "true")
    few = FEW if below else 0
    sizes = {"candidates": candidates, "large": LARGE, "of_large": OF_LARGE}
    usable = use.row(conn, **values, **sizes, index=index.name, few=few)
    if usable is None:
        return None
    page = statement(
        "vector_indexes.search",
        columns=columns,
        condition=condition,
        candidates=str(usable["candidates"]),
        **index.parts,
    )
    rows = page.rows(conn, **values)
    is_full = len(rows) == limit and all(row["score"] is not None for row in rows)
    return rows if is_full else None


@dataclass(frozen=True, slots=True)
class Changes:
    """Indexes to drop, by name, and indexes to create, after incomplete ones of their names are dropped."""

    drop: Sequence[str]
    create: Sequence[VectorIndex]


def due(conn: Connection) -> Changes:
    """Return the changes that the deployments' configurations and numbers of vectors call for."""
    if not store_vectors.is_prepared(conn) or not _SUPPORTED.count(conn):
        return Changes((), ())
    configured = [VectorIndex(index["id"], index["config"]["dims"]) for index in store_vectors.indexes(conn)]
    allowed = {index.name: index for index in configured if index.dims <= MAX_DIMS}
    existing = {row["name"]: row["is_valid"] for row in _EXISTING.rows(conn, prefix=PREFIX)}
    complete = {name for name, is_valid in existing.items() if is_valid and name in allowed}
    create = [
        index
        for name, index in allowed.items()
        if name not in complete and _vectors(conn, index, most=FEW) == FEW
    ]
    return Changes(
        [name for name in existing if name not in complete], create[: max(MAX_INDEXES - len(complete), 0)]
    )


def apply(conn: Driver, changes: Changes) -> None:
    """Drop and create indexes while vectors are written. May take minutes.

    A connection that is lost leaves an index that PostgreSQL maintains and no query uses. `due` returns it again.
    """
    for name in changes.drop:
        statement("vector_indexes.drop", index=name).count(conn)
        log.info("dropped the vector index %s", name)
    for index in changes.create:
        bytes_ = _vectors(conn, index, most=None) * (ELEMENT_BYTES + 2 * index.dims)
        _CONFIGURE.count(conn, kilobytes=min(bytes_, MAX_BUILD_BYTES) // 1024)
        statement("vector_indexes.create", index=index.name, **index.parts).count(conn)
        log.info("deployment %s: created the vector index %s", index.deployment_id, index.name)


def lock(conn: Driver) -> bool:
    """Take the lock of the process that changes indexes, until the connection ends. Returns whether it was free."""
    return _LOCK.count(conn, key=LOCK) == 1


def _vectors(conn: Connection | Driver, index: VectorIndex, *, most: int | None) -> int:
    return _COUNT.rows(conn, deployment_id=index.deployment_id, most=most)[0]["n"]
