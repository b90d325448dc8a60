-- Figures about ended runs, and token budgets: shared/figures.

-- install: ended_run_values
-- Columns of `ended_run` that are computed when a run ends.
-- A deployment's own authorization may have any number of users (`user:…`), so their runs are counted without a key. A run
-- that waits for another attempt gets a new `not_before`; before its first attempt it waits since its creation. The time of
-- the first token comes from a graph host's clock or from user code, so times outside the run are dropped.
CREATE OR REPLACE FUNCTION ended_run_values(
    key_id text, created_at timestamptz, not_before timestamptz, started_at timestamptz, first_token_ago float8)
RETURNS TABLE (counted_key_id text, wait_seconds float8, duration_seconds float8, first_token_seconds float8)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN starts_with(key_id, 'user:') THEN '' ELSE key_id END,
        date_part('epoch', started_at - CASE WHEN not_before <= started_at THEN not_before ELSE created_at END),
        date_part('epoch', now() - started_at),
        CASE WHEN first_token_ago BETWEEN 0 AND date_part('epoch', now() - created_at)
            THEN date_part('epoch', now() - created_at) - first_token_ago END
$$;

-- install: utc_date
CREATE OR REPLACE FUNCTION utc_date(moment timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(moment AT TIME ZONE 'UTC' AS date)
$$;

-- install: token_count
-- A token count in a model's document. A graph host may send any value, so it is bounded (MOST_TOKENS in usage.py).
CREATE OR REPLACE FUNCTION token_count(counts jsonb, name text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(least(greatest(
        CASE jsonb_typeof(counts -> name) WHEN 'number' THEN CAST(counts -> name AS numeric) ELSE 0 END,
        0), 1000000000000) AS bigint)
$$;

-- install: tokens_by_model
-- The tokens in a run's usage, a row for each model. A graph host may send any document.
CREATE OR REPLACE FUNCTION tokens_by_model(usage jsonb)
RETURNS TABLE (model text, input_tokens bigint, output_tokens bigint, total_tokens bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(nullif(left(m.key, 200), ''), 'unknown'), token_count(m.value, 'input_tokens'),
        token_count(m.value, 'output_tokens'), token_count(m.value, 'total_tokens')
    FROM jsonb_each(CASE jsonb_typeof(usage) WHEN 'object' THEN usage END) AS m LIMIT 50
$$;

-- install: replay_key
-- Stands for a key in the usage of replays. No key has this id.
CREATE OR REPLACE FUNCTION replay_key() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 'replay' $$;

-- install: ended_run_usage
-- The usage of ended runs that are not folded, in the columns of `daily_usage`: for each run, a row with an empty model
-- that counts the run, and a row for each model that it called. The usage of a replay is that of the original deployment,
-- under a key of its own.
CREATE VIEW ended_run_usage AS
SELECT e.id, d.organization_id, utc_date(e.ended_at) AS day, coalesce(d.replay_of, e.deployment_id) AS deployment_id,
    CASE WHEN d.replay_of IS NULL THEN e.key_id ELSE replay_key() END AS key_id, m.model, 1 AS runs,
    m.input_tokens, m.output_tokens, m.total_tokens
FROM ended_run e JOIN deployment d ON d.id = e.deployment_id
CROSS JOIN LATERAL (
    SELECT '' AS model, 0 AS input_tokens, 0 AS output_tokens, 0 AS total_tokens
    UNION ALL SELECT * FROM tokens_by_model(e.usage)) AS m;

-- install: ended_run_detail
-- The usage of ended runs that are not folded by user and by node, in the columns of `daily_detail`: for each run and user or
-- node, a row with an empty model that counts the run, and a row for each model. Without replays. A graph host may send any
-- document of nodes.
CREATE VIEW ended_run_detail AS
SELECT e.id, d.organization_id, utc_date(e.ended_at) AS day, e.deployment_id, part.kind, part.name, m.model, 1 AS runs,
    m.input_tokens, m.output_tokens, m.total_tokens
FROM ended_run e JOIN listed_deployment d ON d.id = e.deployment_id
CROSS JOIN LATERAL (
    SELECT 'user' AS kind, coalesce(e.user_name, '') AS name, e.usage
    UNION ALL
    (SELECT 'node', left(n.key, 200), n.value
     FROM jsonb_each(CASE jsonb_typeof(e.node_usage) WHEN 'object' THEN e.node_usage END) AS n LIMIT 100)) AS part
CROSS JOIN LATERAL (
    SELECT '' AS model, 0 AS input_tokens, 0 AS output_tokens, 0 AS total_tokens
    UNION ALL SELECT * FROM tokens_by_model(part.usage)) AS m;

-- install: histogram_bucket
-- The bucket of a number of seconds; NULL for NULL. See the histograms in shared/figures/reading.py.
CREATE OR REPLACE FUNCTION histogram_bucket(seconds float8) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN seconds IS NOT NULL
        THEN CAST(least(120, floor(4 * ln(greatest(seconds, 0.001) / 0.001) / ln(2))) AS int) END
$$;

-- install: histogram_of
-- The histogram of an array of buckets, without its NULLs.
CREATE OR REPLACE FUNCTION histogram_of(buckets int[]) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(jsonb_object_agg(counted.bucket, counted.n), '{}') FROM (
        SELECT bucket, count(*) AS n FROM unnest(buckets) AS bucket WHERE bucket IS NOT NULL GROUP BY bucket) AS counted
$$;

-- install: sum_histograms
CREATE OR REPLACE FUNCTION sum_histograms(histograms jsonb[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(jsonb_object_agg(summed.bucket, summed.n), '{}') FROM (
        SELECT b.key AS bucket, sum(CAST(b.value AS bigint)) AS n
        FROM unnest(histograms) AS h (histogram) CROSS JOIN LATERAL jsonb_each_text(h.histogram) AS b
        GROUP BY b.key) AS summed
$$;

-- install: sum_ended_runs
-- Rows of `figure` for ended runs that are not folded, by each of these step sizes. Covers the runs of an organization, and
-- those with these ids; NULL means all. Runs of replays do not count. A run counts as created at its creation time, everything else at its end.
CREATE OR REPLACE FUNCTION sum_ended_runs(steps bigint[], of_organization uuid, of_ids bigint[])
RETURNS TABLE (organization_id uuid, step_seconds int, at timestamptz, deployment_id uuid, key_id text,
    created bigint, success bigint, error bigint, timeout bigint, interrupted bigint, attempts bigint,
    input_tokens bigint, output_tokens bigint,
    wait_seconds float8, duration_seconds float8, first_token_seconds float8,
    waits jsonb, durations jsonb, first_tokens jsonb)
LANGUAGE sql STABLE AS $$
    SELECT d.organization_id, s.step_seconds,
        CASE s.step_seconds WHEN 0 THEN to_timestamp(0)
            ELSE date_bin(make_interval(secs => s.step_seconds), p.moment, to_timestamp(0)) END,
        e.deployment_id, e.key_id, sum(p.created), count(*) FILTER (WHERE p.status = 'success'),
        count(*) FILTER (WHERE p.status = 'error'), count(*) FILTER (WHERE p.status = 'timeout'),
        count(*) FILTER (WHERE p.status = 'interrupted'),
        sum(p.attempts), sum(p.input_tokens), sum(p.output_tokens),
        coalesce(sum(p.wait_seconds), 0), coalesce(sum(p.duration_seconds), 0),
        coalesce(sum(p.first_token_seconds), 0),
        histogram_of(array_agg(histogram_bucket(p.wait_seconds))),
        histogram_of(array_agg(histogram_bucket(p.duration_seconds))),
        histogram_of(array_agg(histogram_bucket(p.first_token_seconds)))
    FROM ended_run e JOIN listed_deployment d ON d.id = e.deployment_id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(m.input_tokens), 0) AS input_tokens, coalesce(sum(m.output_tokens), 0) AS output_tokens
        FROM tokens_by_model(e.usage) AS m) AS u
    CROSS JOIN LATERAL (VALUES
        (e.created_at, 1, NULL, 0, 0, 0, NULL, NULL, NULL),
        (e.ended_at, 0, e.status, e.attempts, u.input_tokens, u.output_tokens,
            e.wait_seconds, e.duration_seconds, e.first_token_seconds)
    ) AS p (moment, created, status, attempts, input_tokens, output_tokens,
        wait_seconds, duration_seconds, first_token_seconds)
    CROSS JOIN unnest(steps) AS s (step_seconds)
    WHERE (of_organization IS NULL OR d.organization_id = of_organization) AND (of_ids IS NULL OR e.id = ANY(of_ids))
    GROUP BY 1, 2, 3, 4, 5
$$;

-- install: figures_since
-- The figures of one step size from a time on, folded and not. `of_organization` NULL means all organizations.
CREATE OR REPLACE FUNCTION figures_since(step int, since timestamptz, of_organization uuid)
RETURNS TABLE (at timestamptz, deployment_id uuid, key_id text,
    created bigint, success bigint, error bigint, timeout bigint, interrupted bigint, attempts bigint,
    input_tokens bigint, output_tokens bigint,
    wait_seconds float8, duration_seconds float8, first_token_seconds float8,
    waits jsonb, durations jsonb, first_tokens jsonb)
LANGUAGE sql STABLE AS $$
    SELECT at, deployment_id, key_id, created, success, error, timeout, interrupted, attempts, input_tokens,
        output_tokens, wait_seconds, duration_seconds, first_token_seconds, waits, durations, first_tokens
    FROM figure
    WHERE step_seconds = step AND at >= since AND (of_organization IS NULL OR organization_id = of_organization)
    UNION ALL
    SELECT at, deployment_id, key_id, created, success, error, timeout, interrupted, attempts, input_tokens,
        output_tokens, wait_seconds, duration_seconds, first_token_seconds, waits, durations, first_tokens
    FROM sum_ended_runs(ARRAY[step], of_organization, NULL) WHERE at >= since
$$;

-- name: record_ended
-- Counts live runs as ended, in the transaction that ends or deletes them.
INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
    first_token_seconds, usage, user_name, node_usage)
SELECT r.deployment_id, e.counted_key_id, :status, r.created_at, r.attempt, e.wait_seconds, e.duration_seconds,
    e.first_token_seconds, CAST(:usage AS jsonb), r.user_name, CAST(:node_usage AS jsonb)
FROM run r CROSS JOIN LATERAL ended_run_values(
    r.key_id, r.created_at, r.not_before, r.started_at, CAST(:first_token_ago AS float8)) e
WHERE r.run_id = ANY(:run_ids)

-- name: unfolded
-- Locks ended runs that are to be folded. Two leaders lock different rows.
SELECT id FROM ended_run ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: fold
-- Deletes ended runs and adds them to the sums. Rows are inserted in order, so that two leaders cannot deadlock.
WITH removed AS (
    DELETE FROM ended_run WHERE id = ANY(:ids)
), folded AS (
    INSERT INTO figure (organization_id, step_seconds, at, deployment_id, key_id, created, success, error, timeout,
        interrupted, attempts, input_tokens, output_tokens, wait_seconds, duration_seconds, first_token_seconds, waits,
        durations, first_tokens)
    SELECT * FROM sum_ended_runs(:steps, NULL, :ids) ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (organization_id, step_seconds, at, deployment_id, key_id) DO UPDATE SET
        created = figure.created + excluded.created, success = figure.success + excluded.success,
        error = figure.error + excluded.error, timeout = figure.timeout + excluded.timeout,
        interrupted = figure.interrupted + excluded.interrupted, attempts = figure.attempts + excluded.attempts,
        input_tokens = figure.input_tokens + excluded.input_tokens,
        output_tokens = figure.output_tokens + excluded.output_tokens,
        wait_seconds = figure.wait_seconds + excluded.wait_seconds,
        duration_seconds = figure.duration_seconds + excluded.duration_seconds,
        first_token_seconds = figure.first_token_seconds + excluded.first_token_seconds,
        waits = sum_histograms(ARRAY[figure.waits, excluded.waits]),
        durations = sum_histograms(ARRAY[figure.durations, excluded.durations]),
        first_tokens = sum_histograms(ARRAY[figure.first_tokens, excluded.first_tokens])
), detail AS (
    SELECT deployment_id, day, kind, name, model, sum(runs) AS runs, sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens, sum(total_tokens) AS total_tokens
    FROM ended_run_detail WHERE id = ANY(:ids) GROUP BY 1, 2, 3, 4, 5
), known AS (
    SELECT d.*, EXISTS (
        SELECT FROM daily_detail k
        WHERE (k.deployment_id, k.day, k.kind, k.is_rest, k.name, k.model) = (d.deployment_id, d.day, d.kind, false, d.name, '')
    ) AS is_known
    FROM detail d
), vacant AS (
    SELECT n.*, :most_names - (
        SELECT count(*) FROM daily_detail k
        WHERE (k.deployment_id, k.day, k.kind, k.is_rest, k.model) = (n.deployment_id, n.day, n.kind, false, '')
    ) AS names  -- that may still be added
    FROM (SELECT DISTINCT deployment_id, day, kind FROM known WHERE NOT is_known) AS n
), ranked AS (
    SELECT k.*, NOT k.is_known AND v.names < dense_rank() OVER (
        PARTITION BY k.deployment_id, k.day, k.kind, k.is_known ORDER BY k.name) AS is_rest
    FROM known k LEFT JOIN vacant v USING (deployment_id, day, kind)
), detailed AS (
    INSERT INTO daily_detail (deployment_id, day, kind, is_rest, name, model, runs, input_tokens, output_tokens,
        total_tokens)
    SELECT deployment_id, day, kind, is_rest, CASE WHEN is_rest THEN '' ELSE name END, model, sum(runs),
        sum(input_tokens), sum(output_tokens), sum(total_tokens)
    FROM ranked GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (deployment_id, day, kind, is_rest, name, model) DO UPDATE SET
        runs = daily_detail.runs + excluded.runs, input_tokens = daily_detail.input_tokens + excluded.input_tokens,
        output_tokens = daily_detail.output_tokens + excluded.output_tokens,
        total_tokens = daily_detail.total_tokens + excluded.total_tokens
)
INSERT INTO daily_usage (organization_id, day, deployment_id, key_id, model, runs, input_tokens, output_tokens,
    total_tokens)
SELECT organization_id, day, deployment_id, key_id, model, sum(runs), sum(input_tokens), sum(output_tokens),
    sum(total_tokens)
FROM ended_run_usage WHERE id = ANY(:ids) GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (organization_id, day, deployment_id, key_id, model) DO UPDATE SET
    runs = daily_usage.runs + excluded.runs, input_tokens = daily_usage.input_tokens + excluded.input_tokens,
    output_tokens = daily_usage.output_tokens + excluded.output_tokens,
    total_tokens = daily_usage.total_tokens + excluded.total_tokens

-- name: remove
DELETE FROM figure WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM figure WHERE step_seconds = :step AND at < :before LIMIT :limit))

