-- Threads and their newest state: shared/threads/records.py, shared/threads/state.py; readers of a thread:
-- shared/thread_runs.py, shared/thread_stream.py, shared/protocol.

-- name: get
SELECT {columns} FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: locked
SELECT {columns} FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id FOR NO KEY UPDATE

-- name: titles
SELECT thread_id, thread_title(metadata, values) AS title FROM thread
WHERE deployment_id = :deployment_id AND thread_id = ANY(CAST(:thread_ids AS uuid[]))

-- name: settle
-- Computes the status and error of a thread from its remaining runs: `busy` while runs are live, else as the last ended run
-- left it.
UPDATE thread t SET updated_at = now(),
    error = CASE WHEN live.are THEN CAST(:error AS json) ELSE coalesce(t.rest_error, CAST(:error AS json)) END,
    status = CASE
        WHEN live.are THEN 'busy'
        WHEN t.rest_status IS NOT NULL THEN t.rest_status
        WHEN json_typeof(readable(t.state) -> 'next') = 'array' AND json_array_length(readable(t.state) -> 'next') > 0
            THEN 'interrupted'
        ELSE 'idle' END
FROM (
    SELECT EXISTS (
        SELECT FROM run r WHERE r.deployment_id = :deployment_id AND r.thread_id = :thread_id AND is_live(r.status)) AS are
) live
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: restore_metadata
-- Undoes what the creation of a run changed in its thread's metadata and config. If a later run exists, moves the saved
-- metadata to it.
WITH deleted AS (
    SELECT deployment_id, thread_id, created_seq, metadata_before FROM run
    WHERE run_id = :run_id AND metadata_before IS NOT NULL
), later AS (
    SELECT o.run_id FROM run o, deleted d WHERE o.deployment_id = d.deployment_id
      AND o.thread_id = d.thread_id AND o.created_seq > d.created_seq ORDER BY o.created_seq LIMIT 1
), passed_on AS (
    UPDATE run SET metadata_before = d.metadata_before FROM deleted d, later l WHERE run.run_id = l.run_id
)
UPDATE thread t SET
    metadata = (t.metadata - 'graph_id' - 'assistant_id') || (d.metadata_before - 'config'),
    config = coalesce(CAST(d.metadata_before ->> 'config' AS json), t.config)
FROM deleted d
WHERE t.deployment_id = d.deployment_id AND t.thread_id = d.thread_id AND NOT EXISTS (SELECT FROM later)

-- name: newest_state
SELECT t.values, t.state, t.metadata, t.config, c.checkpoint_id, c.metadata AS checkpoint_metadata
FROM thread AS t LEFT JOIN LATERAL (
    SELECT checkpoint_id, metadata FROM checkpoint AS newest
    WHERE newest.deployment_id = t.deployment_id AND newest.thread_id = t.thread_id AND newest.checkpoint_ns = ''
    ORDER BY newest.checkpoint_id DESC LIMIT 1
) AS c ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: forget_state
-- A thread without the checkpoint of its stored state does not wait any more. That closes its questions.
UPDATE thread SET interrupts = CASE status WHEN 'interrupted' THEN '{}' ELSE interrupts END,
    status = CASE status WHEN 'interrupted' THEN 'idle' ELSE status END,
    rest_status = CASE rest_status WHEN 'interrupted' THEN 'idle' ELSE rest_status END,
    state = CASE WHEN EXISTS (SELECT FROM checkpoint
        WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND checkpoint_ns = '') THEN state END
WHERE deployment_id = :deployment_id AND thread_id = :thread_id
  AND NOT EXISTS (SELECT FROM checkpoint
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND checkpoint_ns = ''
      AND checkpoint_id = readable(state) ->> 'checkpoint_id')

-- name: store_state
UPDATE thread SET values = CAST(:values AS json), state = CAST(:state AS json),
    interrupts = CAST(:interrupts AS json), error = NULL, updated_at = now(), state_updated_at = now(),
    status = new.status, rest_status = new.status, rest_error = NULL
FROM (SELECT CASE WHEN json_array_length(readable(CAST(:state AS json)) -> 'next') > 0 THEN 'interrupted'
      ELSE 'idle' END AS status) new
WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: changed
-- The positions in the lists of the threads that have a new run or a new state. A deleted thread counts as changed.
SELECT known.number
FROM unnest(:deployment_ids, :thread_ids, :last_runs, :state_times)
    WITH ORDINALITY AS known (deployment_id, thread_id, last_seq, state_at, number)
LEFT JOIN thread AS t ON t.deployment_id = known.deployment_id AND t.thread_id = known.thread_id
WHERE t.last_seq IS DISTINCT FROM known.last_seq
  OR known.state_at <> 0 AND CAST(extract(epoch FROM t.state_updated_at) * 1000000 AS bigint) <> known.state_at

-- name: begin_stream
-- The newest run of a thread, and the newest run before its live ones (`known`).
SELECT t.state_updated_at, t.last_seq, coalesce((
    SELECT min(created_seq) - 1 FROM run
    WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id AND is_live(status)), t.last_seq) AS known
FROM thread AS t WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: next_of_stream
-- The next run that a stream includes. Runs after `known` are live or new when the stream begins. Earlier runs are included
-- within the retention time if they are resumable. The run that the reader was `reading` need not be resumable, so that at
-- least its end is sent.
SELECT t.last_seq, t.state_updated_at, r.run_id, r.created_seq, r.status, r.attempt, r.kwargs, r.seq_reserved
FROM thread AS t LEFT JOIN LATERAL (
    SELECT run_id, created_seq, status, attempt, kwargs, seq_reserved FROM run
    WHERE deployment_id = t.deployment_id AND thread_id = t.thread_id AND created_seq > :after
      AND (created_seq > :known OR ended_at > now() - make_interval(secs => :retention)
           AND (created_seq = :reading OR CAST(readable(kwargs) ->> 'resumable' AS boolean)))
    ORDER BY created_seq LIMIT 1
) AS r ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id

-- name: visible
SELECT FROM thread WHERE deployment_id = :deployment_id AND thread_id = :id AND {visible} {lock}

-- name: is_visible
-- Whether a filter lets through the parameter `metadata`, which the condition contains.
SELECT {visible} AS is_visible

-- name: visibility
SELECT {visible} AS is_visible FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id {lock}
