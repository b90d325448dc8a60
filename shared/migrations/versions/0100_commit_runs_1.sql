CREATE OR REPLACE FUNCTION commit_runs_1(text, uuid[], uuid[], uuid[], uuid[], bigint[], text[], text[], float8[], text[], text[], text[], text[], text[], bigint[], uuid[], bigint[], text[], uuid[], uuid[], uuid[], uuid[], text[], text[], text[], text[], bytea[], text[], text[], uuid[], uuid[], uuid[], text[], text[], text[], text[], bytea[], uuid[], uuid[], uuid[], text[], text[], text[], bigint[], text[], text[], bytea[], text[])
RETURNS TABLE (ended_run uuid, next_run uuid, next_pool text, held_run uuid) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    ended_runs uuid[] := '{}';
BEGIN
IF cardinality($5) > 0 THEN
    PERFORM 1 AS held FROM thread WHERE (deployment_id, thread_id) IN (SELECT * FROM unnest(CAST($2 AS uuid[]), CAST($3 AS uuid[]))) ORDER BY deployment_id, thread_id FOR NO KEY UPDATE;
    FOR ended_run, next_run, next_pool IN 
WITH f AS (SELECT * FROM unnest(CAST($5 AS uuid[]), CAST($6 AS bigint[]), CAST($7 AS text[]), CAST($8 AS text[]), CAST($9 AS float8[]), CAST($10 AS text[]), CAST($11 AS text[]), CAST($12 AS text[]), CAST($13 AS text[]), CAST($14 AS text[]), CAST($15 AS bigint[])) AS f(run_id, attempt, status, usage, first_token_ago, error, new_values, thread_status, new_state, new_interrupts, end_seq)
), ended AS (
    UPDATE run r SET status = f.status, error = CAST(f.error AS json), usage = CAST(f.usage AS jsonb),
        ended_at = now(), updated_at = now(), lease_until = NULL,
        seq_reserved = coalesce(f.end_seq, r.seq_reserved)
    FROM f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = $1 AND coalesce(r.status, '') = 'running'
    RETURNING r.run_id, r.deployment_id, r.thread_id, r.status, r.usage, f.first_token_ago,
        r.key_id, r.created_at, r.not_before, r.started_at, r.attempt
), counted AS (
INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
    first_token_seconds, usage)
SELECT deployment_id, CASE WHEN starts_with(key_id, 'user:') THEN '' ELSE key_id END, status, created_at,
    attempt, date_part('epoch', started_at - CASE WHEN not_before <= started_at THEN not_before ELSE created_at END), date_part('epoch', now() - started_at), CASE WHEN first_token_ago BETWEEN 0 AND date_part('epoch', now() - created_at) THEN date_part('epoch', now() - created_at) - first_token_ago END, usage
FROM ended
), waiting AS (
    SELECT e.run_id, n.run_id AS next_run_id, n.pool
    FROM ended e LEFT JOIN LATERAL (
        SELECT run_id, pool FROM run o
        WHERE o.deployment_id = e.deployment_id AND o.thread_id = e.thread_id
          AND o.status IN ('pending', 'running') AND o.run_id <> e.run_id
        ORDER BY o.created_seq LIMIT 1) n ON true
), kept AS (
    UPDATE thread t SET
        status = CASE WHEN w.next_run_id IS NULL THEN coalesce(f.thread_status, t.rest_status, 'idle')
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
SELECT run_id, next_run_id, pool FROM waiting
    LOOP
        ended_runs := ended_runs || ended_run;
        RETURN NEXT;
    END LOOP;
    IF cardinality($4) > 0 THEN
        
INSERT INTO webhook_delivery (delivery_id, deployment_id, run_id, url, status, run, error, values)
SELECT gen_random_uuid(), r.deployment_id, r.run_id, r.webhook, r.status, row_to_json(r), coalesce(r.error, CASE WHEN r.status <> 'success' THEN CAST(NULL AS json) END), t.values
FROM run r LEFT JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    AND true WHERE r.webhook IS NOT NULL
AND r.run_id = ANY(ARRAY(SELECT unnest(ended_runs) INTERSECT SELECT unnest(CAST($4 AS uuid[]))));
    END IF;
END IF;
IF cardinality($16) > 0 THEN
    ended_run := NULL; next_run := NULL; next_pool := NULL;
    FOR held_run IN 
WITH held AS (
    SELECT run.run_id FROM run
    JOIN unnest($16::uuid[], $17::bigint[], $18::text[]) AS mine (run_id, attempt, owner)
        ON run.run_id = mine.run_id AND run.attempt = mine.attempt AND run.owner = mine.owner
    WHERE coalesce(run.status, '') = 'running' OR run.run_id = ANY($19::uuid[])
    ORDER BY run.run_id
    FOR SHARE OF run
), checkpoints AS (
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,
                            run_id, type, data, blobs, metadata)
    SELECT deployment_id, thread_id, ns, id, parent_id, run_id, type, data, blobs::json, metadata::jsonb
    FROM unnest($20::uuid[], $21::uuid[], $22::uuid[], $23::text[],
                $24::text[], $25::text[], $26::text[], $27::bytea[],
                $28::text[], $29::text[])
        AS c (run_id, deployment_id, thread_id, ns, id, parent_id, type, data, blobs, metadata)
    WHERE run_id IN (SELECT run_id FROM held)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, checkpoint_id) DO UPDATE
    SET parent_checkpoint_id = excluded.parent_checkpoint_id, run_id = excluded.run_id,
        type = excluded.type, data = excluded.data, blobs = excluded.blobs, metadata = excluded.metadata
), blobs AS (
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT deployment_id, thread_id, ns, channel, version, type, data
    FROM unnest($30::uuid[], $31::uuid[], $32::uuid[], $33::text[],
                $34::text[], $35::text[], $36::text[], $37::bytea[])
        AS b (run_id, deployment_id, thread_id, ns, channel, version, type, data)
    WHERE run_id IN (SELECT run_id FROM held)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, channel, version) DO NOTHING
), writes AS (
    INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx,
                                  run_id, channel, type, data, task_path)
    SELECT deployment_id, thread_id, ns, id, task_id, idx, run_id, channel, type, data, task_path
    FROM unnest($38::uuid[], $39::uuid[], $40::uuid[], $41::text[],
                $42::text[], $43::text[], $44::bigint[], $45::text[],
                $46::text[], $47::bytea[], $48::text[])
        AS w (run_id, deployment_id, thread_id, ns, id, task_id, idx, channel, type, data, task_path)
    WHERE run_id IN (SELECT run_id FROM held)
    ON CONFLICT (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE
    SET channel = excluded.channel, type = excluded.type, data = excluded.data, task_path = excluded.task_path
    WHERE checkpoint_write.idx < 0
)
SELECT run_id FROM held

    LOOP
        RETURN NEXT;
    END LOOP;
END IF;
END $$
