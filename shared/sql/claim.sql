-- Claiming runs: shared/runs/claims.py. A claim raises `attempt` and takes a lease. The views are defined in rules.sql.

-- install: claim_runs_1
-- Claims those of the given runs that are pending and unblocked. Returns a row for each claimed run, with the newest
-- checkpoint of its thread. One snapshot is enough for both: a run is unblocked only if the snapshot contains the end of
-- the thread's previous run, and that run's checkpoints were committed no later.
CREATE OR REPLACE FUNCTION claim_runs_1(run_ids uuid[], claiming_owner text, lease_seconds float8,
    default_timeout_seconds float8, event_numbers bigint, only_pool text, includes_limited boolean,
    some_key_is_limited boolean)
RETURNS TABLE (run_id uuid, deployment_id uuid, thread_id uuid, assistant_id uuid, revision_id uuid, graph_id text,
    attempt bigint, floor bigint, temporary boolean, metadata jsonb, input text, kwargs json, joined jsonb,
    last_death text, deaths bigint, quarantine bigint, timeout_seconds float8, seconds_left float8, key_id text,
    depth bigint, has_checkpoint boolean, checkpoint_ns text, checkpoint_id text, parent_checkpoint_id text,
    checkpoint_type text, checkpoint_data bytea, checkpoint_metadata text, channels text[], versions text[],
    types text[], blobs bytea[], tasks text[], write_channels text[], write_types text[], writes bytea[])
LANGUAGE plpgsql
-- Generic plans hold for all calls of a session. PostgreSQL would otherwise plan a statement with list parameters anew at
-- each call, because it sees that the lists are short. A plan may be made while tables are empty and is kept while they
-- grow, so only index scans are enabled.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH claimed AS (
    UPDATE unblocked_run r SET status = 'running', attempt = r.attempt + 1, owner = claiming_owner,
        lease_until = now() + make_interval(secs => lease_seconds),
        -- The time of the statement, not of the transaction, which may have waited for the lock of a deployment or key.
        -- With the transaction's time, the recorded times would show more concurrent runs than the limit allows.
        updated_at = statement_timestamp(), started_at = coalesce(r.started_at, statement_timestamp()),
        deadline_at = coalesce(
            r.deadline_at, now() + make_interval(secs => coalesce(r.timeout_seconds, default_timeout_seconds))),
        seq_reserved = r.seq_reserved + event_numbers
    WHERE r.run_id = ANY(run_ids) AND (only_pool IS NULL OR r.pool = only_pool)
      -- coalesce() keeps the planner from the partial indexes of pending runs. A kept generic plan would otherwise scan
      -- the whole backlog for each claimed run.
      AND coalesce(r.status, '') = 'pending'
      AND (includes_limited OR (r.deployment_id NOT IN (SELECT id FROM limited_deployment)
           AND (NOT some_key_is_limited OR r.key_id NOT IN (SELECT id FROM limited_key))))
    RETURNING r.run_id, r.deployment_id, r.thread_id, r.assistant_id, r.revision_id, r.graph_id, r.attempt,
        r.seq_reserved - event_numbers, r.temporary, r.metadata, CAST(r.input AS text), r.kwargs, r.joined,
        r.last_death, r.deaths, r.quarantine, r.timeout_seconds, date_part('epoch', r.deadline_at - now()), r.key_id,
        r.depth
)
SELECT c.*,
    c.attempt > 1 AND EXISTS (
        SELECT FROM checkpoint stored
        WHERE stored.deployment_id = c.deployment_id AND stored.thread_id = c.thread_id
          AND stored.checkpoint_ns = '' AND stored.run_id = c.run_id),
    newest.*
FROM claimed c LEFT JOIN LATERAL newest_checkpoint(c.deployment_id, c.thread_id) newest ON NOT c.temporary;
END $$;

-- name: notified
SELECT * FROM claim_runs_1(:run_ids, :owner, :lease_seconds, :run_timeout_seconds, :event_numbers, :pool, false,
    :some_key_is_limited)

-- name: overlooked
-- Runs whose notification was lost, and runs with a time in the future, which were created before the database's clock
-- was set back. ARRAY(…) is evaluated once.
SELECT * FROM claim_runs_1(ARRAY(
    SELECT r.run_id FROM unblocked_run r
    WHERE r.status = 'pending' AND r.pool = :pool AND r.depth = 0
      AND r.deployment_id NOT IN (SELECT id FROM limited_deployment) AND r.key_id NOT IN (SELECT id FROM limited_key)
      AND waiting_since(r.not_before, r.created_at) NOT BETWEEN
          now() - make_interval(secs => :waited_seconds) AND now()
    ORDER BY r.run_id LIMIT :limit FOR UPDATE OF r SKIP LOCKED
), :owner, :lease_seconds, :run_timeout_seconds, :event_numbers, :pool, true, true)

-- name: round_robin
-- The oldest run of each key, then the second of each key. Within a round, the key served longest ago comes first.
-- `deployment_id` or `key_id` selects a limited queue, whose row the caller has locked. If both are NULL, the statement
-- claims from all unlimited queues. In these queues a claim would wait behind runs that a limit keeps waiting. A key
-- with a limit takes part in as many rounds as it has capacity. The statement considers `spare` runs more than the limit,
-- because other runners may be claiming the same runs. It claims runs of one depth (shared/runs/nesting.py).
SELECT * FROM claim_runs_1(ARRAY(
    WITH ranked AS (
        SELECT c.run_id, lane.key_id, row_number() OVER (PARTITION BY lane.key_id ORDER BY c.run_id) AS round
        FROM waiting_lanes_of(:pool) lane CROSS JOIN LATERAL (
            SELECT r.run_id FROM unblocked_run r
            WHERE r.status = 'pending' AND r.pool = :pool AND r.deployment_id = lane.deployment_id
              AND r.key_id = lane.key_id AND r.depth = :depth
            ORDER BY r.run_id LIMIT :limit + :spare) c
        WHERE CASE WHEN CAST(:deployment_id AS uuid) IS NOT NULL THEN lane.deployment_id = :deployment_id
                   WHEN lane.deployment_id IN (SELECT id FROM limited_deployment) THEN false
                   WHEN CAST(:key_id AS text) IS NOT NULL THEN lane.key_id = :key_id
                   ELSE lane.key_id NOT IN (SELECT id FROM limited_key) END
    ), chosen AS (
        SELECT run_id, row_number() OVER (
            ORDER BY round, coalesce(array_position(CAST(:served_keys AS text[]), key_id), 0), run_id) AS position
        FROM ranked
        WHERE round <= coalesce((CAST(:capacities AS bigint[]))[
            array_position(CAST(:limited_keys AS text[]), key_id)], :limit + :spare)
        ORDER BY position LIMIT :limit + :spare
    )
    SELECT r.run_id FROM run r JOIN chosen ON chosen.run_id = r.run_id WHERE r.status = 'pending'
    ORDER BY chosen.position LIMIT :limit FOR UPDATE OF r SKIP LOCKED
), :owner, :lease_seconds, :run_timeout_seconds, :event_numbers, :pool, true, true)
