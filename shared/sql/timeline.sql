-- Timelines of runs and threads: shared/runs/timeline.py.

-- part: columns
-- The previous run counts if it asked a question: this run then answers it. Runs that were cancelled before they started
-- are passed over.
r.run_id, r.deployment_id, r.thread_id, r.key_id, r.depth, r.pool, r.status, r.created_at, r.updated_at, r.not_before,
r.started_at, r.ended_at, r.attempt, r.attempts, readable(r.spans) AS spans, readable(r.error) AS error, r.cancel_reason,
previous.run_id AS previous_run_id, previous.ended_at AS previous_ended_at, previous.answered_at AS previous_answered_at,
previous.answered_by AS previous_answered_by, asked.kind AS asked_kind, asked.closed_at AS asked_closed_at,
asked.answered_at AS asked_answered_at, asked.answered_by AS asked_answered_by, next.run_id AS next_run_id,
next.created_at AS next_created_at

-- part: source
FROM run r
LEFT JOIN LATERAL (
    SELECT q.kind, q.closed_at, q.answered_at, q.answered_by FROM question q
    WHERE q.deployment_id = r.deployment_id AND q.thread_id = r.thread_id AND q.run_id = r.run_id
    ORDER BY q.asked_at DESC LIMIT 1) asked ON true
LEFT JOIN LATERAL (
    SELECT o.run_id, o.ended_at FROM run o
    WHERE o.deployment_id = r.deployment_id AND o.thread_id = r.thread_id AND o.created_seq < r.created_seq
      AND NOT (o.status = 'interrupted' AND o.attempt = 0)
    ORDER BY o.created_seq DESC LIMIT 1) before ON true
LEFT JOIN LATERAL (
    SELECT before.run_id, before.ended_at, q.answered_at, q.answered_by FROM question q
    WHERE q.deployment_id = r.deployment_id AND q.thread_id = r.thread_id AND q.run_id = before.run_id
    ORDER BY q.asked_at DESC LIMIT 1) previous ON true
LEFT JOIN LATERAL (
    SELECT o.run_id, o.created_at FROM run o
    WHERE o.deployment_id = r.deployment_id AND o.thread_id = r.thread_id AND o.created_seq > r.created_seq
      AND NOT (o.status = 'interrupted' AND o.attempt = 0)
    ORDER BY o.created_seq LIMIT 1) next ON true

-- name: run
SELECT {columns} {source}
WHERE r.deployment_id = :deployment_id AND r.thread_id = :thread_id AND r.run_id = :run_id

-- name: thread
SELECT {columns} {source}
WHERE r.deployment_id = :deployment_id AND r.thread_id = :thread_id ORDER BY r.created_seq DESC LIMIT :limit

-- name: steps
-- The newest checkpoints that a run wrote.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoint
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id
ORDER BY checkpoint_id DESC LIMIT :limit

-- name: writes
-- The tasks that a run has ended, with the channels that they wrote. The task without a path is a command's.
SELECT checkpoint_ns, checkpoint_id, task_id, task_path, array_agg(channel) AS channels FROM checkpoint_write
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id AND task_path <> ''
GROUP BY checkpoint_ns, checkpoint_id, task_id, task_path
ORDER BY checkpoint_id DESC LIMIT :limit