-- name: remove_usage
DELETE FROM daily_usage WHERE ctid = ANY(ARRAY(SELECT ctid FROM daily_usage WHERE day < :before LIMIT :limit))

-- name: remove_detail
DELETE FROM daily_detail WHERE ctid = ANY(ARRAY(SELECT ctid FROM daily_detail WHERE day < :before LIMIT :limit))

-- name: record_build
INSERT INTO build_figure AS kept (status, seconds, durations)
VALUES (:status, :seconds, histogram_of(ARRAY[histogram_bucket(:seconds)]))
ON CONFLICT (status) DO UPDATE SET seconds = kept.seconds + excluded.seconds,
    durations = sum_histograms(ARRAY[kept.durations, excluded.durations])

-- name: series
-- The figures of an organization, or of one deployment or key of it, by step.
SELECT at, CAST(sum(created) AS bigint) AS created, CAST(sum(success) AS bigint) AS success,
    CAST(sum(error) AS bigint) AS error, CAST(sum(timeout) AS bigint) AS timeout,
    CAST(sum(interrupted) AS bigint) AS interrupted, CAST(sum(attempts) AS bigint) AS attempts,
    CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(output_tokens) AS bigint) AS output_tokens,
    sum_histograms(array_agg(waits)) AS waits, sum_histograms(array_agg(durations)) AS durations,
    sum_histograms(array_agg(first_tokens)) AS first_tokens
