-- Replays of past runs and their benches: shared/replays. The views `listed_deployment` and `bench` are in rules.sql.

-- name: create
INSERT INTO replay (id, deployment_id, bench_id, revision_id, preview, criteria, sample, seed, tools, live_tools, models,
    network, concurrency, max_tokens, max_cost, max_minutes, rule, created_by)
VALUES (:id, :deployment_id, :bench_id, :revision_id, :preview, CAST(:criteria AS jsonb), :sample, :seed, :tools,
    CAST(:live_tools AS jsonb), :models, :network, :concurrency, :max_tokens, :max_cost, :max_minutes, :rule,
    CAST(:created_by AS jsonb))

-- name: create_bench
-- The bench serves the replayed revision, so that its address shows the threads of cases with that revision's graphs. No
-- case may use more tokens than the replay: its usage is added to that of the replay when it has ended.
INSERT INTO deployment (id, organization_id, name, source, status, pool, max_concurrent_runs, max_run_tokens,
    latest_revision_id, active_revision_id, replay_of)
SELECT :bench_id, organization_id, :name, source, 'READY', pool, :concurrency, :max_tokens, :revision_id, :revision_id, id
FROM deployment WHERE id = :deployment_id

-- name: find_revision
-- The revision of a deployment with this id or number, or of this preview, or the latest one.
SELECT r.id, r.number, r.status, r.manifest #> '{replay,tools}' AS permitted_tools
FROM listed_deployment d JOIN revision r ON r.deployment_id = d.id
WHERE d.id = :deployment_id AND r.id = coalesce(
    CAST(:revision_id AS uuid),
    (SELECT id FROM revision n WHERE n.deployment_id = d.id AND n.number = CAST(:number AS bigint)),
    (SELECT p.revision_id FROM preview p WHERE p.deployment_id = d.id AND p.name = CAST(:preview AS text)),
    CASE WHEN CAST(:number AS bigint) IS NULL AND CAST(:preview AS text) IS NULL THEN d.latest_revision_id END)

-- name: standing
-- A revision with its newest judged replay, the conditions of it that failed, and whether it has served: it was deployed
-- without a preview, or promoted from one.
SELECT r.number, r.status = 'DEPLOYED' AND r.preview IS NULL AS has_served, n.id AS replay_id, n.verdict, n.failed
FROM revision r LEFT JOIN LATERAL (
    SELECT p.id, p.verdict, ARRAY(
        SELECT c.value ->> 'rule' FROM jsonb_array_elements(p.summary -> 'rules') c
        WHERE c.value ->> 'failed' = 'true') AS failed
    FROM replay p JOIN deployment b ON b.id = p.bench_id AND b.deleted_at IS NULL
    WHERE p.deployment_id = r.deployment_id AND p.revision_id = r.id AND p.verdict IS NOT NULL
    ORDER BY p.id DESC LIMIT 1) AS n ON true
WHERE r.deployment_id = :deployment_id AND r.id = :revision_id

-- part: counts
-- The cases of a replay `p` by outcome. The counts of an ended replay are stored, and its cases are not read here.
SELECT jsonb_build_object('total', n.total, 'waiting', n.open - n.running, 'running', n.running, 'same', n.same,
    'changed', n.changed, 'diverged', n.diverged, 'failed', n.failed, 'skipped', n.skipped) AS counts
FROM (
    SELECT count(*) AS total, count(*) FILTER (WHERE outcome IS NULL) AS open,
        count(*) FILTER (WHERE outcome = 'same') AS same, count(*) FILTER (WHERE outcome = 'changed') AS changed,
        count(*) FILTER (WHERE outcome = 'diverged') AS diverged, count(*) FILTER (WHERE outcome = 'failed') AS failed,
        count(*) FILTER (WHERE outcome = 'skipped') AS skipped,
        (SELECT count(*) FROM replay_case c JOIN run s ON s.run_id = c.case_run_id
         WHERE c.replay_id = p.id AND c.outcome IS NULL AND c.case_run_id IS NOT NULL AND s.status <> 'pending'
           AND p.counts IS NULL) AS running
    FROM replay_case WHERE replay_id = p.id AND p.counts IS NULL) AS n

