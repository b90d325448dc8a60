-- Limits of deployments and API keys on concurrent runs: shared/runs/limits.py.

-- name: with_capacity
-- The limited deployments and keys of these pending runs that are below their limit. Takes no locks. Runs of a limited
-- deployment are claimed by deployment, within the limits of their keys.
SELECT d.id AS deployment_id, CAST(NULL AS text) AS key_id FROM limited_deployment d
WHERE d.id IN (SELECT deployment_id FROM run WHERE run_id = ANY(:run_ids) AND status = 'pending' AND depth = 0)
  AND d.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0)
UNION ALL
SELECT NULL, k.id FROM limited_key k
WHERE k.id IN (
    SELECT w.key_id FROM run w WHERE w.run_id = ANY(:run_ids) AND w.status = 'pending' AND w.depth = 0
      AND w.deployment_id NOT IN (SELECT id FROM limited_deployment))
  AND k.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = 0)

-- name: overlooked
-- The limited deployments and keys below their limit with a run in this pool that has waited long.
SELECT d.id AS deployment_id, CAST(NULL AS text) AS key_id FROM limited_deployment d
WHERE d.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0)
  AND EXISTS (
    SELECT FROM run w
    WHERE w.pool = :pool AND w.deployment_id = d.id AND w.status = 'pending' AND w.depth = 0
      AND waiting_since(w.not_before, w.created_at) < now() - make_interval(secs => :waited_seconds))
UNION ALL
SELECT NULL, k.id FROM limited_key k
WHERE k.id IN (
    SELECT w.key_id FROM run w WHERE w.pool = :pool AND w.status = 'pending' AND w.depth = 0
      AND waiting_since(w.not_before, w.created_at) < now() - make_interval(secs => :waited_seconds)
      AND w.deployment_id NOT IN (SELECT id FROM limited_deployment))
  AND k.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = 0)

-- name: ordinary_run_waits
-- Whether a run that belongs to no replay waits in a pool and could start, by the limits of its deployment and key.
SELECT EXISTS (
    SELECT FROM waiting_lanes_of(:pool) lane
    LEFT JOIN limited_deployment d ON d.id = lane.deployment_id LEFT JOIN limited_key k ON k.id = lane.key_id
    WHERE lane.deployment_id NOT IN (SELECT id FROM active_bench)
      AND (d.id IS NULL OR d.max_concurrent_runs
          > (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0))
      AND (k.id IS NULL OR k.max_concurrent_runs
          > (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = 0))
      AND EXISTS (
        SELECT FROM unblocked_run r WHERE r.status = 'pending' AND r.pool = :pool
          AND r.deployment_id = lane.deployment_id AND r.key_id = lane.key_id AND r.depth = 0 OFFSET 0)) AS waits

-- name: lock_keys_within
-- Locks the limited keys with pending runs in a deployment.
SELECT id, max_concurrent_runs FROM api_key
WHERE max_concurrent_runs IS NOT NULL
  AND id IN (
      SELECT key_id FROM run WHERE deployment_id = :deployment_id AND status = 'pending' AND depth = :depth)
ORDER BY id FOR NO KEY UPDATE

-- name: notify_deployments
-- Marks eligible runs of limited deployments with capacity as notified. With `deployment_id`, only those of one deployment,
-- whether or not the last notification was lost.
UPDATE run SET notified_at = now(), notifications = notifications + 1 WHERE run_id IN (
    SELECT w.run_id FROM limited_deployment d
    CROSS JOIN LATERAL (
        SELECT d.max_concurrent_runs - count(*) AS n FROM run e
        WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0) free
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.notified_at, r.notifications FROM unblocked_run r
        WHERE r.deployment_id = d.id AND r.pool = d.pool AND r.status = 'pending' AND r.depth = 0
        ORDER BY r.run_id LIMIT greatest(least(free.n, 50), 0)) w
    WHERE d.id = :deployment_id
      OR CAST(:deployment_id AS uuid) IS NULL AND is_notification_lost(w.notified_at, w.notifications)
    LIMIT :limit)
RETURNING run_id, pool

-- name: notify_keys
-- Marks eligible runs of limited keys with capacity as notified. With `key_id`, only those of one key, whether or not the
-- last notification was lost.
UPDATE run SET notified_at = now(), notifications = notifications + 1 WHERE run_id = ANY(ARRAY(
    SELECT w.run_id FROM (
        SELECT c.run_id, c.notified_at, c.notifications, lane.key_id,
            row_number() OVER (PARTITION BY lane.key_id ORDER BY c.run_id) AS round
        FROM waiting_lanes() lane CROSS JOIN LATERAL (
            SELECT r.run_id, r.notified_at, r.notifications FROM unblocked_run r
            WHERE r.status = 'pending' AND r.pool = lane.pool AND r.deployment_id = lane.deployment_id
              AND r.key_id = lane.key_id AND r.depth = 0
            ORDER BY r.run_id LIMIT 50) c
        WHERE (CAST(:key_id AS text) IS NULL OR lane.key_id = :key_id)
          AND lane.key_id IN (SELECT id FROM limited_key)
          AND lane.deployment_id NOT IN (SELECT id FROM limited_deployment)) w
    JOIN limited_key k ON k.id = w.key_id
    LEFT JOIN (
        SELECT key_id, count(*) AS n FROM run WHERE status = 'running' AND depth = 0 GROUP BY key_id) busy
        ON busy.key_id = k.id
    WHERE w.round <= least(k.max_concurrent_runs - coalesce(busy.n, 0), 50)
      AND (CAST(:key_id AS text) IS NOT NULL OR is_notification_lost(w.notified_at, w.notifications))
    LIMIT :limit))
RETURNING run_id, pool