FROM figures_since(:step, :since, :organization_id)
WHERE (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
  AND (CAST(:key_id AS text) IS NULL OR key_id = :key_id)
GROUP BY at

-- name: created_and_live
-- The runs that have not ended, by the step in which they were created.
SELECT date_bin(make_interval(secs => :step), r.created_at, to_timestamp(0)) AS at, count(*) AS n
FROM run r JOIN listed_deployment d ON d.id = r.deployment_id AND d.organization_id = :organization_id
WHERE is_live(r.status) AND r.created_at >= :since
  AND (CAST(:deployment_id AS uuid) IS NULL OR r.deployment_id = :deployment_id)
  AND (CAST(:key_id AS text) IS NULL OR r.key_id = :key_id)
GROUP BY 1

-- name: by_deployment
SELECT deployment_id, CAST(sum(success) AS bigint) AS success, CAST(sum(error) AS bigint) AS error,
    CAST(sum(timeout) AS bigint) AS timeout, CAST(sum(interrupted) AS bigint) AS interrupted,
    sum_histograms(array_agg(waits)) AS waits, sum_histograms(array_agg(durations)) AS durations
FROM figures_since(:step, :since, :organization_id) GROUP BY deployment_id

-- name: failures
-- The newest unsuccessful runs of each deployment that have a row, by status and error class. An index finds them by the
-- time of their end, however many runs have ended. The error class is the expression by which runs are searched.
SELECT d.id AS deployment_id, d.name AS deployment, f.status, f.error, count(*) AS runs, max(f.ended_at) AS last_ended_at
FROM listed_deployment d CROSS JOIN LATERAL (
    SELECT status, CASE status WHEN 'error' THEN readable(error) ->> 'error' END AS error, ended_at FROM run
    WHERE deployment_id = d.id AND {unsuccessful} AND ended_at >= :since ORDER BY ended_at DESC LIMIT CAST(:most AS bigint)) f
WHERE d.organization_id = :organization_id AND d.deleted_at IS NULL
GROUP BY d.id, d.name, f.status, f.error ORDER BY runs DESC, d.name, f.status, f.error

-- name: totals
-- The runs of deployments since their creation, with those that are live now.
WITH sums AS (
    SELECT deployment_id, CAST(sum(success) AS bigint) AS success, CAST(sum(error) AS bigint) AS error,
        CAST(sum(timeout) AS bigint) AS timeout, CAST(sum(interrupted) AS bigint) AS interrupted,
        CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(output_tokens) AS bigint) AS output_tokens,
        sum(wait_seconds) AS wait_seconds, sum(duration_seconds) AS duration_seconds,
        sum(first_token_seconds) AS first_token_seconds,
        sum_histograms(array_agg(waits)) AS waits, sum_histograms(array_agg(durations)) AS durations,
        sum_histograms(array_agg(first_tokens)) AS first_tokens
    FROM figures_since(0, to_timestamp(0), :organization_id) GROUP BY deployment_id
), live AS (
    SELECT deployment_id, count(*) FILTER (WHERE status = 'running') AS running,
        count(*) FILTER (WHERE status = 'pending') AS pending
    FROM run WHERE is_live(status) GROUP BY deployment_id
)
SELECT o.name AS organization, d.name AS deployment, s.*, coalesce(l.running, 0) AS running,
    coalesce(l.pending, 0) AS pending
