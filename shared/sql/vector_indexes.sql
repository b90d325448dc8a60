-- Vector indexes of stores: shared/vector_indexes.py.

-- name: use
-- Returns a row if this vector index is complete and the prefix has at least `few` items. Then the transaction's searches
-- find as many vectors by it as the row says: `candidates`, and at least `of_large` in an index with more than `large`.
SELECT candidates, set_config('hnsw.ef_search', CAST(candidates AS text), true)
FROM (
    SELECT CASE WHEN c.reltuples > :large THEN greatest(CAST(:candidates AS int), :of_large) ELSE :candidates END AS candidates
    FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid
    WHERE x.indexrelid = to_regclass(:index) AND x.indisvalid AND :few = (
        SELECT count(*) FROM (
            SELECT FROM store_item WHERE deployment_id = :deployment_id AND {below} LIMIT :few) AS items)
) AS chosen

-- name: search
-- One page of the items of the nearest vectors, with the scores and the order of `store.search_near`.
WITH nearest AS MATERIALIZED (
    SELECT path, key, written_at, nullif(1 - (embedding <=> CAST(:near AS vector)), 'NaN') AS score
    FROM store_vector WHERE {indexed}
    ORDER BY {embedding} <=> CAST(l2_normalize(CAST(:near AS vector)) AS halfvec) LIMIT {candidates}
)
SELECT {columns}, score FROM store_item JOIN (
    SELECT path, key, written_at, max(score) AS score FROM nearest GROUP BY path, key, written_at
) AS candidate USING (path, key)
WHERE deployment_id = :deployment_id AND updated_at = written_at AND (expires_at IS NULL OR expires_at > now())
  AND {condition}
ORDER BY score DESC NULLS LAST, updated_at DESC, path, key LIMIT :limit OFFSET :offset

-- name: existing
SELECT c.relname AS name, x.indisvalid AS is_valid
FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid
WHERE x.indrelid = to_regclass('store_vector') AND starts_with(c.relname, :prefix)

-- name: supported
-- Half precision came with version 0.7 of the extension.
SELECT FROM pg_extension WHERE extname = 'vector' AND CAST(string_to_array(extversion, '.') AS int[]) >= '{0,7}'

-- name: count
-- The deployment's vectors, at most `most`.
SELECT count(*) AS n FROM (
    SELECT FROM store_vector WHERE deployment_id = :deployment_id AND n >= 0 LIMIT :most) AS vectors

-- name: lock
-- Takes the lock of the process that builds vector indexes. It ends with the connection.
SELECT WHERE pg_try_advisory_lock(:key)

-- name: configure
-- Parallel workers would keep the index in shared memory, of which containers have little.
SELECT set_config('max_parallel_maintenance_workers', '0', false),
    set_config('maintenance_work_mem', greatest(:kilobytes, CAST(setting AS bigint)) || 'kB', false)
FROM pg_settings WHERE name = 'maintenance_work_mem'

-- name: create
CREATE INDEX CONCURRENTLY {index} ON store_vector USING hnsw (({embedding}) halfvec_cosine_ops) WHERE {indexed}

-- name: drop
DROP INDEX CONCURRENTLY IF EXISTS {index}
