-- Commits of a runner: ends of runs and their checkpoints: shared/runs/finish.py, shared/threads/checkpoints.py.

-- install: store_checkpoints_1
-- Stores frames of those runs that are in `run_ids`. The parameters are the columns of the new rows: `c_*` of checkpoint,
-- `b_*` of checkpoint_blob, `w_*` of checkpoint_write. A frame may be stored twice: a checkpoint is replaced, blobs and plain
-- writes are kept, and the graph library's special writes (negative index: error, interrupt, resume) are replaced.
CREATE OR REPLACE FUNCTION store_checkpoints_1(run_ids uuid[],
    c_run uuid[], c_deployment uuid[], c_thread uuid[], c_ns text[], c_id text[], c_parent text[], c_type text[],
    c_data bytea[], c_blobs text[], c_metadata text[],
    b_run uuid[], b_deployment uuid[], b_thread uuid[], b_ns text[], b_channel text[], b_version text[], b_type text[],
    b_data bytea[],
    w_run uuid[], w_deployment uuid[], w_thread uuid[], w_ns text[], w_id text[], w_task text[], w_idx bigint[],
    w_channel text[], w_type text[], w_data bytea[], w_path text[])
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
IF cardinality(c_run) > 0 THEN
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, type,
        data, blobs, metadata)
    SELECT deployment_id, thread_id, ns, id, parent_id, run_id, type, data, CAST(blobs AS json), CAST(metadata AS jsonb)
    FROM unnest(c_run, c_deployment, c_thread, c_ns, c_id, c_parent, c_type, c_data, c_blobs, c_metadata)
        AS c (run_id, deployment_id, thread_id, ns, id, parent_id, type, data, blobs, metadata)
    WHERE run_id = ANY(run_ids)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, checkpoint_id) DO UPDATE
    SET parent_checkpoint_id = excluded.parent_checkpoint_id, run_id = excluded.run_id, type = excluded.type,
        data = excluded.data, blobs = excluded.blobs, metadata = excluded.metadata;
END IF;
IF cardinality(b_run) > 0 THEN
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT deployment_id, thread_id, ns, channel, version, type, data
    FROM unnest(b_run, b_deployment, b_thread, b_ns, b_channel, b_version, b_type, b_data)
        AS b (run_id, deployment_id, thread_id, ns, channel, version, type, data)
    WHERE run_id = ANY(run_ids)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, channel, version) DO NOTHING;
END IF;
IF cardinality(w_run) > 0 THEN
    INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, run_id, channel,
        type, data, task_path)
    SELECT deployment_id, thread_id, ns, id, task_id, idx, run_id, channel, type, data, task_path
    FROM unnest(w_run, w_deployment, w_thread, w_ns, w_id, w_task, w_idx, w_channel, w_type, w_data, w_path)
        AS w (run_id, deployment_id, thread_id, ns, id, task_id, idx, channel, type, data, task_path)
    WHERE run_id = ANY(run_ids)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE
    SET channel = excluded.channel, type = excluded.type, data = excluded.data, task_path = excluded.task_path
    WHERE checkpoint_write.idx < 0;
END IF;
END $$;

-- install: commit_runs_1
-- Ends runs of one owner that keep their threads, stores the threads' state, records webhooks, and stores checkpoints. Each
-- statement has its own snapshot, as in a transaction: after the threads are locked, the next statement sees everything
-- committed before. Returns a row for each ended run, with the next run of its thread, then a row for each run whose
-- checkpoints were stored. The owner has lost the other runs.
CREATE OR REPLACE FUNCTION commit_runs_1(ending_owner text,
    deployment_ids uuid[], thread_ids uuid[], run_ids uuid[], run_attempts bigint[], statuses text[], usages text[],
    first_tokens_ago float8[], errors text[], new_values text[], thread_statuses text[], new_states text[],
    new_interrupts text[], new_spans text[], node_usages text[], end_seqs bigint[], hooked_runs uuid[],
    writing_runs uuid[], writing_attempts bigint[], writing_owners text[],
    c_run uuid[], c_deployment uuid[], c_thread uuid[], c_ns text[], c_id text[], c_parent text[], c_type text[],
    c_data bytea[], c_blobs text[], c_metadata text[],
    b_run uuid[], b_deployment uuid[], b_thread uuid[], b_ns text[], b_channel text[], b_version text[], b_type text[],
    b_data bytea[],
    w_run uuid[], w_deployment uuid[], w_thread uuid[], w_ns text[], w_id text[], w_task text[], w_idx bigint[],
    w_channel text[], w_type text[], w_data bytea[], w_path text[])
RETURNS TABLE (ended_run_id uuid, next_run_id uuid, next_pool text, stored_run_id uuid)
LANGUAGE plpgsql
-- As for claim_runs_1: generic plans, which use only indexes.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    ended_runs uuid[] := '{}';
    stored_runs uuid[];