FROM listed_deployment d JOIN organization o ON o.id = d.organization_id
LEFT JOIN sums s ON s.deployment_id = d.id LEFT JOIN live l ON l.deployment_id = d.id
WHERE d.deleted_at IS NULL AND (CAST(:organization_id AS uuid) IS NULL OR d.organization_id = :organization_id)
  AND (CAST(:deployment_id AS uuid) IS NULL OR d.id = :deployment_id)
ORDER BY o.name, d.name

-- name: overview
-- The deployments of an organization, with their live runs.
SELECT d.id, d.name, {status} AS status, d.pool, r.number AS revision_number,
    coalesce(l.running, 0) AS running, coalesce(l.waiting, 0) AS waiting,
    CAST(coalesce(l.oldest, 0) AS double precision) AS oldest_wait_seconds
FROM listed_deployment d LEFT JOIN revision r ON r.id = d.active_revision_id
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status = 'running') AS running, count(*) FILTER (WHERE status = 'pending') AS waiting,
        extract(epoch FROM now() - min(waiting_since(w.not_before, w.created_at)) FILTER (
            WHERE status = 'pending' AND waiting_since(w.not_before, w.created_at) <= now())) AS oldest
    FROM run w WHERE deployment_id = d.id AND is_live(w.status)) l ON true
