-- Reading and stopping runs: shared/runs/read.py, cancel.py, queue_position.py, retry.py and a2a_tasks.py.

-- install: followed_by
-- Whether a later run exists on a run's thread. Ignores runs that were cancelled before they started.
CREATE OR REPLACE FUNCTION followed_by(of_deployment uuid, of_thread uuid, of_seq bigint)
RETURNS TABLE (is_followed boolean) LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM run o WHERE o.deployment_id = of_deployment AND o.thread_id = of_thread AND o.created_seq > of_seq
          AND NOT (o.status = 'interrupted' AND o.attempt = 0))
$$;

-- install: waits_for
-- What a successful run waits for while its thread stays where the run ended: `answer` if the thread has an open interrupt,
-- `resume` if it stopped at a breakpoint, else nothing. An update of the thread's state changes `state_updated_at`. It is called
-- in FROM, where the planner inlines it.
CREATE OR REPLACE FUNCTION waits_for(of_run uuid) RETURNS TABLE (answer text) LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN later.is_followed THEN NULL
        WHEN EXISTS (SELECT FROM json_each(readable(t.interrupts)) i WHERE json_array_length(i.value) > 0) THEN 'answer'
        ELSE 'resume' END
    FROM run r JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    CROSS JOIN LATERAL followed_by(r.deployment_id, r.thread_id, r.created_seq) AS later
    WHERE r.run_id = of_run AND t.rest_status = 'interrupted' AND t.state_updated_at = r.ended_at
$$;

-- part: is_of_no_call
-- Whether a run is of no MCP call with a thread of its own. Such a call ends once, so filters select none of its runs to
-- execute them again.
NOT EXISTS (
    SELECT FROM thread t WHERE t.deployment_id = run.deployment_id AND t.thread_id = run.thread_id AND NOT t.is_listed)

-- name: get
SELECT {columns} FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id
  AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)

-- name: of_thread
SELECT {columns} FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
  AND (CAST(:status AS text) IS NULL OR status = :status)
ORDER BY created_seq DESC LIMIT :limit OFFSET :offset

-- name: failed
SELECT {columns} FROM run WHERE {condition} ORDER BY ended_at DESC, run_id DESC LIMIT :limit OFFSET :offset

-- name: count_failed
SELECT count(*) AS n FROM (SELECT FROM run WHERE {condition} LIMIT CAST(:most AS bigint)) AS counted

-- name: newest
-- Live and ended runs are searched separately. Each has its own index, so inserting a run updates only one of them.
SELECT {columns} FROM (
    (SELECT {stored} FROM run WHERE {live} ORDER BY run_id DESC LIMIT CAST(:limit AS bigint) + :offset)
    UNION ALL
    (SELECT {stored} FROM run WHERE {ended} ORDER BY run_id DESC LIMIT CAST(:limit AS bigint) + :offset)) AS run
ORDER BY run_id DESC LIMIT :limit OFFSET :offset

-- name: count_newest
SELECT count(*) AS n FROM (
    SELECT FROM (
        (SELECT FROM run WHERE {live} LIMIT CAST(:most AS bigint))
        UNION ALL
        (SELECT FROM run WHERE {ended} LIMIT CAST(:most AS bigint))) AS found
    LIMIT CAST(:most AS bigint)) AS counted

-- name: lock_live
-- Locks the live runs of a thread.
SELECT run_id, deployment_id, thread_id, status, owner, attempt, seq_reserved, temporary, webhook FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND is_live(status) ORDER BY created_seq FOR UPDATE

-- name: lock
SELECT run_id, deployment_id, thread_id, status, owner, attempt, seq_reserved, temporary, webhook FROM run
WHERE run_id = :run_id AND deployment_id = :deployment_id AND thread_id = :thread_id FOR UPDATE

-- name: request_cancel
-- Asks the owner of a running run to stop it. A rollback replaces an interrupt; an interrupt does not replace a rollback.
UPDATE run SET cancel_requested = :action, cancel_reason = :reason
WHERE run_id = :run_id AND (cancel_requested IS NULL OR cancel_requested < :action)

-- name: interrupt_pending
-- Ends a pending run. The reserved event numbers are for the last event of its log.
UPDATE run SET status = 'interrupted', ended_at = now(), updated_at = now(), cancel_reason = :reason,
    seq_reserved = seq_reserved + :reserved
WHERE run_id = :run_id

