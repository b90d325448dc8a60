-- Calls of MCP clients on threads of their own: shared/runs/mcp_calls.py.

-- name: insert
INSERT INTO mcp_call (deployment_id, thread_id, caller, is_task)
VALUES (:deployment_id, :thread_id, :caller, :is_task)

-- name: get
-- A call with its thread and the thread's newest run. The caller's name is compared here: a call of another caller is missing.
SELECT c.thread_id, c.is_task, c.uses, c.answers, c."end", c.ended_at, t.created_at, t.updated_at,
    t.status AS thread_status, t.interrupts, t.last_seq, CASE WHEN r.status = 'success' THEN t.values END AS values,
    r.run_id, r.assistant_id, r.status AS run_status, r.error, r.ended_at AS run_ended_at, now() AS read_at
FROM mcp_call c JOIN thread t ON t.deployment_id = c.deployment_id AND t.thread_id = c.thread_id
CROSS JOIN LATERAL (
    SELECT run_id, assistant_id, status, error, ended_at FROM run
    WHERE deployment_id = c.deployment_id AND thread_id = c.thread_id ORDER BY created_seq DESC LIMIT 1) r
WHERE c.deployment_id = :deployment_id AND c.thread_id = :thread_id AND c.caller = :caller

-- name: states
-- A text for each call of a caller that changes whenever the state of the call changes. `number` is the caller's.
SELECT known.number, c.thread_id, concat_ws(' ', t.updated_at, r.run_id, r.status, c.ended_at, c.answers) AS state
FROM unnest(:numbers, :deployment_ids, :thread_ids, :callers) AS known (number, deployment_id, thread_id, caller)
JOIN mcp_call c ON c.deployment_id = known.deployment_id AND c.thread_id = known.thread_id AND c.caller = known.caller
JOIN thread t ON t.deployment_id = c.deployment_id AND t.thread_id = c.thread_id
CROSS JOIN LATERAL (
    SELECT run_id, status FROM run
    WHERE deployment_id = c.deployment_id AND thread_id = c.thread_id ORDER BY created_seq DESC LIMIT 1) r

-- name: make_task
UPDATE mcp_call SET is_task = true WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: store_answers
UPDATE mcp_call SET answers = CAST(:answers AS jsonb) WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: resumed
UPDATE mcp_call SET uses = CAST(:uses AS jsonb), answers = '{}'
WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: finish
-- The thread lives for this number of minutes from now on.
WITH ended AS (
    UPDATE mcp_call SET "end" = :end, ended_at = now()
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND "end" IS NULL
    RETURNING deployment_id, thread_id
)
UPDATE thread AS t SET updated_at = now(), ttl_minutes = :minutes FROM ended
WHERE t.deployment_id = ended.deployment_id AND t.thread_id = ended.thread_id

-- name: keep_waiting
UPDATE thread AS t SET ttl_minutes = :minutes FROM mcp_call AS c
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id AND t.ttl_minutes < :minutes
  AND t.status = 'interrupted' AND c.deployment_id = t.deployment_id AND c.thread_id = t.thread_id
  AND c.is_task AND c."end" IS NULL
  AND 'success' = (
    SELECT status FROM run WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id ORDER BY created_seq DESC LIMIT 1)
