-- Crons: shared/crons.

-- install: is_cron_due
CREATE OR REPLACE FUNCTION is_cron_due(enabled boolean, next_run_date timestamptz, end_time timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT enabled AND next_run_date <= now() AND (end_time IS NULL OR next_run_date <= end_time)
$$;

-- name: due
-- The crons that are due, oldest first: those of deployments with their own authorization (`guarded`), or the others.
SELECT c.cron_id
FROM cron AS c JOIN deployment AS d ON d.id = c.deployment_id JOIN revision AS r ON r.id = d.active_revision_id
WHERE is_cron_due(c.enabled, c.next_run_date, c.end_time) AND d.deleted_at IS NULL
  AND (r.user_code ->> 'auth' IS NOT NULL) = :guarded
ORDER BY c.next_run_date LIMIT :limit

-- name: one_due
-- A cron, if it is due.
SELECT c.*, d.active_revision_id, now() AS now
FROM cron AS c JOIN deployment AS d ON d.id = c.deployment_id JOIN revision AS r ON r.id = d.active_revision_id
WHERE is_cron_due(c.enabled, c.next_run_date, c.end_time) AND d.deleted_at IS NULL
  AND (r.user_code ->> 'auth' IS NOT NULL) = :guarded AND c.cron_id = :cron_id
{lock}

-- name: insert
INSERT INTO cron (cron_id, deployment_id, assistant_id, thread_id, user_id, end_time, schedule, timezone, payload,
    next_run_date, metadata, on_run_completed, enabled, auth_user)
VALUES (:cron_id, :deployment_id, :assistant_id, :thread_id, :user_id, :end_time, :schedule, :timezone,
    CAST(:payload AS json), :next_run_date, CAST(:metadata AS jsonb), :on_run_completed, :enabled, :auth_user)

-- name: get
SELECT {columns} FROM cron WHERE deployment_id = :deployment_id AND cron_id = :cron_id {lock}

-- name: update
UPDATE cron SET schedule = :schedule, timezone = :timezone, end_time = :end_time, enabled = :enabled,
    on_run_completed = :on_run_completed, next_run_date = :next_run_date, updated_at = now(),
    payload = CAST(:payload AS json), metadata = CAST(:metadata AS jsonb)
WHERE deployment_id = :deployment_id AND cron_id = :cron_id

-- name: search
SELECT {columns} FROM cron WHERE {condition} ORDER BY {order}, cron_id DESC LIMIT :limit OFFSET :offset

-- name: count
SELECT count(*) AS n FROM (SELECT FROM cron WHERE {condition} LIMIT CAST(:most AS bigint)) AS counted

-- name: visible
SELECT FROM cron WHERE deployment_id = :deployment_id AND cron_id = :id AND {visible} {lock}