-- name: search
SELECT {columns} FROM replay p JOIN deployment b ON b.id = p.bench_id AND b.deleted_at IS NULL
LEFT JOIN revision r ON r.id = p.revision_id CROSS JOIN LATERAL ({counts}) AS counted
WHERE p.deployment_id = :deployment_id AND (CAST(:id AS uuid) IS NULL OR p.id = :id)
ORDER BY p.id DESC LIMIT :limit OFFSET :offset

-- name: case
SELECT {columns} FROM replay_case WHERE replay_id = :replay_id AND position = :position

-- name: cases
SELECT {columns} FROM replay_case WHERE replay_id = :replay_id
  AND (CAST(:outcome AS text) IS NULL OR outcome = :outcome)
ORDER BY position LIMIT :limit OFFSET :offset

-- name: finish
UPDATE replay p SET status = :status, reason = :reason, verdict = :verdict, summary = CAST(:summary AS jsonb),
    counts = ({counts}), ended_at = now()
WHERE p.id = :id AND p.ended_at IS NULL

-- name: remove
-- Ends replays, and hides them with their benches. Upkeep removes the rows as those of any deleted deployment: the cases
-- in chunks, and the replay with its bench.
WITH removed AS (
    UPDATE replay SET ended_at = coalesce(ended_at, now()),
        status = CASE WHEN ended_at IS NULL THEN 'cancelled' ELSE status END
    WHERE id = ANY(:ids) RETURNING bench_id
)
UPDATE deployment SET deleted_at = now(), updated_at = now(), status = 'AWAITING_DELETE'
WHERE id IN (SELECT bench_id FROM removed) AND deleted_at IS NULL
RETURNING id

-- name: old
SELECT p.id FROM replay p JOIN deployment b ON b.id = p.bench_id AND b.deleted_at IS NULL
WHERE p.ended_at < now() - make_interval(secs => :days * 86400) ORDER BY p.id LIMIT :limit
FOR UPDATE OF p SKIP LOCKED

-- name: due
-- Replays that have not ended, and ended ones whose bench may have live runs.
SELECT p.id FROM active_bench b JOIN replay p ON p.bench_id = b.id WHERE b.deleted_at IS NULL ORDER BY p.id

-- name: retire_bench
-- Removes the limit of the bench of an ended replay without live runs, so that it is no longer an active bench.
UPDATE deployment b SET max_concurrent_runs = NULL
WHERE b.id = :bench_id AND NOT EXISTS (SELECT FROM run r WHERE r.deployment_id = b.id AND is_live(r.status))

-- name: open
-- A replay for one step of its execution. No row if it is deleted.
SELECT p.*, b.pool, r.manifest #>> '{replay,score}' IS NOT NULL AS has_scorer, r.status AS revision_status,
    p.ended_at IS NOT NULL AS has_ended, extract(epoch FROM now() - p.created_at) / 60 AS minutes
FROM replay p JOIN deployment b ON b.id = p.bench_id AND b.deleted_at IS NULL
LEFT JOIN revision r ON r.id = p.revision_id
WHERE p.id = :id

-- name: lock
-- Locks a replay for a step. No row if it has ended, or if another process is at a step of it.
SELECT id FROM replay WHERE id = :id AND ended_at IS NULL FOR NO KEY UPDATE SKIP LOCKED

-- name: select_cases
-- The past runs of a replay in the order of their seed. Nested runs are part of the run that created them.
INSERT INTO replay_case (replay_id, position, run_id, thread_id)
SELECT :id, row_number() OVER (ORDER BY seeded, run_id), run_id, thread_id FROM (
    SELECT run_id, thread_id, md5(concat(run_id, ' ', CAST(:seed AS bigint))) AS seeded FROM run
    WHERE deployment_id = :deployment_id AND {ended} AND depth = 0 AND started_at IS NOT NULL AND NOT temporary
      AND (CAST(:since AS uuid) IS NULL OR run_id >= :since) AND (CAST(:until AS uuid) IS NULL OR run_id < :until)
      AND (CAST(:assistant_id AS uuid) IS NULL OR assistant_id = :assistant_id)
      AND (CAST(:graph_id AS text) IS NULL OR graph_id = :graph_id)
      AND (CAST(:statuses AS text[]) IS NULL OR status = ANY(:statuses))
      AND (CAST(:metadata AS jsonb) IS NULL OR metadata @> CAST(:metadata AS jsonb))
      AND (CAST(:key_id AS text) IS NULL OR key_id = :key_id)
      AND (CAST(:feedback_key AS text) IS NULL OR {has_feedback})
      AND CASE WHEN CAST(:run_ids AS uuid[]) IS NULL THEN {is_of_no_call} ELSE run_id = ANY(:run_ids) END
    ORDER BY seeded, run_id LIMIT :sample) AS found

