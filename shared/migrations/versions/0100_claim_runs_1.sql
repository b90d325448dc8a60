CREATE OR REPLACE FUNCTION claim_runs_1(uuid[], text, float8, float8, bigint, text, boolean)
RETURNS TABLE (claimed_run_id uuid, claimed_deployment_id uuid, claimed_thread_id uuid, claimed_assistant_id uuid, claimed_revision_id uuid, claimed_graph_id text, claimed_attempt bigint, claimed_floor bigint, claimed_temporary boolean, claimed_metadata jsonb, claimed_input text, claimed_kwargs json, claimed_last_death text, claimed_deaths bigint, claimed_quarantine bigint, claimed_timeout_seconds float8, claimed_seconds_left float8, claimed_key_id text, claimed_depth bigint, stored_deployment_id uuid, stored_thread_id uuid, stored_checkpoint_ns text, stored_checkpoint_id text, stored_parent_checkpoint_id text, stored_type text, stored_data bytea, stored_metadata text, stored_channels text[], stored_versions text[], stored_types text[], stored_blobs bytea[], stored_tasks text[], stored_write_channels text[], stored_write_types text[], stored_writes bytea[]) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    deployments uuid[] := '{}';
    threads uuid[] := '{}';
BEGIN
FOR claimed_run_id, claimed_deployment_id, claimed_thread_id, claimed_assistant_id, claimed_revision_id, claimed_graph_id, claimed_attempt, claimed_floor, claimed_temporary, claimed_metadata, claimed_input, claimed_kwargs, claimed_last_death, claimed_deaths, claimed_quarantine, claimed_timeout_seconds, claimed_seconds_left, claimed_key_id, claimed_depth IN 
UPDATE run r SET status = 'running', attempt = attempt + 1, owner = $2,
    lease_until = now() + make_interval(secs => $3), updated_at = statement_timestamp(),
    started_at = coalesce(started_at, statement_timestamp()),
    deadline_at = coalesce(
        deadline_at, now() + make_interval(secs => coalesce(timeout_seconds, $4))),
    seq_reserved = seq_reserved + $5
WHERE r.run_id = ANY($1) AND r.deployment_id NOT IN (SELECT id FROM deployment WHERE max_concurrent_runs IS NOT NULL) AND (NOT $7 OR r.key_id NOT IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)) AND coalesce(r.status, '') = 'pending'
  AND (CAST($6 AS text) IS NULL OR r.pool = $6) AND r.cancel_requested IS NULL AND (r.not_before IS NULL OR r.not_before <= now())
    AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = r.deployment_id
      AND e.thread_id = r.thread_id AND e.created_seq < r.created_seq
      AND e.status IN ('pending', 'running') OFFSET 0)
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - $5 AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs,
    last_death, deaths, quarantine, timeout_seconds,
    date_part('epoch', deadline_at - now()) AS seconds_left, key_id, depth

LOOP
    RETURN NEXT;
    IF NOT claimed_temporary THEN
        deployments := deployments || claimed_deployment_id;
        threads := threads || claimed_thread_id;
    END IF;
END LOOP;
IF cardinality(threads) > 0 THEN
    claimed_run_id := NULL;
    FOR stored_deployment_id, stored_thread_id, stored_checkpoint_ns, stored_checkpoint_id, stored_parent_checkpoint_id, stored_type, stored_data, stored_metadata, stored_channels, stored_versions, stored_types, stored_blobs, stored_tasks, stored_write_channels, stored_write_types, stored_writes IN 
SELECT c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.data,
       c.metadata::text, b.channels, b.versions, b.types, b.data, w.tasks, w.channels, w.types, w.data
FROM unnest(deployments::uuid[], threads::uuid[]) AS wanted (deployment_id, thread_id)
CROSS JOIN LATERAL (
    SELECT * FROM checkpoint AS one
    WHERE one.deployment_id = wanted.deployment_id AND one.thread_id = wanted.thread_id
        AND one.checkpoint_ns = ''
    ORDER BY one.checkpoint_id DESC LIMIT 1
) AS c
LEFT JOIN LATERAL (
    SELECT array_agg(blob.channel) AS channels, array_agg(blob.version) AS versions,
           array_agg(blob.type) AS types, array_agg(blob.data) AS data
    FROM json_each_text(c.blobs) AS wanted (channel, version)
    CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blob AS one
        WHERE one.deployment_id = c.deployment_id AND one.thread_id = c.thread_id
            AND one.checkpoint_ns = c.checkpoint_ns AND one.channel = wanted.channel
            AND one.version = wanted.version
        LIMIT 1
    ) AS blob
) AS b ON c.blobs::text <> '{}'
LEFT JOIN LATERAL (
    SELECT array_agg(task_id) AS tasks, array_agg(channel) AS channels, array_agg(type) AS types,
           array_agg(data) AS data
    FROM (
        SELECT task_id, channel, type, data FROM checkpoint_write AS own
        WHERE own.deployment_id = c.deployment_id AND own.thread_id = c.thread_id
            AND own.checkpoint_ns = c.checkpoint_ns AND own.checkpoint_id = c.checkpoint_id
        ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx
    ) AS ordered
) AS w ON true

    LOOP
        RETURN NEXT;
    END LOOP;
END IF;
END $$
