-- The outbox of webhook deliveries: shared/runs/webhooks.py.

-- install: record_webhooks_1
-- Inserts a delivery for each of these runs that has a webhook. `status_sent` replaces the status of runs that are about to
-- be deleted. `default_error` is sent for runs that did not succeed and have no error. No values are sent of a run that is
-- rolled back.
CREATE OR REPLACE FUNCTION record_webhooks_1(run_ids uuid[], status_sent text, default_error json) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO webhook_delivery (delivery_id, deployment_id, run_id, url, status, run, error, values)
    SELECT gen_random_uuid(), r.deployment_id, r.run_id, r.webhook, sent.status, row_to_json(r),
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
