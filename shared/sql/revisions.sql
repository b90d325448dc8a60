-- The life of a revision: shared/deployments/revisions.py.

-- name: insert
INSERT INTO revision (id, deployment_id, number, status, source, source_revision_config, archive_digest,
                      requirements, python_version, manifest, build_id, preview)
VALUES (:id, :deployment_id,
        (SELECT coalesce(max(number), 0) + 1 FROM revision WHERE deployment_id = :deployment_id),
        'CREATING', :source, CAST(:config AS json), :digest, :requirements, :python_version,
        CAST(:manifest AS json), :build_id, :preview)

-- name: get
SELECT {columns}, r.deployment_id, r.requirements, r.python_version, r.manifest, r.build_id, r.attempt, r.seq_reserved
FROM revision r WHERE r.deployment_id = :deployment_id AND r.id = :id

-- name: of_deployment
SELECT {columns} FROM revision r
WHERE r.deployment_id = :deployment_id AND (cardinality(CAST(:statuses AS text[])) = 0 OR r.status = ANY(:statuses))
ORDER BY r.number DESC LIMIT :limit OFFSET :offset

-- name: of_organization
-- A revision of one of the organization's deployments. The columns are NULL if only the deployment exists.
SELECT {columns}, r.deployment_id
FROM deployment d LEFT JOIN revision r ON r.deployment_id = d.id AND r.id = :revision_id
WHERE d.id = :deployment_id AND d.organization_id = :organization_id AND d.deleted_at IS NULL

-- name: older_queued
-- The queued revisions of the same target: the deployment itself, or the same preview.
SELECT id FROM revision
WHERE deployment_id = :deployment_id AND status = 'QUEUED' AND id <> :revision_id
  AND preview IS NOT DISTINCT FROM (SELECT preview FROM revision WHERE id = :revision_id)

-- name: next_queued
-- The newest revision for the deployment itself, else the oldest for a preview.
SELECT id FROM revision WHERE deployment_id = :deployment_id AND status = 'QUEUED'
ORDER BY preview IS NOT NULL, CASE WHEN preview IS NULL THEN -number ELSE number END LIMIT 1

-- name: unended
-- The revisions that have not ended: those for one preview, or all if `preview` is NULL.
SELECT id FROM revision
WHERE deployment_id = :deployment_id AND status <> ALL(:ends)
  AND (CAST(:preview AS text) IS NULL OR preview = :preview)

-- name: move
UPDATE revision SET status = :status, status_message = :message, updated_at = now(), owner = NULL,
    lease_until = NULL, notified_at = CASE WHEN :is_notified THEN clock_timestamp() ELSE notified_at END,
    seq_reserved = seq_reserved + 2
WHERE id = :id AND status <> ALL(:ends)
RETURNING attempt, seq_reserved - 1 AS seq

-- name: claim
UPDATE revision r
SET status = CASE r.status WHEN 'AWAITING_BUILD' THEN 'BUILDING' ELSE 'DEPLOYING' END,
    attempt = r.attempt + 1, owner = :owner, seq_reserved = r.seq_reserved + :reserved,
    lease_until = now() + make_interval(secs => :lease_seconds), updated_at = now()
FROM deployment d
WHERE r.id = :id AND d.id = r.deployment_id AND d.deleted_at IS NULL AND r.owner IS NULL
  AND r.status = ANY(:claimable) AND is_due(r.not_before)
RETURNING r.id AS revision_id, r.deployment_id, d.organization_id, d.pool, r.status, r.attempt, r.owner,
    r.seq_reserved - :reserved AS floor, coalesce(r.build_id, r.id) AS build_id, r.archive_digest,
    r.source_revision_config AS config, r.requirements, r.python_version, r.manifest, r.preview

-- name: give_back
UPDATE revision SET owner = NULL, lease_until = NULL, notified_at = NULL,
    status = CASE WHEN requirements IS NULL OR manifest IS NULL THEN 'AWAITING_BUILD' ELSE 'AWAITING_DEPLOY' END
WHERE id = :id AND attempt = :attempt AND owner = :owner

-- name: due
UPDATE revision SET notified_at = clock_timestamp(), notifications = notifications + 1
WHERE id IN (
    SELECT id FROM revision
    WHERE status = ANY(:claimable) AND owner IS NULL AND is_due(revision.not_before)
      AND (notified_at IS NULL OR notified_at NOT BETWEEN
        clock_timestamp() - make_interval(secs => :again_seconds * least(notifications + 1, 12)) AND clock_timestamp())
    ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id

-- name: expired
SELECT id, deployment_id, status, attempt FROM revision
WHERE owner IS NOT NULL AND status = ANY(:in_progress) AND lease_until < now()
ORDER BY lease_until LIMIT 20

-- name: before
-- The revision of the same deployment with the next lower number.
SELECT o.id FROM revision r JOIN revision o ON o.deployment_id = r.deployment_id AND o.number < r.number
WHERE r.id = :id ORDER BY o.number DESC LIMIT 1

-- name: record_changes
UPDATE revision SET changes = CAST(CAST(coalesce(changes, '{}') AS jsonb) || CAST(:changes AS jsonb) AS json),
    created_by = coalesce(CAST(:created_by AS json), created_by)
FROM deployment d
WHERE revision.id = :id AND d.id = revision.deployment_id
RETURNING d.organization_id, d.name, d.id AS deployment_id, revision.number, revision.preview,
    revision.archive_digest IS NOT NULL OR revision.source = 'github' AS has_source

-- name: host_limits
SELECT r.id, d.hosts_per_runner, d.memory_mb, d.deleted_at IS NOT NULL AS is_deleted,
    d.active_revision_id IS NOT NULL AND NOT takes_traffic(r.id, d.active_revision_id, d.traffic) AS is_replaced
FROM revision r JOIN deployment d ON d.id = r.deployment_id WHERE r.id = ANY(:ids)