WHERE d.organization_id = :organization_id AND d.deleted_at IS NULL
ORDER BY d.name, d.id

-- name: queues
-- The live runs by pool and status. The window function follows the order of the index ix_run_live, so that no sort is
-- needed however many runs wait.
SELECT pool, status, count(*) AS runs, coalesce(max(seconds), 0) AS oldest_seconds,
    coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds), 0) AS median_seconds,
    coalesce(max(seconds) FILTER (WHERE is_first), 0) AS oldest_unblocked_seconds
FROM (
    SELECT pool, status, created_seq = min(created_seq) OVER (PARTITION BY deployment_id, thread_id) AS is_first,
        CASE WHEN status = 'running' OR waiting_since(run.not_before, run.created_at) <= now() THEN CAST(extract(epoch FROM
            now() - CASE status WHEN 'running' THEN started_at ELSE waiting_since(run.not_before, run.created_at) END
        ) AS double precision) END AS seconds
    FROM pool_load AS run WHERE is_live(status)
        AND (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
) AS live
GROUP BY pool, status ORDER BY pool, status

-- name: servers
-- Figures of PostgreSQL, upkeep, webhooks and backups. A leader renews its lease while it works.
SELECT
    (SELECT greatest(extract(epoch FROM now() - lease_until) + :lease_seconds, 0) FROM leader
     WHERE role = :upkeep) AS upkeep_silent_seconds,
    (SELECT count(*) FROM run WHERE status = 'running' AND lease_until < now()) AS expired_leases,
    (SELECT max(extract(epoch FROM now() - seen_at)) FROM worker) AS worker_silent_seconds,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL) AS webhooks_waiting,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL AND failure IS NOT NULL) AS webhooks_failing,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at > now() - interval '1 hour' AND failure IS NOT NULL)
        AS webhooks_given_up,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS database_connections,
    CAST(current_setting('max_connections') AS integer) AS database_max_connections,
    (SELECT extract(epoch FROM now() - made_at) FROM last_backup) AS backup_age_seconds

