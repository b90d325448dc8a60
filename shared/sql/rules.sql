-- Rules about runs, each written once. Simple functions are inlined into the statements that call them, so partial
-- indexes are used as if the condition stood in the statement.

-- install: is_live
-- Whether a run has not ended.
CREATE OR REPLACE FUNCTION is_live(status text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT status IN ('pending', 'running')
$$;

-- install: is_due
-- Whether a pending run or a waiting revision has no start time in the future.
CREATE OR REPLACE FUNCTION is_due(not_before timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT not_before IS NULL OR not_before <= now()
$$;

-- install: waiting_since
-- The time since which a pending run waits: its creation or its later start time.
CREATE OR REPLACE FUNCTION waiting_since(not_before timestamptz, created_at timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(not_before, created_at)
$$;

-- install: is_notification_lost
-- Whether the last notification of a pending run has had no effect for a while. One with a time in the future was sent
-- before the clock was set back, and counts as lost, too.
CREATE OR REPLACE FUNCTION is_notification_lost(notified_at timestamptz, notifications bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT notified_at IS NULL OR notified_at NOT BETWEEN
        now() - make_interval(secs => least(2 * (notifications + 1), 30)) AND now() + interval '10 seconds'
$$;

-- install: unblocked_run
-- Runs that may start as soon as they are pending and there is capacity. The view has no condition on the status: the
-- statements add it, so the planner finds the partial index.
CREATE VIEW unblocked_run AS
SELECT r.* FROM run r
WHERE r.cancel_requested IS NULL AND is_due(r.not_before) AND NOT EXISTS (
    SELECT FROM run earlier
    WHERE earlier.deployment_id = r.deployment_id AND earlier.thread_id = r.thread_id
      AND earlier.created_seq < r.created_seq AND is_live(earlier.status)
    -- OFFSET 0 keeps the planner from turning the subquery into a join, so it stays an index lookup by thread. A join is
    -- planned by statistics, and with statistics of a quiet hour its plan reads the whole backlog for each pending run.
    OFFSET 0);

-- install: listed_deployment
-- All deployments but benches, the hidden deployments of replays (shared/replays/benches.py). Whatever lists, counts or
-- changes deployments reads this view.
CREATE VIEW listed_deployment AS
SELECT * FROM deployment WHERE replay_of IS NULL;

-- install: bench
CREATE VIEW bench AS
SELECT id, replay_of, pool FROM deployment WHERE replay_of IS NOT NULL;

-- install: active_bench
-- The benches whose replay has not ended or has live runs. The bench of any other replay has no limit (replays.retire_bench).
CREATE VIEW active_bench AS
SELECT id, deleted_at FROM deployment WHERE replay_of IS NOT NULL AND max_concurrent_runs IS NOT NULL;

-- install: pool_load
-- The runs that are the load of their pools. Waiting cases of replays are not: they use capacity that is left.
CREATE VIEW pool_load AS
SELECT * FROM run WHERE status = 'running' OR deployment_id NOT IN (SELECT id FROM active_bench);

-- install: limited_deployment
CREATE VIEW limited_deployment AS
SELECT id, pool, max_concurrent_runs FROM deployment WHERE max_concurrent_runs IS NOT NULL;

-- install: limited_key
CREATE VIEW limited_key AS
SELECT id, max_concurrent_runs FROM api_key WHERE max_concurrent_runs IS NOT NULL;

-- install: waiting_lanes
-- The distinct triples of pool, deployment and key with pending runs. A loose index scan: one index lookup for each
-- triple, however many runs wait in it.
CREATE OR REPLACE FUNCTION waiting_lanes() RETURNS TABLE (pool text, deployment_id uuid, key_id text)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE lane AS (
        (SELECT l.pool, l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending'
         ORDER BY l.pool, l.deployment_id, l.key_id LIMIT 1)
        UNION ALL
        SELECT n.pool, n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
            SELECT m.pool, m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending'
              AND (m.pool, m.deployment_id, m.key_id) > (l.pool, l.deployment_id, l.key_id)
            ORDER BY m.pool, m.deployment_id, m.key_id LIMIT 1) n
    )
    SELECT pool, deployment_id, key_id FROM lane
$$;

-- install: waiting_lanes_of
-- The distinct pairs of deployment and key with pending runs in one pool, found in the same way.
CREATE OR REPLACE FUNCTION waiting_lanes_of(one_pool text) RETURNS TABLE (deployment_id uuid, key_id text)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE lane AS (
        (SELECT l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending' AND l.pool = one_pool
         ORDER BY l.deployment_id, l.key_id LIMIT 1)
        UNION ALL
        SELECT n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
            SELECT m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending' AND m.pool = one_pool
              AND (m.deployment_id, m.key_id) > (l.deployment_id, l.key_id)
            ORDER BY m.deployment_id, m.key_id LIMIT 1) n
    )
    SELECT deployment_id, key_id FROM lane
$$;

-- install: takes_traffic
-- Whether a revision serves, has a share of its deployment's traffic, or is shown by a preview.
CREATE OR REPLACE FUNCTION takes_traffic(revision_id uuid, active_revision_id uuid, traffic jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce(revision_id = active_revision_id, false)
        OR coalesce(traffic @> jsonb_build_array(jsonb_build_object('revision_id', CAST(revision_id AS text))), false)
        OR EXISTS (SELECT FROM preview p WHERE p.revision_id = takes_traffic.revision_id)
$$;

-- install: readable
-- A JSON document with U+FFFD in place of U+0000. The operators of PostgreSQL (`->`, `->>`) and its casts to jsonb refuse
-- a document with U+0000, so every statement that queries a `json` column of callers or graphs uses this function.
-- Escaped backslashes are replaced meanwhile by a character that no JSON document contains unescaped. A regular expression
-- would take a second for each megabyte of U+0000.
CREATE OR REPLACE FUNCTION readable(document json) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN strpos(CAST(document AS text), '\u0000') = 0 THEN document
        ELSE CAST(replace(replace(replace(CAST(document AS text),
            '\\', chr(1)), '\u0000', '\ufffd'), chr(1), '\\') AS json) END
$$;
