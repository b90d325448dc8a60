-- Deployments: their addresses, limits and traffic, and the logs and sources of their revisions.

-- name: by_address
-- The organization's deployment with this name, else its preview with this address.
SELECT a.*, coalesce(r.manifest -> 'http', '{}') AS http, r.user_code IS NOT NULL AS has_user_code
FROM (
    SELECT id, organization_id, name, pool, active_revision_id, traffic, CAST(NULL AS text) AS preview,
        replay_of IS NOT NULL AS is_bench
    FROM deployment WHERE organization_id = :organization_id AND name = :name AND deleted_at IS NULL
    UNION ALL
    SELECT d.id, d.organization_id, d.name, d.pool, p.revision_id, NULL, p.name, false
    FROM deployment d JOIN preview p ON p.deployment_id = d.id
    WHERE d.organization_id = :organization_id AND d.name = :previewed AND d.deleted_at IS NULL
      AND p.name = :preview AND p.revision_id IS NOT NULL
) a LEFT JOIN revision r ON r.id = a.active_revision_id
ORDER BY a.preview IS NOT NULL LIMIT 1

-- name: by_public_address
-- The deployment or preview with this address, of one or any organization, whose active revision has user code or HTTP
-- settings. Of several, one with user code comes first, then the oldest.
SELECT a.*, false AS is_bench, coalesce(r.manifest -> 'http', '{}') AS http, r.user_code IS NOT NULL AS has_user_code
FROM (
    SELECT id, organization_id, name, pool, active_revision_id, traffic, CAST(NULL AS text) AS preview, created_at
    FROM listed_deployment WHERE name = :name AND deleted_at IS NULL
    UNION ALL
    SELECT d.id, d.organization_id, d.name, d.pool, p.revision_id, NULL, p.name, d.created_at
    FROM listed_deployment d JOIN preview p ON p.deployment_id = d.id
    WHERE d.name = :previewed AND d.deleted_at IS NULL AND p.name = :preview
) a JOIN revision r ON r.id = a.active_revision_id
WHERE (CAST(:organization_id AS uuid) IS NULL OR a.organization_id = :organization_id)
  AND (r.user_code IS NOT NULL OR CAST(r.manifest -> 'http' AS text) NOT IN ('{}', 'null'))
ORDER BY a.preview IS NOT NULL, has_user_code DESC, a.created_at, a.id LIMIT 1

-- name: by_id
SELECT d.id, d.organization_id, d.name, d.pool, d.active_revision_id, d.traffic, CAST(NULL AS text) AS preview,
    d.replay_of IS NOT NULL AS is_bench,
    coalesce(r.manifest -> 'http', '{}') AS http, r.user_code IS NOT NULL AS has_user_code
FROM deployment d LEFT JOIN revision r ON r.id = d.active_revision_id
WHERE d.id = :id AND d.deleted_at IS NULL

-- name: get
SELECT {columns} FROM listed_deployment d LEFT JOIN revision r ON r.id = d.latest_revision_id
WHERE d.organization_id = :organization_id AND d.id = :id

-- name: search
SELECT {columns} FROM listed_deployment d LEFT JOIN revision r ON r.id = d.latest_revision_id
WHERE d.organization_id = :organization_id AND d.deleted_at IS NULL AND {condition}
ORDER BY d.created_at DESC, d.id DESC LIMIT :limit OFFSET :offset

-- name: is_taken
SELECT EXISTS (SELECT FROM deployment WHERE name = :name AND deleted_at IS NULL) OR EXISTS (
    SELECT FROM preview p JOIN deployment d ON d.id = p.deployment_id
    WHERE d.name = :previewed AND p.name = :preview AND d.deleted_at IS NULL) AS is_taken

-- name: recently_used
-- The revisions with traffic of the pool's most recently used deployments: those with the latest run first, then the most
-- recently changed.
SELECT taking.revision_id FROM (
    SELECT d.id, d.updated_at, d.active_revision_id, d.traffic,
        greatest((SELECT max(updated_at) FROM thread WHERE deployment_id = d.id AND is_listed),
            (SELECT max(updated_at) FROM thread WHERE deployment_id = d.id AND NOT is_listed)) AS used_at
    FROM listed_deployment d WHERE d.pool = :pool AND d.deleted_at IS NULL AND d.active_revision_id IS NOT NULL
    ORDER BY used_at DESC NULLS LAST, d.updated_at DESC LIMIT :limit
) AS d CROSS JOIN LATERAL (
    SELECT share.revision_id, share.percent
    FROM jsonb_to_recordset(d.traffic) AS share(revision_id uuid, percent integer)
    UNION ALL
    SELECT d.active_revision_id, 100 WHERE d.traffic IS NULL
) AS taking
ORDER BY d.used_at DESC NULLS LAST, d.updated_at DESC, d.id, taking.percent DESC