-- name: live
SELECT thread_id, run_id FROM run
WHERE deployment_id = :deployment_id AND is_live(status) AND status = ANY(:statuses) AND {visible} ORDER BY run_id

-- name: waiting
-- The pending runs of a deployment by key, depth and the reason why each waits: for an earlier run of its thread, for its
-- start time, or for capacity.
SELECT r.key_id, r.depth, r.why, count(*) AS runs,
    extract(epoch FROM greatest(now() - min(waiting_since(r.not_before, r.created_at)), '0')) AS seconds
FROM (
    SELECT w.*, CASE WHEN w.created_seq > min(w.created_seq) OVER (PARTITION BY w.thread_id) THEN 'thread'
        WHEN w.not_before > now() THEN 'early' ELSE 'due' END AS why
    FROM run w WHERE w.deployment_id = :deployment_id AND is_live(w.status)) r
WHERE r.status = 'pending' AND {visible} GROUP BY r.key_id, r.depth, r.why

-- name: count_running
SELECT count(*) AS n FROM run r WHERE r.deployment_id = :deployment_id AND r.status = 'running' AND {visible}

-- name: waiting_of_thread
SELECT run_id, status,
    extract(epoch FROM greatest(now() - waiting_since(not_before, created_at), '0')) AS waiting_seconds
FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND is_live(status) ORDER BY created_seq

-- name: last_checkpoint
-- The newest root checkpoint that a run wrote, and whether its thread has moved on: another run or a caller wrote later.
WITH root AS (
    SELECT checkpoint_id, run_id, created_at FROM checkpoint
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND checkpoint_ns = ''
), newest AS (
    SELECT * FROM root ORDER BY checkpoint_id DESC LIMIT 1
), written AS (
    SELECT checkpoint_id FROM root WHERE run_id = :run_id ORDER BY checkpoint_id DESC LIMIT 1
)
SELECT (SELECT checkpoint_id FROM written) AS checkpoint_id,
    later.is_followed OR EXISTS (
        SELECT FROM newest n WHERE n.run_id IS DISTINCT FROM r.run_id
          AND (EXISTS (SELECT FROM written) OR n.created_at > r.ended_at)) AS has_moved_on
FROM run r CROSS JOIN LATERAL followed_by(r.deployment_id, r.thread_id, r.created_seq) AS later
WHERE r.run_id = :run_id

-- install: a2a_task_id
-- The id of the A2A task of a run: its thread and its first run. Later runs carry it in their metadata, and it is cut because
-- callers may write texts of any length. The index ix_run_a2a_task has these later runs.
CREATE OR REPLACE FUNCTION a2a_task_id(metadata jsonb, thread_id uuid, run_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(left((metadata -> 'a2a') ->> 'task_id', 80), CAST(thread_id AS text) || ':' || CAST(run_id AS text))
$$;

-- install: a2a_task
-- Tasks of the A2A protocol: the newest run of each, which determines the task's state. A task requires input as long as its
-- thread is interrupted and no later run was created on the thread.
CREATE VIEW a2a_task AS
SELECT r.run_id, r.deployment_id, r.thread_id, r.assistant_id, r.created_seq, r.status, r.error, r.metadata -> 'a2a' AS a2a,
    task.id AS task_id, r.updated_at, r.input, NOT later.is_followed AS is_newest, s.state, t.metadata AS thread_metadata,
    t.values, t.last_seq, t.state_updated_at, t.rest_status, r.metadata #> '{a2a,canceled}' = 'true' AS is_canceled,
    CASE WHEN s.state = 'input-required' THEN t.interrupts END AS interrupts
FROM run r JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
CROSS JOIN LATERAL (SELECT a2a_task_id(r.metadata, r.thread_id, r.run_id) AS id) AS task
CROSS JOIN LATERAL followed_by(r.deployment_id, r.thread_id, r.created_seq) AS later
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.metadata #> '{a2a,canceled}' = 'true' THEN 'canceled'
        WHEN r.status = 'pending' AND r.metadata #> '{a2a}' ? 'task_id' THEN 'working'
        WHEN r.status = 'pending' THEN 'submitted' WHEN r.status = 'running' THEN 'working'
        WHEN r.status = 'interrupted' THEN 'canceled' WHEN r.status <> 'success' THEN 'failed'
        WHEN t.rest_status IS DISTINCT FROM 'interrupted' OR later.is_followed THEN 'completed'
        ELSE 'input-required' END AS state) AS s
