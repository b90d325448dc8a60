-- Replays of past runs and their benches: shared/replays. The views `listed_deployment` and `bench` are in rules.sql.

-- name: create
INSERT INTO replay (id, deployment_id, bench_id, revision_id, preview, criteria, sample, seed, tools, live_tools, models,
    network, concurrency, max_tokens, max_cost, max_minutes, rule, created_by)
VALUES (:id, :deployment_id, :bench_id, :revision_id, :preview, CAST(:criteria AS jsonb), :sample, :seed, :tools,
    CAST(:live_tools AS jsonb), :models, :network, :concurrency, :max_tokens, :max_cost, :max_minutes, :rule,
    CAST(:created_by AS jsonb))

-- name: create_bench
-- The bench serves the replayed revision, so that its address shows the threads of cases with that revision's graphs.
INSERT INTO deployment (id, organization_id, name, source, status, pool, max_concurrent_runs, latest_revision_id,
    active_revision_id, replay_of)
SELECT :bench_id, organization_id, :name, source, 'READY', pool, :concurrency, :revision_id, :revision_id, id
FROM deployment WHERE id = :deployment_id

-- name: find_revision
-- The revision of a deployment with this id or number, or of this preview, or the latest one.
SELECT r.id, r.number, r.status FROM listed_deployment d JOIN revision r ON r.deployment_id = d.id
WHERE d.id = :deployment_id AND r.id = coalesce(
    CAST(:revision_id AS uuid),
    (SELECT id FROM revision n WHERE n.deployment_id = d.id AND n.number = CAST(:number AS bigint)),
    (SELECT p.revision_id FROM preview p WHERE p.deployment_id = d.id AND p.name = CAST(:preview AS text)),
    CASE WHEN CAST(:number AS bigint) IS NULL AND CAST(:preview AS text) IS NULL THEN d.latest_revision_id END)

-- name: search
SELECT {columns} FROM replay p LEFT JOIN deployment b ON b.id = p.bench_id LEFT JOIN revision r ON r.id = p.revision_id
CROSS JOIN LATERAL (
    SELECT count(*) AS total,
        count(*) FILTER (WHERE c.outcome IS NULL AND coalesce(s.status, 'pending') = 'pending') AS waiting,
        count(*) FILTER (WHERE c.outcome IS NULL AND s.status <> 'pending') AS running,
        count(*) FILTER (WHERE c.outcome = 'same') AS same, count(*) FILTER (WHERE c.outcome = 'changed') AS changed,
        count(*) FILTER (WHERE c.outcome = 'diverged') AS diverged,
        count(*) FILTER (WHERE c.outcome = 'failed') AS failed, count(*) FILTER (WHERE c.outcome = 'skipped') AS skipped
    FROM replay_case c LEFT JOIN run s ON c.outcome IS NULL AND s.run_id = c.case_run_id
    WHERE c.replay_id = p.id) AS counted
WHERE p.deployment_id = :deployment_id AND (CAST(:id AS uuid) IS NULL OR p.id = :id)
ORDER BY p.id DESC LIMIT :limit OFFSET :offset

-- name: cases
SELECT {columns} FROM replay_case WHERE replay_id = :replay_id
  AND (CAST(:outcome AS text) IS NULL OR outcome = :outcome)
ORDER BY position LIMIT :limit OFFSET :offset

-- name: finish
-- Ends a replay. No row if it has ended.
UPDATE replay SET status = :status, reason = :reason, verdict = :verdict, summary = CAST(:summary AS jsonb),
    ended_at = now()
WHERE id = :id AND ended_at IS NULL
RETURNING bench_id

-- name: remove
-- Hides the bench, whose data upkeep removes as that of any deleted deployment, and deletes the replay.
WITH removed AS (
    DELETE FROM replay WHERE id = ANY(:ids) RETURNING bench_id
)
UPDATE deployment SET deleted_at = now(), updated_at = now(), status = 'AWAITING_DELETE'
WHERE id IN (SELECT bench_id FROM removed) AND deleted_at IS NULL
RETURNING id

-- name: old
SELECT id FROM replay WHERE ended_at < now() - make_interval(secs => :days * 86400) ORDER BY id LIMIT :limit
FOR UPDATE SKIP LOCKED
