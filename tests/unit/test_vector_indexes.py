"""Vector indexes: which deployments get one, and that searches by it answer like searches that compare all vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

import orjson
import pytest
from sqlalchemy import Engine, text

from shared import store, store_vectors, vector_indexes
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, long_connection
from shared.settings import Settings
from shared.store_vectors import ItemVectors
from shared.vector_indexes import Changes, VectorIndex
from tests.support import factories
from tests.support.waiting import wait_until
from workers.upkeep.vector_indexing import VectorIndexing

DIMS, MANY, FEW = 24, 3_000, 500
QUERIES = [[float((n * 7 + d * 13) % 23 - 11) for d in range(DIMS)] for n in range(12)]
FILL = (
    """
    INSERT INTO store_item (deployment_id, path, key, value, updated_at)
    SELECT :deployment_id, CASE WHEN n % 30 = 0 THEN 'few.' ELSE 'many.' END, CAST(n AS text),
        jsonb_build_object('third', n % 3 = 0, 'rare', n % 100 = 1), now()
    FROM generate_series(1, :items) AS n
    """,
    """
    INSERT INTO store_vector (deployment_id, path, key, n, field, written_at, embedding)
    SELECT deployment_id, path, key, 0, '$', updated_at, CAST(ARRAY(
        SELECT hashint4(CAST(key AS int) * 1000 + d) / 2147483648.0 FROM generate_series(1, :dims) AS d) AS vector)
    FROM store_item WHERE deployment_id = :deployment_id
    """,
    "ANALYZE store_item, store_vector",
)
READ = text("""
SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables WHERE relname = 'store_vector'
""")


@pytest.fixture
def settings(settings: Settings, database: str) -> Settings:
    return replace(settings, database_url=database)


@pytest.fixture
def indexing(
    db: Engine, settings: Settings, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VectorIndexing]:
    monkeypatch.setattr(vector_indexes, "FEW", FEW)
    with connection() as conn:
        assert store_vectors.prepare(conn)
    yield VectorIndexing(settings)
    with long_connection(database) as conn:
        vector_indexes.apply(conn, Changes(sorted(existing()), ()))


def with_index(name: str = "searched", items: int = MANY, dims: int = DIMS) -> DeploymentRef:
    """Create a deployment whose store has an index and this many items, each with one vector."""
    deployment = factories.deployment(name)
    configure(deployment, {"dims": dims})
    with connection() as conn:
        for statement in FILL:
            conn.execute(text(statement), {"deployment_id": deployment.id, "items": items, "dims": DIMS})
    return deployment


def configure(deployment: DeploymentRef, index: dict[str, Any] | None) -> None:
    manifest = orjson.dumps({"store": {"index": index}}).decode()
    query = text("UPDATE revision SET manifest = CAST(:manifest AS jsonb) WHERE id = :id")
    with connection() as conn:
        conn.execute(query, {"id": deployment.active_revision_id, "manifest": manifest})


def existing() -> dict[str, bool]:
    """Return the names of the vector indexes, and whether each is complete."""
    query = text("""
        SELECT CAST(CAST(indexrelid AS regclass) AS text) AS name, indisvalid AS is_valid FROM pg_index
        WHERE indrelid = to_regclass('store_vector') AND NOT indisprimary
    """)
    with connection() as conn:
        return {row.name: row.is_valid for row in conn.execute(query)}


def changed(indexing: VectorIndexing) -> dict[str, bool]:
    """Make the changes that are due, and return the indexes."""
    indexing.begin()
    indexing.join()
    return existing()


def found(deployment: DeploymentRef, near: Sequence[float], **options: Any) -> list[tuple[str, float | None]]:
    with connection() as conn:
        items = store.search(conn, deployment.id, options.pop("prefix", []), near=near, **options)
    return [(item["key"], item["score"]) for item in items]


def vectors_read(deployment: DeploymentRef, near: Sequence[float], **options: Any) -> int:
    """Return the number of rows of vectors that a search reads."""
    with connection() as conn:
        before = conn.execute(READ).scalar_one()
        store.search(conn, deployment.id, near=near, **options)
        return conn.execute(READ).scalar_one() - before


def test_a_large_store_is_searched_by_its_index(
    indexing: VectorIndexing, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = with_index()
    searches: list[dict[str, Any]] = [{}, {"filter": {"third": True}}, {"prefix": ["many"]}]
    exact = [[found(deployment, near, **options) for near in QUERIES] for options in searches]
    assert vectors_read(deployment, QUERIES[0], prefix=[]) >= MANY

    assert changed(indexing) == {VectorIndex(deployment.id, DIMS).name: True}

    assert 10 <= vectors_read(deployment, QUERIES[0], prefix=[]) <= vector_indexes.CANDIDATES
    for options, expected in zip(searches, exact, strict=True):
        results = [found(deployment, near, **options) for near in QUERIES]
        pairs = list(zip(results, expected, strict=True))
        recall = sum(len({*one} & {*other}) for one, other in pairs) / (10 * len(QUERIES))
        assert recall >= 0.95, options
        assert all(one == sorted(one, key=lambda item: -(item[1] or 0)) for one, _ in pairs)

    monkeypatch.setattr(vector_indexes, "LARGE", MANY - 1)
    read = vectors_read(deployment, QUERIES[0], prefix=[])
    assert vector_indexes.CANDIDATES < read <= vector_indexes.OF_LARGE


def test_pages_do_not_overlap_and_items_without_vectors_come_last(indexing: VectorIndexing) -> None:
    deployment = with_index()
    with connection() as conn:
        store.put(conn, deployment.id, ["many"], "plain", {})
    changed(indexing)

    pages = [found(deployment, QUERIES[0], offset=offset) for offset in range(0, 100, 10)]
    items = [item for page in pages for item in page]
    assert len({key for key, _ in items}) == 100
    assert items == found(deployment, QUERIES[0], limit=100)
    everything = found(deployment, QUERIES[0], limit=MANY + 1)
    assert everything[-1] == ("plain", None)
    assert found(deployment, QUERIES[0], limit=None) == everything


def test_few_matches_are_found_exactly(indexing: VectorIndexing) -> None:
    deployment = with_index()
    searches: list[dict[str, Any]] = [
        {"prefix": ["few"]},
        {"filter": {"rare": True}, "limit": 30},
        {"filter": {"rare": True}, "limit": 5, "offset": 25},
    ]
    exact = [found(deployment, QUERIES[0], **options) for options in searches]
    no_direction = found(deployment, [0.0] * DIMS)

    changed(indexing)

    assert [found(deployment, QUERIES[0], **options) for options in searches] == exact
    assert found(deployment, [0.0] * DIMS) == no_direction
    assert vectors_read(deployment, QUERIES[0], prefix=["few"]) <= MANY // 30


def test_values_that_are_written_later_are_found_by_what_they_are_now(indexing: VectorIndexing) -> None:
    deployment = with_index()
    changed(indexing)
    axes = [[float(d == axis) for d in range(DIMS)] for axis in (0, 1)]

    def put(key: str, *vectors: list[float]) -> None:
        with connection() as conn:
            indexed = ItemVectors([("$", vector) for vector in vectors], "digest")
            store.put(conn, deployment.id, ["many"], key, {}, indexed=indexed)

    put("new", axes[0], axes[0], [1e30] * DIMS)
    put("zero", [0.0] * DIMS)
    assert found(deployment, axes[0], limit=1) == [("new", 1.0)]
    put("new", axes[1])
    assert found(deployment, axes[1], limit=1) == [("new", 1.0)]
    assert "new" not in dict(found(deployment, axes[0]))
    with connection() as conn:
        store.delete(conn, deployment.id, ["many"], "new")
    assert "new" not in dict(found(deployment, axes[1]))


def test_only_deployments_with_enough_vectors_of_a_possible_dimension_get_an_index(
    indexing: VectorIndexing, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index("small", items=FEW - 1)
    with_index("wide", items=FEW, dims=vector_indexes.MAX_DIMS + 1)
    configure(with_index("plain", items=FEW), None)
    assert changed(indexing) == {}

    deployment = with_index(items=FEW)
    pooled = replace(settings, database_pooler="transaction")
    assert changed(VectorIndexing(pooled)) == {}
    with connection() as conn:
        conn.execute(text("DROP TABLE store_vector"))  # as in a PostgreSQL without the extension
        assert vector_indexes.due(conn) == Changes((), ())
        conn.rollback()
    indexes = changed(VectorIndexing(replace(pooled, database_direct_url=settings.database_url)))
    assert indexes == {VectorIndex(deployment.id, DIMS).name: True}

    monkeypatch.setattr(vector_indexes, "MAX_INDEXES", 1)
    with_index("one too many", items=FEW)
    assert changed(indexing) == indexes


def test_an_index_goes_with_its_configuration(indexing: VectorIndexing) -> None:
    deployment = with_index(items=FEW)
    name, other = VectorIndex(deployment.id, DIMS).name, VectorIndex(deployment.id, DIMS + 1).name
    assert changed(indexing) == {name: True}

    configure(deployment, {"dims": DIMS + 1})
    assert changed(indexing) == {other: True}
    configure(deployment, {"dims": DIMS})
    assert changed(indexing) == {name: True}
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET deleted_at = now()"))
    assert changed(indexing) == {}


def test_an_index_whose_build_was_killed_is_built_again(
    indexing: VectorIndexing, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = with_index()
    name = VectorIndex(deployment.id, DIMS).name
    exact = found(deployment, QUERIES[0])
    killed = VectorIndexing(settings)
    build = Thread(target=changed, args=(killed,))
    with connection() as writing:
        writing.execute(
            text("DELETE FROM store_vector WHERE key = '1'")
        )  # a build waits for this transaction
        build.start()
        wait_until(lambda: existing() == {name: False})
        assert changed(indexing) == {name: False}, "one process builds at a time"
        with connection() as conn:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%'"
            assert conn.execute(text(query)).scalar_one()
        build.join()
        writing.rollback()

    assert existing() == {name: False}
    assert "vector indexes could not be changed" in caplog.text
    assert found(deployment, QUERIES[0]) == exact
    assert changed(killed) == {name: False}, "it pauses after a failure"
    assert changed(indexing) == {name: True}
