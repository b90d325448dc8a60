-- The store: shared/store.py. Vectors need the `vector` extension: shared/store_vectors.py.

-- name: put
INSERT INTO store_item (deployment_id, path, key, value, ttl_minutes, expires_at, created_at, updated_at)
SELECT :deployment_id, :path, :key, CAST(:value AS jsonb), CAST(:ttl AS float8),
    CASE WHEN CAST(:ttl AS float8) IS NOT NULL
        THEN moment + make_interval(secs => least(CAST(:ttl AS float8), :longest) * 60) END,
    moment, moment
FROM clock_timestamp() AS moment
ON CONFLICT (deployment_id, path, key) DO UPDATE SET
    value = excluded.value, ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at,
    updated_at = excluded.updated_at,
    created_at = CASE WHEN store_item.expires_at <= now() THEN excluded.created_at ELSE store_item.created_at END
RETURNING updated_at

-- name: get
SELECT {columns} FROM store_item
WHERE deployment_id = :deployment_id AND path = :path AND key = :key AND (expires_at IS NULL OR expires_at > now())

-- name: refresh
UPDATE store_item SET expires_at = now() + make_interval(secs => least(ttl_minutes, :longest) * 60)
WHERE deployment_id = :deployment_id AND ttl_minutes IS NOT NULL
  AND (path, key) IN (SELECT * FROM unnest(:paths, :keys))
RETURNING path, key, expires_at

-- name: search
SELECT {columns} FROM store_item
WHERE deployment_id = :deployment_id AND (expires_at IS NULL OR expires_at > now()) AND {condition}
ORDER BY updated_at DESC, path, key LIMIT :limit OFFSET :offset

-- name: search_near
-- Items by the cosine similarity, at most 1, of their nearest vector to the query. Items without a vector come last.
SELECT {columns}, near.score FROM store_item AS i LEFT JOIN LATERAL (
    SELECT max(CASE WHEN vector_dims(v.embedding) = :dims
        THEN nullif(1 - (v.embedding <=> CAST(:near AS vector)), 'NaN') END) AS score
    FROM store_vector AS v
    WHERE v.deployment_id = i.deployment_id AND v.path = i.path AND v.key = i.key
      AND v.written_at = i.updated_at AND v.n >= 0
) AS near ON true
WHERE deployment_id = :deployment_id AND (expires_at IS NULL OR expires_at > now()) AND {condition}
ORDER BY near.score DESC NULLS LAST, updated_at DESC, path, key LIMIT :limit OFFSET :offset

-- name: namespaces
SELECT namespace FROM (
    SELECT DISTINCT labels[1:coalesce(CAST(:max_depth AS int), cardinality(labels))] AS namespace
    FROM store_item, LATERAL string_to_array(rtrim(path, '.'), '.') AS labels
    WHERE deployment_id = :deployment_id AND (expires_at IS NULL OR expires_at > now()) AND {condition}
) AS namespaces ORDER BY namespace COLLATE "C" LIMIT :limit OFFSET :offset

-- name: sweep
-- Deletes expired items. The expiry is checked again, because an item may have been replaced meanwhile.
DELETE FROM store_item WHERE expires_at <= now() AND (deployment_id, path, key) IN (
    SELECT deployment_id, path, key FROM store_item WHERE expires_at <= now() LIMIT :limit)

-- name: remove_vectors
DELETE FROM store_vector WHERE deployment_id = :deployment_id AND path = :path AND key = :key

-- name: insert_vectors
INSERT INTO store_vector (deployment_id, path, key, n, field, written_at, embedding)
SELECT :deployment_id, :path, :key, v.n, v.field, :written_at, CAST(v.embedding AS vector)
FROM unnest(:numbers, :fields, :embeddings) AS v (n, field, embedding)

-- name: indexes
-- The deployments whose store has an index.
SELECT d.id, d.active_revision_id AS revision_id, d.pool, r.manifest -> 'store' -> 'index' AS config
FROM deployment AS d JOIN revision AS r ON r.id = d.active_revision_id
WHERE d.deleted_at IS NULL AND jsonb_typeof(CAST(r.manifest AS jsonb) -> 'store' -> 'index') = 'object'

-- name: unindexed
-- The items that are not indexed by this digest. An item keeps the option `index` of its put as long as its value.
SELECT i.path, i.key, i.value, i.updated_at,
    CASE WHEN mark.written_at = i.updated_at THEN CAST(mark.field AS json) -> 'index' END AS index
FROM store_item AS i LEFT JOIN store_vector AS mark
    ON mark.deployment_id = i.deployment_id AND mark.path = i.path AND mark.key = i.key AND mark.n = :mark
WHERE i.deployment_id = :deployment_id AND (i.expires_at IS NULL OR i.expires_at > now())
  AND (i.path, i.key) > (:after_path, :after_key)
  AND (mark.written_at IS DISTINCT FROM i.updated_at OR CAST(mark.field AS json) ->> 'by' IS DISTINCT FROM :by)
ORDER BY i.path, i.key LIMIT :limit

-- name: lock_unchanged
SELECT FROM store_item
WHERE deployment_id = :deployment_id AND path = :path AND key = :key AND updated_at = :updated_at FOR UPDATE
