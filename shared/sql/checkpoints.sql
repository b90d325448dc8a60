-- Checkpoints of threads: shared/threads/checkpoint_reads.py, checkpoints.py. A checkpoint is read whole, with its blobs and
-- writes.

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

-- name: left_by
-- A checkpoint as a past run left it: without the writes of later runs, which answered its interrupts or went on from it.
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type AS checkpoint_type,
    c.data AS checkpoint_data, CAST(c.metadata AS text) AS checkpoint_metadata, parts.channels, parts.versions, parts.types,
    parts.blobs, w.tasks, w.write_channels, w.write_types, w.writes
FROM checkpoint AS c CROSS JOIN LATERAL checkpoint_parts(
    c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.blobs, NULL) AS parts
CROSS JOIN LATERAL (
    SELECT array_agg(task_id) AS tasks, array_agg(channel) AS write_channels, array_agg(type) AS write_types,
        array_agg(data) AS writes
    FROM (
        SELECT task_id, channel, type, data FROM checkpoint_write AS one
        WHERE one.deployment_id = c.deployment_id AND one.thread_id = c.thread_id AND one.checkpoint_ns = c.checkpoint_ns
          AND one.checkpoint_id = c.checkpoint_id AND NOT EXISTS (
            SELECT FROM run AS later JOIN run AS past USING (deployment_id, thread_id)
            WHERE later.run_id = one.run_id AND past.run_id = :run_id AND later.created_seq > past.created_seq)
        ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx) AS ordered) AS w
WHERE c.deployment_id = :deployment_id AND c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns
  AND c.checkpoint_id = :checkpoint_id

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

-- name: delete_threads
-- Deletes all checkpoints of threads, with their blobs and writes.
WITH checkpoints AS (
    DELETE FROM checkpoint WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids)
), blobs AS (
    DELETE FROM checkpoint_blob WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids)
)
DELETE FROM checkpoint_write WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids)

-- name: sweep
-- Deletes the blobs and writes that no checkpoint of the threads refers to.
WITH writes AS (
    DELETE FROM checkpoint_write AS w WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids) AND NOT EXISTS (
        SELECT FROM checkpoint AS c
        WHERE c.deployment_id = w.deployment_id AND c.thread_id = w.thread_id
          AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
)
DELETE FROM checkpoint_blob AS b WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids) AND NOT EXISTS (
    SELECT FROM checkpoint AS c
    WHERE c.deployment_id = b.deployment_id AND c.thread_id = b.thread_id
      AND c.checkpoint_ns = b.checkpoint_ns AND readable(c.blobs) ->> b.channel = b.version)

-- name: is_rebuilt_from_run
-- Whether a checkpoint with a delta channel, whose value is rebuilt from the writes of all ancestors, descends directly from
-- a checkpoint of the run.
SELECT EXISTS (
    SELECT FROM checkpoint AS deleted JOIN checkpoint AS later USING (deployment_id, thread_id, checkpoint_ns)
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND deleted.run_id = :run_id
      AND later.parent_checkpoint_id = deleted.checkpoint_id AND later.run_id IS DISTINCT FROM deleted.run_id
      AND later.metadata -> 'counters_since_delta_snapshot' IS NOT NULL) AS is_rebuilt

-- name: relink
-- Gives checkpoints that descend from those of a run the run's predecessor as parent.
WITH RECURSIVE line AS (
    SELECT checkpoint_ns, later.checkpoint_id, deleted.parent_checkpoint_id AS ancestor
    FROM checkpoint AS deleted JOIN checkpoint AS later USING (deployment_id, thread_id, checkpoint_ns)
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND deleted.run_id = :run_id
      AND later.parent_checkpoint_id = deleted.checkpoint_id AND later.run_id IS DISTINCT FROM deleted.run_id
    UNION ALL
    SELECT checkpoint_ns, line.checkpoint_id, deleted.parent_checkpoint_id
    FROM line JOIN checkpoint AS deleted USING (checkpoint_ns)
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND deleted.checkpoint_id = line.ancestor
      AND deleted.run_id = :run_id
)
UPDATE checkpoint AS later SET parent_checkpoint_id = line.ancestor FROM line
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND later.checkpoint_ns = line.checkpoint_ns
  AND later.checkpoint_id = line.checkpoint_id AND NOT EXISTS (
    SELECT FROM checkpoint AS deleted
    WHERE deleted.deployment_id = later.deployment_id AND deleted.thread_id = later.thread_id
      AND deleted.checkpoint_ns = later.checkpoint_ns AND deleted.checkpoint_id = line.ancestor
      AND deleted.run_id = :run_id)