-- name: move_waiting
UPDATE run SET pool = :pool, notified_at = NULL, notifications = 0 WHERE status = 'pending' AND run_id = ANY(ARRAY(
    SELECT run_id FROM run WHERE deployment_id = :id AND status = 'pending' AND pool <> :pool
    LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: serve
UPDATE deployment SET active_revision_id = :revision_id, traffic = NULL, traffic_at = now(), status = 'READY',
    updated_at = now()
WHERE id = :id
RETURNING name

-- name: promote
-- The next change builds on the revision that serves now, unless a newer one is in progress.
UPDATE deployment d SET latest_revision_id = :revision_id
WHERE d.id = :id AND NOT EXISTS (
    SELECT FROM revision n WHERE n.id = d.latest_revision_id AND n.status <> 'CREATING' AND n.status <> ALL(:ends))

-- name: previews
-- The previews of a deployment: `r` is the revision that a preview shows, `n` its newest one.
SELECT {columns}
FROM preview p
LEFT JOIN revision r ON r.id = p.revision_id
LEFT JOIN LATERAL (SELECT id, status FROM revision o
                   WHERE o.deployment_id = p.deployment_id AND (o.preview = p.name OR o.id = p.revision_id)
                   ORDER BY o.number DESC LIMIT 1) AS n ON true
WHERE p.deployment_id = :id
ORDER BY p.name

-- name: address_of_preview
-- Whether a deployment already has the address of a preview, and the number of the deployment's other previews.
SELECT (SELECT count(*) FROM preview WHERE deployment_id = d.id AND name <> :name) AS others,
    EXISTS (SELECT FROM deployment o WHERE o.organization_id = d.organization_id AND o.deleted_at IS NULL
            AND o.name = d.name || :sign || :name) AS is_taken
FROM deployment d WHERE d.id = :id

-- name: show_preview
WITH shown AS (
    UPDATE preview SET revision_id = :revision_id, updated_at = now() WHERE deployment_id = :id AND name = :name
)
UPDATE deployment SET traffic_at = now() WHERE id = :id RETURNING name

-- name: log_lines
SELECT {columns} FROM log_line WHERE {condition} ORDER BY at {direction}, id {direction} LIMIT :limit

-- name: insert_log_lines
-- The time of a line from a process whose clock is ahead is capped at now. Lines of deleted deployments are dropped.
INSERT INTO log_line (deployment_id, revision_id, run_id, kind, at, level, message)
SELECT line.deployment_id, line.revision_id, line.run_id, line.kind, least(line.at, now()), line.level, line.message
FROM unnest(:deployments, :revisions, :runs, :kinds, CAST(:ats AS timestamptz[]), :levels, :messages)
    AS line (deployment_id, revision_id, run_id, kind, at, level, message)
WHERE EXISTS (SELECT FROM deployment WHERE id = line.deployment_id)

-- name: remove_unused_archives
DELETE FROM archive WHERE digest IN (
    SELECT digest FROM archive a WHERE created_at < now() - make_interval(secs => :kept_seconds)
      AND NOT EXISTS (SELECT FROM revision WHERE archive_digest = a.digest)
      AND NOT EXISTS (SELECT FROM upload WHERE digest = a.digest AND expires_at > now())
    LIMIT :limit)
  AND created_at < now() - make_interval(secs => :kept_seconds)  -- checked again: an upload may have renewed the row

-- name: components
-- The files of a set of components. The set has the name itself, or that of an assistant's graph.
SELECT name, kind, digest FROM component_bundle
WHERE revision_id = :revision_id AND name = coalesce((
    SELECT v.graph_id FROM assistant a
    JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
        AND v.version = a.version
    WHERE a.deployment_id = :deployment_id AND a.assistant_id = :assistant_id), :name)

-- name: component_bundle
-- A file of any revision of the deployments with this address. Those of several organizations have the same content.
SELECT b.content FROM deployment d JOIN revision r ON r.deployment_id = d.id JOIN component_bundle b ON b.revision_id = r.id
WHERE d.name IN (:name, :previewed) AND d.deleted_at IS NULL
    AND b.name = :set_name AND b.kind = :kind AND b.digest = :digest LIMIT 1