-- name: queue_ages
-- The wait times of pending runs by pool: their sum and histogram.
SELECT pool, sum(seconds) AS seconds, histogram_of(array_agg(histogram_bucket(seconds))) AS histogram FROM (
    SELECT pool, date_part('epoch', now() - waiting_since(not_before, created_at)) AS seconds
    FROM pool_load WHERE status = 'pending' AND waiting_since(not_before, created_at) <= now()) AS waiting
GROUP BY pool ORDER BY pool

-- name: usage
-- What the runs of an organization used between two days, by model and the requested dimensions.
SELECT CASE WHEN :by_day THEN day END AS day, CASE WHEN :by_key THEN key_id END AS key_id,
    CASE WHEN :by_deployment THEN deployment_id END AS deployment_id,
    CASE WHEN :by_source THEN CASE key_id WHEN replay_key() THEN 'replay' ELSE 'runs' END END AS source, model, CAST(sum(runs) AS bigint) AS runs,
    CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(output_tokens) AS bigint) AS output_tokens,
    CAST(sum(total_tokens) AS bigint) AS total_tokens
FROM (
    SELECT day, deployment_id, key_id, model, runs, input_tokens, output_tokens, total_tokens FROM daily_usage
    WHERE organization_id = :organization_id AND day BETWEEN :since AND :until
    UNION ALL
    SELECT day, deployment_id, key_id, model, runs, input_tokens, output_tokens, total_tokens FROM ended_run_usage
    WHERE organization_id = :organization_id AND day BETWEEN :since AND :until
) AS used
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT :limit