BEGIN
IF cardinality(run_ids) > 0 THEN
    PERFORM FROM thread WHERE (deployment_id, thread_id) IN (SELECT * FROM unnest(deployment_ids, thread_ids))
    ORDER BY deployment_id, thread_id FOR NO KEY UPDATE;
    FOR ended_run_id, next_run_id, next_pool IN
        WITH f AS (
            SELECT * FROM unnest(run_ids, run_attempts, statuses, usages, first_tokens_ago, errors, new_values,
                thread_statuses, new_states, new_interrupts, new_spans, node_usages, end_seqs)
                AS f (run_id, attempt, status, usage, first_token_ago, error, new_values, thread_status, new_state,
                    new_interrupts, spans, node_usage, end_seq)
        ), ended AS (
            UPDATE run r SET status = f.status, error = CAST(f.error AS json), usage = CAST(f.usage AS jsonb),
                spans = CAST(f.spans AS json),
                ended_at = now(), updated_at = now(), lease_until = NULL,
                seq_reserved = coalesce(f.end_seq, r.seq_reserved)
            FROM f
            WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = ending_owner
              -- coalesce() keeps the planner from the partial index of running runs. A kept generic plan would otherwise
              -- scan all running runs for each run that ends.
              AND coalesce(r.status, '') = 'running'
            RETURNING r.run_id, r.deployment_id, r.thread_id, r.status, r.usage, f.first_token_ago, r.key_id,
                r.created_at, r.not_before, r.started_at, r.attempt, r.user_name, f.node_usage
        ), counted AS (
            INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
                first_token_seconds, usage, user_name, node_usage)
            SELECT e.deployment_id, v.counted_key_id, e.status, e.created_at, e.attempt, v.wait_seconds,
                v.duration_seconds, v.first_token_seconds, e.usage, e.user_name, CAST(e.node_usage AS jsonb)
            FROM ended e CROSS JOIN LATERAL ended_run_values(
                e.key_id, e.created_at, e.not_before, e.started_at, e.first_token_ago) v
        ), waiting AS (
            SELECT e.run_id, n.run_id AS next_id, n.pool
            FROM ended e LEFT JOIN LATERAL (
                SELECT run_id, pool FROM run o
                WHERE o.deployment_id = e.deployment_id AND o.thread_id = e.thread_id
                  AND is_live(o.status) AND o.run_id <> e.run_id
                ORDER BY o.created_seq LIMIT 1) n ON true
        ), kept AS (
            UPDATE thread t SET
                status = CASE WHEN w.next_id IS NULL THEN coalesce(f.thread_status, t.rest_status, 'idle')
                              ELSE 'busy' END,
                rest_status = coalesce(f.thread_status, t.rest_status),
                values = CASE WHEN f.new_values IS NULL THEN t.values ELSE CAST(f.new_values AS json) END,
                state = CASE WHEN f.new_state IS NULL THEN t.state ELSE CAST(f.new_state AS json) END,
                interrupts = CASE WHEN f.new_interrupts IS NULL THEN coalesce(t.interrupts, CAST('{}' AS json))
                                  ELSE CAST(f.new_interrupts AS json) END,
                error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
                rest_error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
                updated_at = now(),
                state_updated_at = CASE WHEN f.thread_status IS NULL THEN t.state_updated_at ELSE now() END
            FROM ended e JOIN f ON f.run_id = e.run_id JOIN waiting w ON w.run_id = e.run_id
            WHERE t.deployment_id = e.deployment_id AND t.thread_id = e.thread_id
        )
        SELECT run_id, next_id, pool FROM waiting
    LOOP
        ended_runs := ended_runs || ended_run_id;
        RETURN NEXT;
    END LOOP;
    IF cardinality(hooked_runs) > 0 THEN
        PERFORM record_webhooks_1(
            ARRAY(SELECT unnest(ended_runs) INTERSECT SELECT unnest(hooked_runs)), NULL, NULL);
    END IF;
END IF;
IF cardinality(writing_runs) > 0 THEN
    stored_runs := ARRAY(
        SELECT run.run_id FROM run
        JOIN unnest(writing_runs, writing_attempts, writing_owners) AS written (run_id, attempt, owner)
            ON run.run_id = written.run_id AND run.attempt = written.attempt AND run.owner = written.owner
        -- The runs that end in this commit have ended already.
        WHERE coalesce(run.status, '') = 'running' OR run.run_id = ANY(run_ids)
        ORDER BY run.run_id
        FOR SHARE OF run);
    PERFORM store_checkpoints_1(stored_runs,
        c_run, c_deployment, c_thread, c_ns, c_id, c_parent, c_type, c_data, c_blobs, c_metadata,
        b_run, b_deployment, b_thread, b_ns, b_channel, b_version, b_type, b_data,
        w_run, w_deployment, w_thread, w_ns, w_id, w_task, w_idx, w_channel, w_type, w_data, w_path);
    ended_run_id := NULL; next_run_id := NULL; next_pool := NULL;
    FOREACH stored_run_id IN ARRAY stored_runs LOOP
        RETURN NEXT;
    END LOOP;