-- name: begin
UPDATE replay SET status = 'running' WHERE id = :id AND status = 'preparing'

-- part: original
-- The past run `r` of a case `c`: its first and last root checkpoints, and the checkpoint that it started from. This is also
-- its last one if it answered a question and the same task asked another one.
LEFT JOIN run r ON r.run_id = c.run_id AND r.deployment_id = p.deployment_id
LEFT JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
LEFT JOIN LATERAL (
    SELECT min(checkpoint_id) AS first_id, max(checkpoint_id) AS last_id FROM checkpoint k
    WHERE k.deployment_id = r.deployment_id AND k.thread_id = r.thread_id AND k.checkpoint_ns = '' AND k.run_id = r.run_id
) AS own ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN own.first_id IS NOT NULL THEN (
        SELECT parent_checkpoint_id FROM checkpoint k
        WHERE k.deployment_id = r.deployment_id AND k.thread_id = r.thread_id AND k.checkpoint_ns = ''
          AND k.checkpoint_id = own.first_id)
    ELSE (
        SELECT max(checkpoint_id) FROM checkpoint k
        WHERE k.deployment_id = r.deployment_id AND k.thread_id = r.thread_id AND k.checkpoint_ns = ''
          AND k.created_at < r.started_at) END AS id
) AS start ON true
LEFT JOIN LATERAL (
    SELECT coalesce(own.last_id, CASE WHEN r.status = 'success' THEN start.id END) AS id
) AS last ON true

-- name: waiting
-- The next cases to start, with their past runs.
SELECT c.position, c.run_id, c.thread_id, r.run_id IS NOT NULL AS is_stored, r.revision_id, r.graph_id, r.status,
    r.attempt, r.kwargs, CAST(r.spans AS text) AS spans, r.created_seq, last.id AS last_id, start.id AS start_id,
    r.input IS NOT NULL AND CAST(r.input AS text) <> 'null' AS has_input,
    EXISTS (SELECT FROM checkpoint k
            WHERE k.deployment_id = r.deployment_id AND k.thread_id = r.thread_id AND k.checkpoint_ns = ''
              AND k.checkpoint_id = start.id) AS has_start,
    EXISTS (SELECT FROM run earlier
            WHERE earlier.deployment_id = r.deployment_id AND earlier.thread_id = r.thread_id
              AND earlier.created_seq < r.created_seq AND earlier.attempt > 0) AS is_later,
    v.status = 'DEPLOYED' AS is_deployed, t.config, t.metadata AS thread_metadata
FROM replay p JOIN replay_case c ON c.replay_id = p.id {original}
LEFT JOIN revision v ON v.id = r.revision_id
WHERE p.id = :id AND c.outcome IS NULL AND c.case_run_id IS NULL ORDER BY c.position LIMIT :limit

-- name: live_cases
SELECT count(*) AS n FROM replay_case WHERE replay_id = :id AND outcome IS NULL AND case_run_id IS NOT NULL

-- name: take
-- Gives a waiting case its run. No row if the case is started already.
UPDATE replay_case SET case_run_id = :case_run_id, case_thread_id = :case_thread_id
WHERE replay_id = :id AND position = :position AND outcome IS NULL AND case_run_id IS NULL

-- name: create_thread
INSERT INTO thread (deployment_id, thread_id, status, metadata, config, last_seq)
SELECT :bench_id, :case_thread_id, 'busy', metadata, config, 1 FROM thread
WHERE deployment_id = :deployment_id AND thread_id = :thread_id

