-- Figures about ended runs: shared/figures.

-- install: ended_run_values
-- Columns of `ended_run` that are computed when a run ends.
-- A deployment's own authorization may have any number of users (`user:…`), so their runs are counted without a key. A run
-- that waits for another attempt gets a new `not_before`; before its first attempt it waits since its creation. The time of
-- the first token comes from a graph host's clock or from user code, so times outside the run are dropped.
CREATE OR REPLACE FUNCTION ended_run_values(
    key_id text, created_at timestamptz, not_before timestamptz, started_at timestamptz, first_token_ago float8)
RETURNS TABLE (counted_key_id text, wait_seconds float8, duration_seconds float8, first_token_seconds float8)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN starts_with(key_id, 'user:') THEN '' ELSE key_id END,
        date_part('epoch', started_at - CASE WHEN not_before <= started_at THEN not_before ELSE created_at END),
        date_part('epoch', now() - started_at),
        CASE WHEN first_token_ago BETWEEN 0 AND date_part('epoch', now() - created_at)
            THEN date_part('epoch', now() - created_at) - first_token_ago END
$$;

-- name: record_ended
-- Counts live runs as ended, in the transaction that ends or deletes them.
INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
    first_token_seconds, usage)
SELECT r.deployment_id, e.counted_key_id, :status, r.created_at, r.attempt, e.wait_seconds, e.duration_seconds,
    e.first_token_seconds, CAST(:usage AS jsonb)
FROM run r CROSS JOIN LATERAL ended_run_values(
    r.key_id, r.created_at, r.not_before, r.started_at, CAST(:first_token_ago AS float8)) e
WHERE r.run_id = ANY(:run_ids)
