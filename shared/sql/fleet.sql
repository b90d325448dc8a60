-- Workers, pools and leaders: shared/fleet.py. A worker without a heartbeat for `silent_seconds` is silent.

-- name: record_heartbeat
-- A worker that drains without an operator's request shuts down: it cannot be resumed.
INSERT INTO worker (id, kind, pool, host_name, pid, version, isolation, bounds_tasks, bounds_memory, state, slots,
    running, ended_a_minute, heard_seconds, hosts, drain_requested_at)
VALUES (:id, :kind, :pool, :host_name, :pid, :version, :isolation, :bounds_tasks, :bounds_memory, :state, :slots,
    :running, :ended_a_minute, :heard_seconds, CAST(:hosts AS json), CASE WHEN :is_drained THEN now() END)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), slots = excluded.slots, running = excluded.running,
    ended_a_minute = excluded.ended_a_minute, heard_seconds = excluded.heard_seconds, hosts = excluded.hosts,
    drain_requested_at = CASE WHEN :is_drained OR excluded.state <> 'draining' THEN worker.drain_requested_at END,
    state = CASE WHEN worker.drain_requested_at IS NULL THEN excluded.state ELSE 'draining' END
RETURNING drain_requested_at IS NOT NULL AS is_drained

-- name: has_runner
SELECT EXISTS (
    SELECT FROM worker WHERE kind = 'runner' AND pool = :pool AND state = 'ready'
      AND seen_at >= now() - make_interval(secs => :silent_seconds)) AS has_runner

-- name: all
SELECT *, extract(epoch FROM now() - seen_at) AS silent_seconds,
    seen_at < now() - make_interval(secs => :silent_seconds) AS is_silent
FROM worker ORDER BY started_at, id

-- name: names_of_revisions
SELECT CAST(r.id AS text) AS revision_id, r.number AS revision_number, d.id AS deployment_id, d.name AS deployment
FROM revision r JOIN deployment d ON d.id = r.deployment_id
WHERE r.id = ANY(CAST(:ids AS uuid[]))
  AND (CAST(:organization_id AS uuid) IS NULL OR d.organization_id = :organization_id)

-- name: pools
WITH live AS (
    SELECT pool, count(*) FILTER (WHERE status = 'running') AS running,
        count(*) FILTER (WHERE status = 'pending' AND waiting_since(run.not_before, run.created_at) <= now()) AS pending,
        extract(epoch FROM now() - min(waiting_since(run.not_before, run.created_at))
            FILTER (WHERE status = 'pending' AND waiting_since(run.not_before, run.created_at) <= now())) AS oldest
    FROM pool_load AS run WHERE is_live(status) GROUP BY pool
), serving AS (
    SELECT pool, count(*) FILTER (WHERE NOT is_silent) AS runners, count(*) FILTER (WHERE is_silent) AS silent,
        count(*) FILTER (WHERE state = 'draining' AND NOT is_silent) AS draining,
        sum(slots) FILTER (WHERE state = 'ready' AND NOT is_silent) AS slots,
        sum(ended_a_minute) FILTER (WHERE NOT is_silent) AS ended,
        sum(json_array_length(hosts)) FILTER (WHERE NOT is_silent) AS hosts
    FROM (SELECT *, seen_at < now() - make_interval(secs => :silent_seconds) AS is_silent
          FROM worker WHERE kind = 'runner') AS runner GROUP BY pool
), known AS (
    SELECT pool FROM live UNION SELECT pool FROM serving
    UNION SELECT pool FROM listed_deployment WHERE deleted_at IS NULL
)
SELECT k.pool AS name, coalesce(s.runners, 0) AS runners, coalesce(s.draining, 0) AS draining,
    coalesce(s.silent, 0) AS silent,
    CAST(coalesce(s.slots, 0) AS bigint) AS slots, CAST(coalesce(s.hosts, 0) AS bigint) AS hosts,
    coalesce(l.running, 0) AS running, coalesce(l.pending, 0) AS pending,
    CAST(coalesce(l.oldest, 0) AS double precision) AS oldest_wait_seconds,
    CAST(coalesce(s.ended, 0) AS bigint) AS ended_a_minute
FROM known k LEFT JOIN live l ON l.pool = k.pool LEFT JOIN serving s ON s.pool = k.pool
ORDER BY k.pool

-- name: counted
-- Nested runs do not use the slots that a runner reports (shared/runs/nesting.py).
WITH nested AS (SELECT owner, count(*) AS runs FROM run WHERE status = 'running' AND depth > 0 GROUP BY owner),
known AS (
    SELECT id, kind, pool, state, slots, running, ended_a_minute, json_array_length(hosts) AS hosts
    FROM worker WHERE seen_at >= now() - make_interval(secs => :silent_seconds)
    UNION ALL
    SELECT id, kind, pool, 'silent', 0, 0, 0, 0
    FROM worker WHERE seen_at < now() - make_interval(secs => :silent_seconds)
)
SELECT kind, pool, state, count(*) AS workers, CAST(sum(slots) AS bigint) AS slots,
    CAST(sum(running) AS bigint) AS running, CAST(sum(ended_a_minute) AS bigint) AS ended,
    CAST(sum(CASE state WHEN 'ready' THEN
        greatest(slots - greatest(running - coalesce(n.runs, 0), 0), 0) ELSE 0 END) AS bigint) AS available,
    CAST(sum(hosts) AS bigint) AS hosts
FROM known LEFT JOIN nested n ON n.owner = known.id GROUP BY kind, pool, state ORDER BY kind, pool, state

-- name: claim_leadership
-- While another process leads, the statement locks and writes nothing. A lease that ends later than any lease can was
-- written before the database's clock was put back, and is ignored.
INSERT INTO leader AS held (role, owner, lease_until)
SELECT :role, :owner, now() + make_interval(secs => :lease_seconds)
WHERE NOT EXISTS (SELECT FROM leader WHERE role = :role AND owner <> :owner
    AND lease_until > now() AND lease_until <= now() + make_interval(secs => 2 * :lease_seconds))
ON CONFLICT (role) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until
WHERE held.owner = excluded.owner OR held.lease_until <= now()
   OR held.lease_until > now() + make_interval(secs => 2 * :lease_seconds)