-- name: detail
-- What the runs of an organization used between two days by user or node, by model and the requested dimensions. Of the names
-- only those with the most tokens are returned; the others are one row, with `is_rest`.
WITH used AS (
    SELECT day, deployment_id, is_rest, name, model, runs, input_tokens, output_tokens, total_tokens FROM daily_detail
    WHERE deployment_id IN (SELECT id FROM deployment WHERE organization_id = :organization_id)
      AND kind = :kind AND day BETWEEN :since AND :until
    UNION ALL
    SELECT day, deployment_id, false, name, model, runs, input_tokens, output_tokens, total_tokens FROM ended_run_detail
    WHERE organization_id = :organization_id AND kind = :kind AND day BETWEEN :since AND :until
), top AS (
    SELECT name FROM used WHERE NOT is_rest GROUP BY name ORDER BY sum(total_tokens) DESC, name LIMIT :names
)
SELECT CASE WHEN :by_day THEN u.day END AS day, CASE WHEN :by_deployment THEN u.deployment_id END AS deployment_id,
    u.is_rest OR top.name IS NULL AS is_rest, CASE WHEN NOT u.is_rest THEN top.name END AS name, u.model,
    CAST(sum(u.runs) AS bigint) AS runs, CAST(sum(u.input_tokens) AS bigint) AS input_tokens,
    CAST(sum(u.output_tokens) AS bigint) AS output_tokens, CAST(sum(u.total_tokens) AS bigint) AS total_tokens
FROM used u LEFT JOIN top USING (name)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT :limit

-- name: budgets
-- The deployments and keys with a budget. Benches are among them: the bound of a replay stops a case that exceeds it.
SELECT b.* FROM (
    SELECT 'deployment' AS kind, CAST(id AS text) AS id, budget_webhook, max_tokens_per_day, max_run_tokens,
        max_cost_per_day, max_run_cost, max_user_tokens_per_day, max_user_cost_per_day, max_thread_tokens_per_day,
        max_thread_cost_per_day
    FROM deployment WHERE deleted_at IS NULL
    UNION ALL
    SELECT 'key', id, budget_webhook, max_tokens_per_day, max_run_tokens, max_cost_per_day, max_run_cost,
        NULL, NULL, NULL, NULL
    FROM api_key
) AS b
WHERE num_nonnulls(max_tokens_per_day, max_run_tokens, max_cost_per_day, max_run_cost, max_user_tokens_per_day,
    max_user_cost_per_day, max_thread_tokens_per_day, max_thread_cost_per_day) > 0

-- name: spent
-- What accounts have used today, and when the next day begins.
SELECT a.kind, a.id, coalesce(s.tokens, 0) AS tokens, coalesce(s.cost, 0) AS cost,
    CAST(utc_date(now()) + 1 AS timestamp) AT TIME ZONE 'UTC' AS resets_at
FROM unnest(:kinds, :ids) AS a (kind, id)
LEFT JOIN spent_tokens s ON s.kind = a.kind AND s.id = a.id AND s.day = utc_date(now())

-- name: rest_of_day
SELECT extract(epoch FROM CAST(utc_date(now()) + 1 AS timestamp) AT TIME ZONE 'UTC' - now()) AS seconds

