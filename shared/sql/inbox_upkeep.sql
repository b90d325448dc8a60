-- Webhooks and the expiry of questions: shared/inbox/notices.py and shared/inbox/expiry.py.

-- part: rules
-- The rules of the deployment of a question `q`: its own, else those of the revision that asked.
JOIN deployment d ON d.id = q.deployment_id AND d.deleted_at IS NULL
LEFT JOIN run asking ON asking.run_id = q.run_id
LEFT JOIN revision v ON v.id = coalesce(asking.revision_id, d.active_revision_id)
CROSS JOIN LATERAL (SELECT coalesce(inbox_rules(d.inbox, v.manifest), '{}') AS document) rules

-- name: claim_webhooks
-- Claims questions whose announcement is due, or whose reminder is due while they are not snoozed, and sets the time of the
-- reminder. Questions that other transactions have locked are left to the next round. `url` is NULL if nothing is sent.
WITH due AS (
    SELECT q.question_id, rules.document ->> 'webhook' AS url,
        CAST(rules.document ->> 'remind_after_seconds' AS float8) AS remind_after
    FROM question q {rules}
    WHERE q.closed_at IS NULL AND q.webhook_due_at <= now()
      AND (q.webhooks_sent = 0 OR q.snoozed_until IS NULL OR q.snoozed_until <= now())
    ORDER BY q.webhook_due_at LIMIT :limit
    FOR UPDATE OF q SKIP LOCKED
)
UPDATE question q SET webhooks_sent = q.webhooks_sent + 1,
    webhook_due_at = CASE WHEN q.webhooks_sent = 0 AND due.url IS NOT NULL
        THEN q.asked_at + make_interval(secs => due.remind_after) END
FROM due WHERE q.question_id = due.question_id
RETURNING q.question_id, due.url,
    CASE WHEN q.webhooks_sent = 1 THEN 'question.asked' ELSE 'question.reminder' END AS event

-- name: hasten
UPDATE question SET webhook_due_at = now()
WHERE closed_at IS NULL AND webhooks_sent = 0 AND webhook_due_at > now() + make_interval(secs => 10)

-- name: webhook_of
-- The address to call for a question. NULL: none.
SELECT rules.document ->> 'webhook' AS url FROM question q {rules} WHERE q.question_id = :question_id

-- name: get_all
SELECT {columns} FROM question q {joined} WHERE q.question_id = ANY(:question_ids)

-- name: insert_deliveries
-- `run` holds what the outbox reads of a run: its thread, and the metadata of the thread after its deletion.
INSERT INTO webhook_delivery (delivery_id, deployment_id, run_id, url, status, run, values)
SELECT gen_random_uuid(), q.deployment_id, q.run_id, sent.url, sent.event,
    json_build_object('thread_id', q.thread_id, 'kwargs', json_build_object('thread_metadata', t.metadata)),
    CAST(sent.record AS json)
FROM unnest(:question_ids, :urls, :events, :records) AS sent (question_id, url, event, record)
JOIN question q ON q.question_id = sent.question_id
JOIN thread t ON t.deployment_id = q.deployment_id AND t.thread_id = q.thread_id
WHERE q.run_id IS NOT NULL

-- part: is_due
-- The time of a question is over, and its expiry was not carried out: it is open, or its thread was ended by an expiry that
-- was not completed.
expires_at <= now() AND expired_at IS NULL AND (closed_at IS NULL OR answered_from = 'expiry')

-- name: due_deployments
-- A loose index scan finds the deployments with questions that will expire, so the cost does not depend on their number.
WITH RECURSIVE expiring AS (
    (SELECT deployment_id FROM question
     WHERE expires_at IS NOT NULL AND expired_at IS NULL AND (closed_at IS NULL OR answered_from = 'expiry')
     ORDER BY deployment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT deployment_id FROM question
            WHERE expires_at IS NOT NULL AND expired_at IS NULL AND (closed_at IS NULL OR answered_from = 'expiry')
              AND deployment_id > expiring.deployment_id ORDER BY deployment_id LIMIT 1)
    FROM expiring WHERE expiring.deployment_id IS NOT NULL
)
SELECT d.id AS deployment_id FROM expiring JOIN deployment d ON d.id = expiring.deployment_id AND d.deleted_at IS NULL
WHERE EXISTS (SELECT FROM question WHERE deployment_id = d.id AND {is_due})

-- name: due_expiries
SELECT question_id FROM question
WHERE deployment_id = :deployment_id AND {is_due} AND question_id <> ALL(CAST(:paused AS uuid[]))
ORDER BY expires_at LIMIT :limit

-- name: get_due
SELECT question_id, deployment_id, thread_id, run_id, kind, on_expiry, closed_at,
    expires_at < now() - make_interval(secs => :give_up_seconds) AS is_late
FROM question WHERE question_id = :question_id AND {is_due}

-- name: begin_cancel
-- Marks an open question before its thread is ended, so that the end counts as an expiry if this process dies.
UPDATE question SET answered_by = 'expiry', answered_from = 'expiry'
WHERE question_id = :question_id AND closed_at IS NULL AND {is_due}

-- name: give_up_cancel
UPDATE question SET answered_by = NULL, answered_from = NULL WHERE question_id = :question_id AND closed_at IS NULL

-- name: mark_expired
UPDATE question SET expired_at = now() WHERE question_id = :question_id AND {is_due}