END IF;
END $$;

-- name: runs
SELECT done.*, CASE WHEN :to_disk THEN set_config('synchronous_commit', 'on', true) END AS to_disk
FROM commit_runs_1(:owner,
    :deployment_ids, :thread_ids, :run_ids, :attempts, :statuses, :usages, :first_tokens_ago, :errors, :values,
    :thread_statuses, :states, :interrupts, :spans, :node_usages, :end_seqs, :hooked_runs, :writing_runs, :writing_attempts, :writing_owners,
    :c_run, :c_deployment, :c_thread, :c_ns, :c_id, :c_parent, :c_type, :c_data, :c_blobs, :c_metadata,
    :b_run, :b_deployment, :b_thread, :b_ns, :b_channel, :b_version, :b_type, :b_data,
    :w_run, :w_deployment, :w_thread, :w_ns, :w_id, :w_task, :w_idx, :w_channel, :w_type, :w_data, :w_path) done

-- name: store_checkpoints
SELECT store_checkpoints_1(:run_ids,
    :c_run, :c_deployment, :c_thread, :c_ns, :c_id, :c_parent, :c_type, :c_data, :c_blobs, :c_metadata,
    :b_run, :b_deployment, :b_thread, :b_ns, :b_channel, :b_version, :b_type, :b_data,
    :w_run, :w_deployment, :w_thread, :w_ns, :w_id, :w_task, :w_idx, :w_channel, :w_type, :w_data, :w_path)

-- name: end_temporary
-- Ends temporary runs of one owner: deletes them with their threads, counts them, and records their webhooks. It is one
-- statement, because the connection may be in autocommit mode.
WITH f AS (
    SELECT * FROM unnest(:run_ids, :attempts, :statuses, :usages, :node_usages, :first_tokens_ago, :errors, :values)
        AS f (run_id, attempt, status, usage, node_usage, first_token_ago, error, new_values)
), deleted AS (
    DELETE FROM thread t USING run r, f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = :owner AND r.status = 'running'
      AND t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    RETURNING r.run_id, r.deployment_id, f.status, CAST(f.usage AS jsonb) AS usage, f.first_token_ago, r.key_id,
        r.created_at, r.not_before, r.started_at, r.attempt, r.webhook, r.user_name,
        CAST(f.node_usage AS jsonb) AS node_usage
), counted AS (
    INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
        first_token_seconds, usage, user_name, node_usage)
    SELECT d.deployment_id, v.counted_key_id, d.status, d.created_at, d.attempt, v.wait_seconds, v.duration_seconds,
        v.first_token_seconds, d.usage, d.user_name, d.node_usage
    FROM deleted d CROSS JOIN LATERAL ended_run_values(
        d.key_id, d.created_at, d.not_before, d.started_at, d.first_token_ago) v
), recorded AS (
    INSERT INTO webhook_delivery (delivery_id, deployment_id, run_id, url, status, run, error, values)
    SELECT gen_random_uuid(), d.deployment_id, d.run_id, d.webhook,
        CASE WHEN is_rolled_back THEN 'rollback' ELSE f.status END,
        row_to_json(jsonb_populate_record(r, jsonb_build_object('usage', d.usage))),
        CASE WHEN is_rolled_back
            THEN json_build_object('error', CAST(:rollback_error AS text),
                'message', coalesce(r.cancel_reason, :rollback_message))
            ELSE CAST(f.error AS json) END,
        CASE WHEN NOT is_rolled_back THEN CAST(f.new_values AS json) END
    FROM deleted d JOIN f ON f.run_id = d.run_id JOIN run r ON r.run_id = d.run_id
    CROSS JOIN LATERAL (
        SELECT coalesce(r.cancel_requested = 'rollback' AND f.status = 'interrupted', false) AS is_rolled_back) end_of_run
    WHERE d.webhook IS NOT NULL
)
SELECT run_id, set_config('synchronous_commit', 'on', true) FROM deleted

-- name: ended_before
-- The runs that the owner has ended, or that are deleted.
SELECT f.run_id FROM unnest(:run_ids, :attempts) AS f (run_id, attempt)
LEFT JOIN run r ON r.run_id = f.run_id
WHERE r.run_id IS NULL OR (r.owner = :owner AND r.attempt = f.attempt AND NOT is_live(r.status))