-- name: create_run
-- A case has twice the time limit of its run.
INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, metadata, input, kwargs,
    pool, timeout_seconds, created_seq)
SELECT :case_run_id, b.id, :case_thread_id, r.assistant_id, :revision_id, r.graph_id, 'pending', r.metadata, r.input,
    CAST(:kwargs AS json), b.pool, 2 * coalesce(r.timeout_seconds, :run_timeout_seconds), 1
FROM run r CROSS JOIN deployment b WHERE r.run_id = :run_id AND b.id = :bench_id

-- name: copy_checkpoints
-- Copies the checkpoint that a past run started from. Of subgraphs, the newest checkpoint of each namespace is copied that
-- is kept between runs (its namespace has no task id), or that an interrupted task of the starting checkpoint wrote. A
-- checkpoint with a delta channel needs its ancestors. Writes of the past run and of later runs are left out: they would
-- answer the interrupts and complete the tasks that the case is to execute.
WITH RECURSIVE origin AS (
    SELECT checkpoint_id, created_at FROM checkpoint
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = :start_id
), chosen AS (
    SELECT CAST('' AS text) AS checkpoint_ns, checkpoint_id FROM origin
    UNION ALL
    (SELECT DISTINCT ON (k.checkpoint_ns) k.checkpoint_ns, k.checkpoint_id FROM checkpoint k, origin
     WHERE k.deployment_id = :deployment_id AND k.thread_id = :thread_id AND k.checkpoint_ns <> ''
       AND (strpos(k.checkpoint_ns, ':') = 0 OR k.created_at >= origin.created_at)
       AND NOT EXISTS (SELECT FROM run later WHERE later.run_id = k.run_id AND later.deployment_id = :deployment_id
                       AND later.thread_id = :thread_id AND later.created_seq >= :created_seq)
     ORDER BY k.checkpoint_ns, k.checkpoint_id DESC)
), chain AS (
    SELECT k.* FROM chosen JOIN checkpoint k ON k.deployment_id = :deployment_id AND k.thread_id = :thread_id
        AND k.checkpoint_ns = chosen.checkpoint_ns AND k.checkpoint_id = chosen.checkpoint_id
    UNION ALL
    SELECT parent.* FROM chain JOIN checkpoint parent ON parent.deployment_id = :deployment_id
        AND parent.thread_id = :thread_id AND parent.checkpoint_ns = chain.checkpoint_ns
        AND parent.checkpoint_id = chain.parent_checkpoint_id
    WHERE chain.metadata -> 'counters_since_delta_snapshot' IS NOT NULL
), checkpoints AS (
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, data, blobs,
        metadata)
    SELECT :bench_id, :case_thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, data, blobs,
        jsonb_set(metadata, '{thread_id}', to_jsonb(CAST(CAST(:case_thread_id AS uuid) AS text)), false)
    FROM chain
), blobs AS (
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT DISTINCT ON (b.checkpoint_ns, b.channel, b.version) :bench_id, CAST(:case_thread_id AS uuid), b.checkpoint_ns,
        b.channel, b.version, b.type, b.data
    FROM chain CROSS JOIN LATERAL json_each_text(readable(chain.blobs)) AS used (channel, version)
    JOIN checkpoint_blob b ON b.deployment_id = :deployment_id AND b.thread_id = :thread_id
        AND b.checkpoint_ns = chain.checkpoint_ns AND b.channel = used.channel AND b.version = used.version
)
INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, data,
    task_path)
SELECT :bench_id, :case_thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.channel, w.type, w.data, w.task_path
FROM chain JOIN checkpoint_write w ON w.deployment_id = :deployment_id AND w.thread_id = :thread_id
    AND w.checkpoint_ns = chain.checkpoint_ns AND w.checkpoint_id = chain.checkpoint_id
WHERE NOT EXISTS (SELECT FROM run later WHERE later.run_id = w.run_id AND later.deployment_id = :deployment_id
                  AND later.thread_id = :thread_id AND later.created_seq >= :created_seq)