-- name: spend
-- Counts tokens and cost for the accounts of a run, in the order of their keys, so that two runs cannot deadlock. Records the
-- shares of limits that are reached and the models without a price, each once a day, with their webhooks and log lines. A
-- deployment may have any number of users and threads, so their limits have no log lines. Everything is one statement,
-- because the connection may be in autocommit mode.
WITH account AS (
    SELECT * FROM unnest(:kinds, :ids) AS a (kind, id)
), counted AS (
    INSERT INTO spent_tokens AS s (kind, id, day, tokens, cost)
    SELECT kind, id, utc_date(now()), :tokens, CAST(:cost AS numeric) FROM account ORDER BY kind, id
    ON CONFLICT (kind, id, day) DO UPDATE SET tokens = {tokens}, cost = {cost}
    RETURNING s.kind, s.id, s.day, s.tokens, s.cost
), alert AS (
    INSERT INTO budget_alert (kind, id, day, name, most, percent)
    SELECT c.kind, c.id, c.day, l.name, l.most, share.percent
    FROM counted c JOIN (
        SELECT kind, id, name, unit, CAST(most AS numeric) AS most
        FROM unnest(:limit_kinds, :limit_ids, :names, :units, :mosts) AS l (kind, id, name, unit, most)
    ) AS l ON l.kind = c.kind AND l.id = c.id
    CROSS JOIN (VALUES (50), (80), (100)) AS share (percent)
    WHERE CASE l.unit WHEN 'cost' THEN c.cost ELSE c.tokens END * 100 >= l.most * share.percent
    UNION ALL
    SELECT 'deployment', CAST(CAST(:deployment_id AS uuid) AS text), utc_date(now()), model, 0, 0
    FROM unnest(:unpriced) AS model
    WHERE CAST(:most_unpriced AS bigint) > (SELECT count(*) FROM budget_alert
        WHERE kind = 'deployment' AND id = CAST(CAST(:deployment_id AS uuid) AS text) AND day = utc_date(now()) AND percent = 0)
    ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT DO NOTHING
    RETURNING *
), notice AS (
    SELECT a.*, l.url, CASE WHEN a.percent = 0 THEN 'budget.unpriced' ELSE 'budget.reached' END AS event,
        CASE WHEN l.unit = 'cost' THEN c.cost ELSE c.tokens END AS used, l.unit
    FROM alert a
    LEFT JOIN unnest(:limit_kinds, :limit_ids, :names, :units, :urls) AS l (kind, id, name, unit, url)
        ON l.kind = a.kind AND l.id = a.id AND l.name = a.name
    LEFT JOIN counted c ON c.kind = a.kind AND c.id = a.id
), logged AS (
    INSERT INTO log_line (deployment_id, run_id, kind, level, message)
    SELECT :deployment_id, CAST(:run_id AS uuid), 'deploy', 'WARNING', CASE WHEN percent = 0
        THEN 'The model ' || name || ' has no price in RUNYARD_MODEL_PRICES: budgets in dollars count it as 0.'
        ELSE concat(percent, ' % of ', name, ' of the ', kind, ' is used: ', trim_scale(used), ' of ', trim_scale(most)) END
    FROM notice WHERE kind IN ('deployment', 'key') ORDER BY name, percent
), sent AS (
    INSERT INTO webhook_delivery (delivery_id, deployment_id, url, status, run, values)
    SELECT gen_random_uuid(), CAST(:deployment_id AS uuid), coalesce(url, CAST(:unpriced_url AS text)), event, '{}',
        json_build_object('kind', kind, 'id', id, 'day', day, 'name', name, 'limit', most, 'percent', percent,
            'used', used, 'unit', unit)
    FROM notice WHERE CASE percent WHEN 0 THEN CAST(:unpriced_url AS text) ELSE url END IS NOT NULL
)
SELECT kind, id, tokens, cost, CAST(day + 1 AS timestamp) AT TIME ZONE 'UTC' AS resets_at FROM counted

-- name: used_today
-- What the runs of a deployment or key have used today by the figures, folded and not, by model.
SELECT model, CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(output_tokens) AS bigint) AS output_tokens
FROM (
    SELECT deployment_id, key_id, model, input_tokens, output_tokens FROM daily_usage WHERE day = utc_date(now())
    UNION ALL
    SELECT deployment_id, key_id, model, input_tokens, output_tokens FROM ended_run_usage WHERE day = utc_date(now())
) AS used
WHERE key_id <> replay_key() AND model <> ''
  AND CASE :kind WHEN 'deployment' THEN CAST(deployment_id AS text) ELSE key_id END = :id
GROUP BY model

-- name: remove_spent
DELETE FROM spent_tokens WHERE day < utc_date(now()) - :days

-- name: remove_alerts
DELETE FROM budget_alert WHERE day < utc_date(now()) - :days
