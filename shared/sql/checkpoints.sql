-- Checkpoints of threads: shared/threads/checkpoint_reads.py. A checkpoint is read whole, with its blobs and writes.

-- install: checkpoint_parts
-- The blobs and writes of a checkpoint, as arrays. `blob_versions` is its column `blobs`. `only_channels` selects the
-- blobs and writes of these channels; NULL selects all.
CREATE OR REPLACE FUNCTION checkpoint_parts(of_deployment uuid, of_thread uuid, of_ns text, of_checkpoint text,
    blob_versions json, only_channels text[])
RETURNS TABLE (channels text[], versions text[], types text[], blobs bytea[],
    tasks text[], write_channels text[], write_types text[], writes bytea[])
LANGUAGE sql STABLE AS $$
    SELECT b.channels, b.versions, b.types, b.data, w.tasks, w.channels, w.types, w.data
    FROM (
        SELECT array_agg(blob.channel) AS channels, array_agg(blob.version) AS versions,
            array_agg(blob.type) AS types, array_agg(blob.data) AS data
        FROM json_each_text(blob_versions) AS version (channel, version)
        CROSS JOIN LATERAL (
            SELECT * FROM checkpoint_blob AS one
            WHERE one.deployment_id = of_deployment AND one.thread_id = of_thread AND one.checkpoint_ns = of_ns
              AND one.channel = version.channel AND one.version = version.version
              AND (only_channels IS NULL OR version.channel = ANY(only_channels))
            LIMIT 1  -- tells the planner that each lookup finds one blob; it could read all blobs of the thread otherwise
        ) AS blob
    ) AS b CROSS JOIN (
        SELECT array_agg(task_id) AS tasks, array_agg(channel) AS channels, array_agg(type) AS types,
            array_agg(data) AS data
        FROM (
            SELECT task_id, channel, type, data FROM checkpoint_write AS one
            WHERE one.deployment_id = of_deployment AND one.thread_id = of_thread AND one.checkpoint_ns = of_ns
              AND one.checkpoint_id = of_checkpoint
              AND (only_channels IS NULL OR one.channel = ANY(only_channels))
            ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx
        ) AS ordered
    ) AS w
$$;

-- install: newest_checkpoint
-- The newest root checkpoint of a thread.
CREATE OR REPLACE FUNCTION newest_checkpoint(of_deployment uuid, of_thread uuid)
RETURNS TABLE (checkpoint_ns text, checkpoint_id text, parent_checkpoint_id text, checkpoint_type text,
    checkpoint_data bytea, checkpoint_metadata text, channels text[], versions text[], types text[], blobs bytea[],
    tasks text[], write_channels text[], write_types text[], writes bytea[])
LANGUAGE sql STABLE AS $$
    SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.data, CAST(c.metadata AS text), parts.*
    FROM (
        SELECT * FROM checkpoint AS one
        WHERE one.deployment_id = of_deployment AND one.thread_id = of_thread AND one.checkpoint_ns = ''
        ORDER BY one.checkpoint_id DESC LIMIT 1
    ) AS c
    CROSS JOIN LATERAL checkpoint_parts(
        c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.blobs, NULL) AS parts
$$;

-- name: newest
SELECT thread.deployment_id, thread.thread_id, newest.*
FROM unnest(CAST(:deployment_ids AS uuid[]), CAST(:thread_ids AS uuid[])) AS thread (deployment_id, thread_id)
CROSS JOIN LATERAL newest_checkpoint(thread.deployment_id, thread.thread_id) AS newest

-- name: ancestors
-- A checkpoint and its ancestors, nearest first, with the blobs and writes of the requested channels. The chain of parents
-- ends at a checkpoint with a blob for each of the channels: such a blob includes all older values.
WITH RECURSIVE chain AS (
    (SELECT checkpoint_id, parent_checkpoint_id, blobs, 1 AS depth FROM checkpoint
     WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
       AND checkpoint_id = coalesce(:checkpoint_id, (
           SELECT max(checkpoint_id) FROM checkpoint AS newest WHERE newest.deployment_id = :deployment_id
               AND newest.thread_id = :thread_id AND newest.checkpoint_ns = :checkpoint_ns)))
    UNION ALL
    SELECT parent.checkpoint_id, parent.parent_checkpoint_id, parent.blobs, chain.depth + 1
    FROM chain JOIN checkpoint AS parent
        ON parent.deployment_id = :deployment_id AND parent.thread_id = :thread_id
        AND parent.checkpoint_ns = :checkpoint_ns AND parent.checkpoint_id = chain.parent_checkpoint_id
    WHERE chain.depth < :limit AND NOT CAST(readable(chain.blobs) AS jsonb) ?& :channels
)
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type AS checkpoint_type,
    c.data AS checkpoint_data, CAST(c.metadata AS text) AS checkpoint_metadata, parts.*
FROM chain JOIN checkpoint AS c
    ON c.deployment_id = :deployment_id AND c.thread_id = :thread_id
    AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = chain.checkpoint_id
CROSS JOIN LATERAL checkpoint_parts(
    c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.blobs, :channels) AS parts
ORDER BY chain.depth
