-- The outbox of webhook deliveries: shared/runs/webhooks.py.

-- install: record_webhooks_1
-- Inserts a delivery for each of these runs that has a webhook. `status_sent` replaces the status of runs that are about to
-- be deleted. `default_error` is sent for runs that did not succeed and have no error. No values are sent of a run that is
-- rolled back. The copy of the run has no spans: no webhook sends them.
CREATE OR REPLACE FUNCTION record_webhooks_1(run_ids uuid[], status_sent text, default_error json) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO webhook_delivery (delivery_id, deployment_id, run_id, url, status, run, error, values)
    SELECT gen_random_uuid(), r.deployment_id, r.run_id, r.webhook, sent.status,
        row_to_json(jsonb_populate_record(r, '{"spans": null}')),
        coalesce(r.error, CASE WHEN sent.status <> 'success' THEN default_error END),
        CASE WHEN sent.status <> 'rollback' THEN t.values END
    FROM run r LEFT JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    CROSS JOIN LATERAL (SELECT coalesce(status_sent, r.status) AS status) sent
    WHERE r.webhook IS NOT NULL AND r.run_id = ANY(run_ids)
$$;

-- name: record
SELECT record_webhooks_1(:run_ids, :status, CAST(:error AS json))

-- name: claim
-- Claims the deliveries that have been due longest, and at most `per_deployment` at once for each deployment. A loose index
-- scan finds the deployments, so the cost does not depend on the number of due deliveries.
WITH RECURSIVE late AS (
    (SELECT deployment_id FROM webhook_delivery WHERE ended_at IS NULL ORDER BY deployment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT deployment_id FROM webhook_delivery
            WHERE ended_at IS NULL AND deployment_id > late.deployment_id ORDER BY deployment_id LIMIT 1)
    FROM late WHERE late.deployment_id IS NOT NULL
), busy AS (
    SELECT deployment_id, count(*) AS n FROM webhook_delivery
    WHERE owner IS NOT NULL AND due_at > now() GROUP BY deployment_id
), chosen AS (
    SELECT c.delivery_id FROM late
    LEFT JOIN busy ON busy.deployment_id = late.deployment_id
    CROSS JOIN LATERAL (
        SELECT delivery_id, due_at FROM webhook_delivery
        WHERE deployment_id = late.deployment_id AND ended_at IS NULL AND due_at <= now()
        ORDER BY due_at, delivery_id LIMIT greatest(:per_deployment - coalesce(busy.n, 0), 0)) AS c
    ORDER BY c.due_at LIMIT :limit
)
UPDATE webhook_delivery w SET attempt = w.attempt + 1, owner = :owner,
    due_at = now() + make_interval(secs => :lease_seconds)
FROM deployment d
WHERE d.id = w.deployment_id AND w.delivery_id = ANY(ARRAY(
    SELECT delivery_id FROM webhook_delivery
    WHERE ended_at IS NULL AND due_at <= now() AND delivery_id IN (SELECT delivery_id FROM chosen)
    FOR UPDATE SKIP LOCKED))
RETURNING w.delivery_id, w.deployment_id, d.name AS deployment_name, d.active_revision_id AS revision_id, w.run_id,
    w.url, w.status, w.run, w.values, w.error, w.attempt, w.owner

-- name: record_attempt
-- `retry_seconds` is NULL after the last attempt. The pause is varied by ±10 %.
UPDATE webhook_delivery SET failure = :failure, response_status = :response_status, owner = NULL,
    ended_at = CASE WHEN CAST(:retry_seconds AS float8) IS NULL THEN now() END,
    due_at = now() + make_interval(secs => coalesce(CAST(:retry_seconds AS float8), 0) * (0.9 + random() * 0.2))
WHERE delivery_id = :delivery_id AND owner = :owner AND attempt = :attempt AND ended_at IS NULL

-- name: shorten_pauses
-- Shortens pauses and leases that reach too far into the future. `pauses` are the seconds after each attempt.
UPDATE webhook_delivery SET due_at = now() + make_interval(secs => CASE WHEN owner IS NOT NULL THEN :lease_seconds
    ELSE coalesce((CAST(:pauses AS float8[]))[attempt], 0) END)
WHERE ended_at IS NULL AND due_at > now() + 2 * make_interval(secs => CASE WHEN owner IS NOT NULL THEN :lease_seconds
    ELSE coalesce((CAST(:pauses AS float8[]))[attempt], 0) END)

-- install: delivery_status
CREATE OR REPLACE FUNCTION delivery_status(ended_at timestamptz, failure text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN ended_at IS NULL THEN 'pending' WHEN failure IS NULL THEN 'delivered' ELSE 'failed' END
$$;

-- install: thread_of_delivery
-- The thread id of a delivery's run, from its column `run`: the run may have been deleted.
CREATE OR REPLACE FUNCTION thread_of_delivery(run json) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(readable(run) ->> 'thread_id' AS uuid)
$$;

-- name: search
SELECT {columns} FROM webhook_delivery w
WHERE w.deployment_id = :deployment_id AND {visible} AND (CAST(:run_id AS uuid) IS NULL OR w.run_id = :run_id)
  AND (CAST(:status AS text) IS NULL OR delivery_status(w.ended_at, w.failure) = :status)
ORDER BY w.created_at DESC, w.delivery_id DESC LIMIT :limit OFFSET :offset

-- name: count
SELECT count(*) AS n FROM (
    SELECT FROM webhook_delivery w
    WHERE w.deployment_id = :deployment_id AND {visible} AND (CAST(:run_id AS uuid) IS NULL OR w.run_id = :run_id)
      AND (CAST(:status AS text) IS NULL OR delivery_status(w.ended_at, w.failure) = :status)
    LIMIT CAST(:most AS bigint)) AS counted

-- name: deliver_again
-- Starts a delivery over with its first attempt, at once. One with an attempt in progress is left alone. Returns whether
-- the delivery exists.
WITH restarted AS (
    UPDATE webhook_delivery w SET attempt = 0, due_at = now(), owner = NULL, ended_at = NULL
    WHERE w.delivery_id = :delivery_id AND w.deployment_id = :deployment_id AND (w.owner IS NULL OR w.due_at <= now())
      AND {visible}
)
SELECT FROM webhook_delivery w WHERE w.delivery_id = :delivery_id AND w.deployment_id = :deployment_id AND {visible}

-- name: remove_old
-- A loose index scan finds the deployments, and for each the oldest of its newest `most` deliveries.
WITH RECURSIVE known AS (
    (SELECT deployment_id FROM webhook_delivery ORDER BY deployment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT deployment_id FROM webhook_delivery
            WHERE deployment_id > known.deployment_id ORDER BY deployment_id LIMIT 1)
    FROM known WHERE known.deployment_id IS NOT NULL
), full_ones AS (
    SELECT known.deployment_id, oldest.created_at FROM known CROSS JOIN LATERAL (
        SELECT created_at FROM webhook_delivery WHERE deployment_id = known.deployment_id
        ORDER BY created_at DESC, delivery_id DESC OFFSET :most - 1 LIMIT 1) AS oldest
), over AS (
    (SELECT delivery_id FROM webhook_delivery WHERE ended_at < now() - make_interval(days => :days)
     ORDER BY ended_at LIMIT :limit)
    UNION
    (SELECT w.delivery_id FROM full_ones f JOIN webhook_delivery w
        ON w.deployment_id = f.deployment_id AND w.created_at < f.created_at
     WHERE w.ended_at IS NOT NULL LIMIT :limit)
)
DELETE FROM webhook_delivery WHERE delivery_id IN (SELECT delivery_id FROM over) AND ended_at IS NOT NULL