WHERE r.metadata ? 'a2a' AND NOT EXISTS (
    SELECT FROM run n WHERE n.deployment_id = r.deployment_id AND n.thread_id = r.thread_id
      AND (n.metadata -> 'a2a') ? 'task_id' AND left((n.metadata -> 'a2a') ->> 'task_id', 80) = task.id
      AND n.created_seq > r.created_seq
    -- OFFSET 0 keeps the subquery an index lookup for each run, so a page of a list reads no other tasks.
    OFFSET 0);

-- part: task_runs
-- The runs that a task `t` shows in its history: its own, and the answers of people to other questions of the thread.
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object('is_own', o.id = t.task_id, 'message_id', r.metadata #> '{a2a,message_id}',
        'after', r.metadata #> '{a2a,after}', 'at', r.metadata #> '{a2a,at}',
        'answer', CASE WHEN r.metadata #> '{a2a}' ? 'after' THEN readable(r.kwargs) #> '{command,resume}' END,
        'input', CASE WHEN is_live(r.status) AND o.id = t.task_id THEN readable(r.input) END) ORDER BY r.created_seq) AS runs
    FROM run r CROSS JOIN LATERAL (SELECT a2a_task_id(r.metadata, r.thread_id, r.run_id) AS id) AS o
    WHERE :with_values AND r.deployment_id = t.deployment_id AND r.thread_id = t.thread_id AND r.metadata ? 'a2a'
      AND (o.id = t.task_id OR r.metadata #> '{a2a}' ? 'after')) AS shown

-- part: newest_run
-- The newest run of a task.
coalesce((
    SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
      AND (metadata -> 'a2a') ? 'task_id' AND left((metadata -> 'a2a') ->> 'task_id', 80) = :task_id
    ORDER BY created_seq DESC LIMIT 1), :first_run)

-- name: task
SELECT t.run_id, t.thread_id, t.task_id, t.created_seq, t.status, t.error, t.a2a, t.updated_at, t.is_newest, t.state,
    t.last_seq, t.state_updated_at, t.values, t.interrupts, shown.runs
FROM a2a_task t {runs}
WHERE t.deployment_id = :deployment_id AND t.assistant_id = :assistant_id AND t.thread_id = :thread_id
  AND t.task_id = :task_id AND t.run_id = {newest_run}

-- name: task_state
SELECT run_id, state, created_seq, status, last_seq, state_updated_at FROM a2a_task
WHERE deployment_id = :deployment_id AND assistant_id = :assistant_id AND thread_id = :thread_id AND task_id = :task_id
  AND run_id = {newest_run}

-- part: open_task
-- The task of a thread's newest run. No row if that run belongs to no task. Ignores other runs that were cancelled before
-- they started.
SELECT task_id, assistant_id, state FROM a2a_task
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = (
    SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
      AND (metadata ? 'a2a' OR status <> 'interrupted' OR attempt > 0)
    ORDER BY created_seq DESC LIMIT 1)

-- name: open_task
{open_task}

-- name: task_after
-- The next run of a task.
SELECT run_id, created_seq FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND metadata ? 'a2a' AND created_seq > :after
  AND a2a_task_id(metadata, thread_id, run_id) = :task_id
ORDER BY created_seq LIMIT 1

-- name: task_live
SELECT run_id FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND metadata ? 'a2a' AND is_live(status)
  AND a2a_task_id(metadata, thread_id, run_id) = :task_id

-- name: task_question
-- An open question of a task's thread. Cancelling it ends the thread, and closes the other questions.
SELECT question_id FROM question
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND closed_at IS NULL ORDER BY question_id LIMIT 1

-- name: tasks
SELECT t.run_id, t.thread_id, t.task_id, t.status, t.error, t.a2a, t.updated_at, t.is_newest, t.state,
    CASE WHEN :with_values THEN t.values END AS values, t.interrupts, shown.runs
FROM (
    SELECT * FROM a2a_task
    WHERE {condition} AND (CAST(:before AS timestamptz) IS NULL
        OR (updated_at, run_id) < (CAST(:before AS timestamptz), CAST(:before_run AS uuid)))
    ORDER BY updated_at DESC, run_id DESC LIMIT :limit) AS t {runs}
ORDER BY t.updated_at DESC, t.run_id DESC

-- name: count_tasks
SELECT count(*) AS n FROM (SELECT FROM a2a_task WHERE {condition} LIMIT CAST(:most AS bigint)) AS counted