-- name: ended
-- Cases whose runs have ended, with both runs and their final states. `is_current`: the thread's stored values are those
-- that the past run left. `is_asked_again`: a later run has answered a question of the run, and its task has asked another
-- one, which replaces the stored one. The rows end when their values exceed `bytes`.
WITH found AS (
    SELECT c.position, c.run_id, c.thread_id, c.case_thread_id, c.report, r.run_id IS NOT NULL AS is_stored, r.revision_id,
        r.graph_id, r.status, r.error, r.input, r.kwargs, r.spans, r.usage, r.started_at, r.ended_at, last.id AS last_id,
        t.config, t.metadata AS thread_metadata, v.status = 'DEPLOYED' AS is_deployed,
        last.id IS NOT NULL AND readable(t.state) ->> 'checkpoint_id' = last.id AS is_current,
        EXISTS (SELECT FROM run later
                WHERE later.deployment_id = r.deployment_id AND later.thread_id = r.thread_id
                  AND later.created_seq > r.created_seq AND later.status = 'success' AND NOT EXISTS (
                    SELECT FROM checkpoint k
                    WHERE k.deployment_id = r.deployment_id AND k.thread_id = r.thread_id AND k.checkpoint_ns = ''
                      AND k.checkpoint_id > last.id AND k.created_at <= later.ended_at)) AS is_asked_again,
        t.values, t.state, s.run_id IS NOT NULL AS has_run, s.status AS case_status, s.error AS case_error,
        s.spans AS case_spans, s.usage AS case_usage, s.started_at AS case_started_at, s.ended_at AS case_ended_at,
        h.values AS case_values, h.state AS case_state, {feedback} AS feedback
    FROM replay p JOIN replay_case c ON c.replay_id = p.id {original}
    LEFT JOIN revision v ON v.id = r.revision_id
    LEFT JOIN run s ON s.run_id = c.case_run_id
    LEFT JOIN thread h ON h.deployment_id = s.deployment_id AND h.thread_id = s.thread_id
    WHERE p.id = :id AND c.outcome IS NULL AND c.case_run_id IS NOT NULL AND NOT is_live(coalesce(s.status, ''))
    ORDER BY c.position LIMIT :limit
), sized AS (
    SELECT position, sum(coalesce(octet_length(CAST(values AS text)), 0) + coalesce(octet_length(CAST(case_values AS text)), 0))
        OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM found
)
SELECT found.* FROM found JOIN sized USING (position) WHERE coalesce(bytes_before, 0) <= :bytes ORDER BY position

-- name: record_outcome
-- Records the outcome of a case once, and adds what its run used to the replay, whose row is locked. The figures are the
-- comparison without the steps, the report, and all differences but the first.
WITH compared AS (
    SELECT CAST(:comparison AS jsonb) AS document
), recorded AS (
    UPDATE replay_case SET outcome = :outcome, reason = :reason, comparison = document,
        figures = document - CAST('{values,steps,report}' AS text[]) || jsonb_build_object(
            'first_value', document #> '{values,0}', 'unrecorded_tool', document #>> '{report,unrecorded,0,tool}'),
        ended_at = now()
    FROM compared WHERE replay_id = :id AND position = :position AND outcome IS NULL
    RETURNING comparison
)
UPDATE replay SET
    used_tokens = used_tokens + coalesce(CAST(recorded.comparison #>> '{tokens,replay}' AS float8), 0),
    used_cost = used_cost + coalesce(CAST(recorded.comparison #>> '{cost,replay}' AS float8), 0)
FROM recorded WHERE id = :id

-- name: skip_open
UPDATE replay_case SET outcome = 'skipped', reason = :reason, ended_at = now() WHERE replay_id = :id AND outcome IS NULL

-- name: progress
-- Whether cases have no outcome yet, and what the judged ones have used.
SELECT EXISTS (SELECT FROM replay_case WHERE replay_id = p.id AND outcome IS NULL) AS open, used_tokens AS tokens,
    used_cost AS cost
FROM replay p WHERE id = :id

-- name: figures
SELECT outcome, reason, figures - CAST('{first_difference,first_value}' AS text[]) AS comparison
FROM replay_case WHERE replay_id = :id ORDER BY position

-- name: keep_report
UPDATE replay_case SET report = CAST(:report AS jsonb) WHERE case_run_id = :case_run_id AND outcome IS NULL
