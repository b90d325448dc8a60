-- Creating runs and threads: shared/runs/create.py, shared/threads/records.py, shared/assistants.py.

-- install: default_thread_ttl
-- The time to live of a deployment's new threads, and what happens at its end, from `checkpointer.ttl` of the active
-- revision's langgraph.json. It is stored with the thread, so a later revision does not change existing threads.
CREATE OR REPLACE FUNCTION default_thread_ttl(of_deployment uuid) RETURNS TABLE (minutes float8, strategy text)
LANGUAGE sql STABLE AS $$
    SELECT CAST(ttl.configured ->> 'default_ttl' AS float8), ttl.configured ->> 'strategy'
    FROM deployment d JOIN revision r ON r.id = d.active_revision_id
    CROSS JOIN LATERAL (SELECT r.manifest -> 'checkpointer' -> 'ttl' AS configured) AS ttl
    WHERE d.id = of_deployment
$$;

-- name: thread
INSERT INTO thread (deployment_id, thread_id, metadata, ttl_minutes, ttl_strategy)
SELECT :deployment_id, :thread_id, CAST(:metadata AS jsonb), ttl.minutes, ttl.strategy
FROM (VALUES (1)) AS one LEFT JOIN default_thread_ttl(:deployment_id) AS ttl ON true
ON CONFLICT DO NOTHING
RETURNING {columns}

-- install: assistant_rows
-- The active version of an assistant of a deployment. `versions` changes whenever one of the rows changes.
CREATE VIEW assistant_rows AS
SELECT d.id AS deployment_id, d.deleted_at, a.assistant_id, v.graph_id, v.config, v.context, v.metadata,
    concat(d.xmin, ' ', a.xmin, ' ', v.xmin) AS versions
FROM deployment d JOIN assistant a ON a.deployment_id = d.id
JOIN assistant_version v ON v.deployment_id = d.id AND v.assistant_id = a.assistant_id AND v.version = a.version;

-- name: resolve_assistant
-- An assistant for a new run, and the deployment that serves it. The columns of the assistant are NULL if it is missing.
SELECT a.assistant_id, a.graph_id, a.config, a.context, a.metadata, d.active_revision_id, d.pool,
    d.run_timeout_seconds, d.traffic, a.versions,
    CASE WHEN d.traffic IS NOT NULL THEN ARRAY(
        SELECT g.revision_id FROM graph g JOIN revision r ON r.id = g.revision_id
        WHERE r.deployment_id = d.id AND g.graph_id = a.graph_id) END AS having
FROM deployment d LEFT JOIN assistant_rows a ON a.deployment_id = d.id AND a.assistant_id = :assistant_id
WHERE d.id = :deployment_id AND d.deleted_at IS NULL

-- part: existing_thread
-- The thread of a new run, changed for the run. No row if it is missing, has `max_pending` pending runs, or if `versions`
-- names other versions of the assistant. The locked thread's status tells whether earlier runs are live: this
-- statement's snapshot may lack other runs.
old AS (
    SELECT metadata, CAST(config AS text) AS config, CAST(:thread_config AS text) AS new_config,
        status <> 'busy' AS was_idle, coalesce(protocol_until > now(), false) AS is_watched FROM thread
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id
      AND (SELECT count(*) FROM run WHERE deployment_id = :deployment_id
           AND thread_id = :thread_id AND status = 'pending') < :max_pending
      AND {is_current}
    FOR NO KEY UPDATE
), t AS (
    UPDATE thread SET status = 'busy', error = NULL, updated_at = now(), last_seq = last_seq + 1,
        metadata = thread.metadata || CAST(:thread_metadata AS jsonb),
        config = CASE WHEN old.config = old.new_config THEN thread.config ELSE CAST(old.new_config AS json) END
    FROM old
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    RETURNING deployment_id, thread_id, last_seq, old.metadata AS before, old.was_idle, old.is_watched,
        CASE WHEN old.metadata @> CAST(:thread_metadata AS jsonb) AND old.config = old.new_config
            THEN NULL ELSE jsonb_strip_nulls(jsonb_build_object('graph_id', old.metadata -> 'graph_id',
                'assistant_id', old.metadata -> 'assistant_id', 'config', old.config)) END AS metadata_before
)

-- part: new_thread
-- The thread of a new run, inserted with the run. No row if it exists already, or if `versions` names other versions.
t AS (
    INSERT INTO thread (deployment_id, thread_id, status, metadata, config, last_seq, is_listed, ttl_minutes, ttl_strategy)
    SELECT :deployment_id, :thread_id, 'busy', CAST(:metadata AS jsonb), CAST(:thread_config AS json), 1, :is_listed,
        ttl.minutes, ttl.strategy
    FROM (VALUES (1)) AS one
    LEFT JOIN LATERAL (SELECT * FROM default_thread_ttl(:deployment_id) WHERE NOT :temporary) AS ttl ON true
    WHERE {is_current}
    ON CONFLICT DO NOTHING
    RETURNING deployment_id, thread_id, last_seq, CAST('{}' AS jsonb) AS before, true AS was_idle, false AS is_watched,
        CAST(NULL AS jsonb) AS metadata_before
)

-- part: is_current
-- Whether the assistant has the `versions` with which the run was drafted. An empty text stands for any.
(CAST(:versions AS text) = '' OR CAST(:versions AS text) = (
    SELECT versions FROM assistant_rows
    WHERE deployment_id = :deployment_id AND assistant_id = :assistant_id AND deleted_at IS NULL))

-- name: run
-- Inserts a pending run on the thread `t`. Two statements, because PostgreSQL would plan one for both kinds of threads
-- anew for each run, which takes longer than it runs. `answers` and `task` are only in the statement for runs that resume a
-- thread. The metadata of a thread that a protocol created does not mark (`marks`) its later runs as calls of the protocol. A
-- run with a delayed start is inserted without a notification: upkeep notifies runners when the run is due. A run on a
-- watched thread also streams the protocol's events (`joined`).
WITH {t}
INSERT INTO run ({columns}, deployment_id, thread_id, status, metadata, input, kwargs, joined, timeout_seconds,
    created_seq, created_at, not_before, notified_at, metadata_before)
SELECT {values}, t.deployment_id, t.thread_id, 'pending',
    CAST(:assistant_metadata AS jsonb) || (t.before - CAST(:marks AS text[])){task} || CAST(:metadata AS jsonb),
    CAST(:input AS json), CAST(:kwargs AS json),
    CASE WHEN t.is_watched THEN CAST('{"stream_mode": ["protocol"], "subgraphs": false}' AS jsonb) END,
    CAST(:timeout_seconds AS float8), t.last_seq,
    now() + later.by, CASE WHEN later.by > '0' THEN now() + later.by END,
    CASE WHEN later.by > '0' THEN NULL ELSE now() END, t.metadata_before
FROM t, make_interval(secs => CAST(:after AS float8)) AS later (by){answers}
RETURNING {record}, created_seq, (SELECT was_idle FROM t) AND not_before IS NULL AS starts_at_once

-- part: task
-- A run that resumes a thread continues the A2A task that waits there, whichever interface creates the run.
 || coalesce((
    SELECT jsonb_build_object('a2a', jsonb_build_object('task_id', task_id)) FROM ({open_task}) AS open
    WHERE state = 'input-required' AND assistant_id = :assistant_id), '{}')

-- part: answers
, record_answers_1(t.deployment_id, t.thread_id, :run_id, CAST(:resume AS json), :answered_by, :key_id, :answered_from)

-- name: find_run
SELECT {record}, created_seq, pool, is_due(not_before) AS is_due
FROM run WHERE run_id = :run_id
