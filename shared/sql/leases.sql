-- Leases on runs, returning runs to the queue, and taking them over: shared/runs/claims.py.

-- install: with_lost_attempt
-- A run's column `attempts` with its current attempt, which is lost, as the last of at most 50. While an attempt runs,
-- `updated_at` is the time at which it started: no other statement updates it.
CREATE OR REPLACE FUNCTION with_lost_attempt(
    attempts jsonb, attempt bigint, owner text, updated_at timestamptz, reason text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_array_length(attempts) >= 50 THEN attempts - 0 ELSE coalesce(attempts, '[]') END
        || jsonb_build_object('attempt', attempt, 'worker', owner, 'started_at', updated_at, 'ended_at', now(),
            'reason', reason)
$$;

-- name: renew
-- Extends the leases of an owner's runs that have not expired. Rows that another transaction locks are not renewed; they are
-- returned with `renewed` false, as the snapshot has them.
WITH held AS (
    SELECT run_id, attempt, cancel_requested, cancel_reason FROM run
    WHERE run_id = ANY(:run_ids) AND owner = :owner AND status = 'running' AND lease_until > now()
), free AS (
    SELECT run_id FROM run
    WHERE run_id = ANY(:run_ids) AND owner = :owner AND status = 'running' AND lease_until > now()
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE run SET lease_until = now() + make_interval(secs => :lease_seconds)
    WHERE run_id IN (SELECT run_id FROM free)
    RETURNING run_id, attempt, cancel_requested, cancel_reason, true AS renewed
)
SELECT * FROM renewed
UNION ALL
SELECT *, false FROM held WHERE run_id NOT IN (SELECT run_id FROM renewed)

-- name: requeue
-- The process that returns a run to the queue notifies runners after the commit, so `notified_at` is set.
UPDATE run r SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(), notified_at = now(),
    notifications = 0,
    attempts = with_lost_attempt(r.attempts, r.attempt, r.owner, r.updated_at, coalesce(f.death, :reason)),
    not_before = now() + make_interval(secs => f.delay_seconds),
    last_death = f.death, deaths = r.deaths + f.died, quarantine = coalesce(f.quarantine, r.quarantine)
FROM unnest(:run_ids, :attempts, :owners, :delays, :deaths, :died, :levels)
    AS f (run_id, attempt, owner, delay_seconds, death, died, quarantine)
WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = f.owner AND r.status = 'running'
  AND r.cancel_requested IS NULL
RETURNING r.run_id

-- name: requeue_unknown
-- The running runs of an owner that does not know them. A claim of the last moment may not have reached the owner yet.
UPDATE run r SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(), notified_at = now(),
    notifications = 0, attempts = with_lost_attempt(r.attempts, r.attempt, r.owner, r.updated_at, :reason)
WHERE owner = :owner AND status = 'running' AND run_id <> ALL(:known)
  AND updated_at < now() - make_interval(secs => :settled_seconds) AND cancel_requested IS NULL
RETURNING run_id, pool

-- name: requeue_abandoned
UPDATE run r SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(), notified_at = now(),
    notifications = 0, attempts = with_lost_attempt(r.attempts, r.attempt, r.owner, r.updated_at, :reason),
    deaths = deaths + 1
WHERE run_id = :run_id AND status = 'running' AND lease_until < now()
  AND deaths + 1 < :max_attempts AND cancel_requested IS NULL AND deadline_at > now()

-- name: cancel_requests
SELECT r.run_id, r.cancel_requested, r.cancel_reason
FROM run r JOIN unnest(:run_ids, :attempts, :owners) AS f (run_id, attempt, owner)
    ON r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = f.owner
WHERE r.status = 'running' AND r.cancel_requested IS NOT NULL

-- name: take_over
-- The new owner only ends the run, so its lease is short and is not renewed.
UPDATE run r SET attempts = with_lost_attempt(r.attempts, r.attempt, r.owner, r.updated_at, :reason), owner = :owner,
    attempt = attempt + 1, seq_reserved = seq_reserved + :event_numbers, lease_until = now() + interval '30 seconds',
    updated_at = now()
WHERE run_id = :run_id AND status = 'running' AND lease_until < now()
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - :event_numbers AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs, joined,
    last_death, deaths, quarantine, timeout_seconds, extract(epoch FROM deadline_at - now()) AS seconds_left,
    cancel_requested
