-- Pending runs: repeated notifications, nested runs and queue positions.
-- shared/runs/backlog.py, shared/runs/nesting.py, shared/runs/queue_position.py.

-- name: notify
-- Marks eligible runs without a limit as notified, if the last notification had no effect. Considers only the oldest runs
-- of each pair of deployment and key, so the cost does not grow with the backlog. Nested runs are left out: runners poll
-- for them.
UPDATE run SET notified_at = now(), notifications = notifications + 1 WHERE run_id = ANY(ARRAY(
    WITH eligible AS (
        SELECT c.run_id FROM waiting_lanes() lane CROSS JOIN LATERAL (
            SELECT r.run_id, r.notified_at, r.notifications FROM unblocked_run r
            WHERE r.status = 'pending' AND r.pool = lane.pool AND r.deployment_id = lane.deployment_id
              AND r.key_id = lane.key_id AND r.depth = 0
            ORDER BY r.run_id LIMIT 2 * :limit) c
        WHERE lane.pool <> ALL(:full_pools) AND lane.deployment_id NOT IN (SELECT id FROM limited_deployment)
          AND lane.key_id NOT IN (SELECT id FROM limited_key)
          AND is_notification_lost(c.notified_at, c.notifications)
        ORDER BY c.run_id LIMIT :limit)
    SELECT r.run_id FROM run r WHERE r.run_id = ANY(ARRAY(SELECT run_id FROM eligible))
    FOR UPDATE SKIP LOCKED))
RETURNING run_id, pool

-- name: nested
-- The depths of a pool with eligible nested runs, deepest first, and the limits that apply to these runs. A loose index scan:
-- one index lookup for each triple of depth, deployment and key, however many runs wait in it. A long queue of a limited
-- deployment or key therefore does not hide the runs of others.
WITH RECURSIVE lane AS (
    (SELECT l.depth, l.deployment_id, l.key_id FROM run l
     WHERE l.status = 'pending' AND l.depth > 0 AND l.pool = :pool
     ORDER BY l.depth, l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.depth, n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.depth, m.deployment_id, m.key_id FROM run m
        WHERE m.status = 'pending' AND m.depth > 0 AND m.pool = :pool
          AND (m.depth, m.deployment_id, m.key_id) > (l.depth, l.deployment_id, l.key_id)
        ORDER BY m.depth, m.deployment_id, m.key_id LIMIT 1) n
), limited AS (
    SELECT lane.*, deployment_id IN (SELECT id FROM limited_deployment) AS by_deployment,
        key_id IN (SELECT id FROM limited_key) AS by_key
    FROM lane
)
SELECT l.depth, coalesce(bool_or(NOT by_deployment AND NOT by_key), false) AS has_unlimited,
    coalesce(array_agg(DISTINCT l.deployment_id) FILTER (WHERE by_deployment), '{}') AS deployments,
    coalesce(array_agg(DISTINCT l.key_id) FILTER (WHERE NOT by_deployment AND by_key), '{}') AS keys
FROM limited l
WHERE EXISTS (
    SELECT FROM unblocked_run r WHERE r.status = 'pending' AND r.pool = :pool AND r.deployment_id = l.deployment_id
      AND r.key_id = l.key_id AND r.depth = l.depth OFFSET 0)
GROUP BY l.depth ORDER BY l.depth DESC

-- name: position
-- The position of a run in the queue of its pool, of its deployment or of its key: the number of runs that round robin starts
-- up to and including this run, counted up to `most`. If it is the n-th run of its key, it starts in round n: after n - 1
-- rounds, in which each other key starts at most n - 1 runs.
WITH lane AS (
    SELECT * FROM waiting_lanes_of(:pool)
    WHERE (deployment_id = :deployment_id OR deployment_id NOT IN (SELECT id FROM active_bench))
      AND (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
      AND (CAST(:key_id AS text) IS NULL OR key_id = :key_id)
), same_key AS (
    SELECT least(sum(c.n), :most) AS n FROM lane l CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
            SELECT FROM run w WHERE w.status = 'pending' AND w.pool = :pool AND w.deployment_id = l.deployment_id
              AND w.key_id = l.key_id AND w.depth = :depth AND w.run_id <= :run_id AND is_due(w.not_before)
            LIMIT :most) counted) c
    WHERE l.key_id = :key_of_run
), others AS (
    SELECT l.key_id, sum(c.n) AS n FROM same_key CROSS JOIN lane l CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
            SELECT FROM run w WHERE w.status = 'pending' AND w.pool = :pool AND w.deployment_id = l.deployment_id
              AND w.key_id = l.key_id AND w.depth = :depth AND is_due(w.not_before)
            LIMIT greatest(same_key.n - 1, 0)) counted) c
    WHERE l.key_id <> :key_of_run GROUP BY l.key_id
)
SELECT CAST(same_key.n + coalesce((
    SELECT sum(least(o.n, greatest(same_key.n - 1, 0))) FROM others o), 0) AS bigint) AS position
FROM same_key

-- install: runners_of_pool
-- The runners of a pool: those that take runs, their slots, and those that are drained.
CREATE OR REPLACE FUNCTION runners_of_pool(of_pool text, silent_seconds float8)
RETURNS TABLE (runners bigint, slots bigint, draining bigint) LANGUAGE sql STABLE AS $$
    SELECT count(*) FILTER (WHERE state = 'ready'),
        CAST(coalesce(sum(w.slots) FILTER (WHERE state = 'ready'), 0) AS bigint),
        count(*) FILTER (WHERE state = 'draining')
    FROM worker w WHERE kind = 'runner' AND pool = of_pool AND seen_at >= now() - make_interval(secs => silent_seconds)
$$;

-- name: capacity_of_run
-- The limits that apply to a pending run, and how far each is used by runs of its depth.
SELECT r.run_id, r.pool, r.key_id, r.depth, d.max_concurrent_runs AS "limit", k.max_concurrent_runs AS key_limit,
    (SELECT count(*) FROM run e
     WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = r.depth) AS running,
    CASE WHEN k.max_concurrent_runs IS NULL THEN 0 ELSE (
        SELECT count(*) FROM run e
        WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = r.depth) END AS key_running,
    CASE WHEN NOT is_due(r.not_before) THEN r.not_before END AS due_at, pool.runners, pool.slots, pool.draining,
    (SELECT count(*) FROM run e WHERE e.status = 'running' AND e.pool = d.pool AND e.depth = r.depth) AS busy
FROM run r JOIN deployment d ON d.id = r.deployment_id LEFT JOIN api_key k ON k.id = r.key_id
CROSS JOIN LATERAL runners_of_pool(d.pool, :silent_seconds) pool
WHERE r.run_id = :run_id

-- name: capacity_of_deployment
-- The limit of a deployment and its pool's runners, and how far they are used by runs of one depth and of all depths.
SELECT d.pool, d.max_concurrent_runs AS "limit",
    (SELECT count(*) FROM run e
     WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = :depth) AS running,
    (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running') AS running_in_all,
    (SELECT count(*) FROM run e WHERE e.status = 'running' AND e.pool = d.pool) AS busy_in_all,
    pool.runners, pool.slots, pool.draining,
    (SELECT count(*) FROM run e WHERE e.status = 'running' AND e.pool = d.pool AND e.depth = :depth) AS busy
FROM deployment d CROSS JOIN LATERAL runners_of_pool(d.pool, :silent_seconds) pool
WHERE d.id = :deployment_id

-- name: capacity_of_keys
SELECT k.id, k.max_concurrent_runs AS key_limit,
    (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = :depth) AS key_running
FROM limited_key k WHERE k.id = ANY(:key_ids)
