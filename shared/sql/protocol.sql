-- Protocol v2: shared/protocol.

-- install: has_protocol
-- Whether a run writes the protocol's events, for its creator or for a reader that joined. Called with columns of the run.
CREATE OR REPLACE FUNCTION has_protocol(kwargs json, joined jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(readable(kwargs) -> 'stream_mode' AS jsonb) @> '["protocol"]'
        OR coalesce(joined -> 'stream_mode' @> '["protocol"]', false)
$$;

-- name: begin
-- Where readers of a thread begin. `by_protocol`: the newest run was created by a command, so the client that sent the
-- command waits for its end. `forgotten`: the newest run that is not replayed.
SELECT t.last_seq, t.status, t.protocol_end_given, newest.created_seq AS newest, newest.by_protocol,
    (SELECT min(created_seq) FROM run
     WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id AND is_live(status)) AS oldest_live,
    (SELECT created_seq FROM run WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id
     ORDER BY created_seq DESC OFFSET :kept LIMIT 1) AS forgotten
FROM thread AS t LEFT JOIN LATERAL (
    SELECT created_seq, CAST(readable(kwargs) -> 'stream_mode' AS jsonb) @> '["protocol"]' AS by_protocol FROM run
    WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id AND attempt > 0 ORDER BY created_seq DESC LIMIT 1
) AS newest ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: next
SELECT t.last_seq, r.* FROM thread AS t LEFT JOIN LATERAL (
    SELECT run_id, created_seq, graph_id, has_protocol(kwargs, joined) AS has_protocol,
        coalesce(ended_at < now() - make_interval(secs => :settled), false) AS has_settled
    FROM run WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id AND created_seq > :after
    ORDER BY created_seq LIMIT 1
) AS r ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: newest
SELECT t.last_seq, r.run_id, r.status FROM thread AS t LEFT JOIN run AS r
    ON r.deployment_id = t.deployment_id AND r.thread_id = t.thread_id AND r.created_seq = t.last_seq
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: run
-- A run and its thread. `left_open`: the thread is interrupted, and no later run has started.
SELECT r.run_id, r.created_seq, r.graph_id, r.status, r.attempt, r.started_at, r.ended_at, r.error,
    readable(r.kwargs) -> 'command' -> 'resume' AS resume, readable(r.kwargs) ->> 'strict_resume' AS is_strict,
    t.interrupts, t.rest_status = 'interrupted' AND NOT EXISTS (
        SELECT FROM run AS later WHERE later.deployment_id = r.deployment_id AND later.thread_id = r.thread_id
          AND later.created_seq > r.created_seq AND later.attempt > 0) AS left_open
FROM run AS r JOIN thread AS t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
WHERE r.deployment_id = :deployment_id AND r.run_id = :run_id

-- name: lacking
-- The live runs of a thread that do not write the protocol's events.
SELECT run_id, status, owner FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND is_live(status) AND NOT has_protocol(kwargs, joined)
ORDER BY created_seq

-- name: watch
UPDATE thread SET protocol_until = now() + make_interval(secs => :watched)
WHERE deployment_id = :deployment_id AND thread_id = :thread_id
  AND coalesce(protocol_until < now() + make_interval(secs => :watched - :spared), true)