-- name: delete_run
WITH writes AS (
    DELETE FROM checkpoint_write
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id
)
DELETE FROM checkpoint WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id

-- name: disown_run
WITH writes AS (
    UPDATE checkpoint_write SET run_id = NULL
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id
)
UPDATE checkpoint SET run_id = NULL
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id

-- name: delete_for_runs
-- Deletes checkpoints by the run id in their metadata, in one thread or in all threads of the deployment.
DELETE FROM checkpoint
WHERE deployment_id = :deployment_id AND metadata ->> 'run_id' = ANY(:run_names)
  AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)
RETURNING thread_id

-- name: keep_latest
-- Deletes all but the newest checkpoint of each namespace. A namespace whose newest checkpoint contains a delta channel keeps
-- all checkpoints: the channel's value is rebuilt from the writes of its ancestors.
DELETE FROM checkpoint AS old USING (
    SELECT DISTINCT ON (thread_id, checkpoint_ns) * FROM checkpoint
    WHERE deployment_id = :deployment_id AND thread_id = ANY(:thread_ids)
    ORDER BY thread_id, checkpoint_ns, checkpoint_id DESC
) AS kept
WHERE old.deployment_id = kept.deployment_id AND old.thread_id = kept.thread_id
  AND old.checkpoint_ns = kept.checkpoint_ns AND old.checkpoint_id < kept.checkpoint_id
  AND kept.metadata -> 'counters_since_delta_snapshot' IS NULL

-- name: copy
-- Copies the checkpoints of a thread to another one, with the same checkpoint ids. Replaces the thread id in the metadata,
-- because the API shows the metadata and filters by it.
WITH checkpoints AS (
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, type,
        data, blobs, metadata)
    SELECT deployment_id, :target, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, type, data, blobs,
        jsonb_set(metadata, '{thread_id}', to_jsonb(CAST(CAST(:target AS uuid) AS text)), false)
    FROM checkpoint WHERE deployment_id = :deployment_id AND thread_id = :source
    ON CONFLICT DO NOTHING
), blobs AS (
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT deployment_id, :target, checkpoint_ns, channel, version, type, data
    FROM checkpoint_blob WHERE deployment_id = :deployment_id AND thread_id = :source
    ON CONFLICT DO NOTHING
)
INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, run_id, channel, type,
    data, task_path)
SELECT deployment_id, :target, checkpoint_ns, checkpoint_id, task_id, idx, run_id, channel, type, data, task_path
FROM checkpoint_write WHERE deployment_id = :deployment_id AND thread_id = :source
ON CONFLICT DO NOTHING

-- name: exists
SELECT FROM checkpoint WHERE deployment_id = :deployment_id AND thread_id = :thread_id
  AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id

-- name: storage
-- The size in bytes of a thread's checkpoints, pending writes, and channel values by channel.
WITH thread AS (SELECT CAST(:deployment_id AS uuid) AS d, CAST(:thread_id AS uuid) AS t)
SELECT
    (SELECT json_build_object('count', count(*), 'bytes', coalesce(sum(octet_length(data)), 0))
     FROM checkpoint, thread WHERE deployment_id = d AND thread_id = t) AS checkpoints,
    (SELECT json_build_object('count', count(*), 'bytes', coalesce(sum(octet_length(data)), 0))
     FROM checkpoint_write, thread WHERE deployment_id = d AND thread_id = t) AS pending_writes,
    (SELECT coalesce(json_object_agg(channel, json_build_object('versions', n, 'bytes', bytes)), '{}')
     FROM (SELECT channel, count(*) AS n, sum(octet_length(data)) AS bytes FROM checkpoint_blob, thread
           WHERE deployment_id = d AND thread_id = t GROUP BY channel ORDER BY channel) AS c) AS by_channel
