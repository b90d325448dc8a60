-- Removal of deleted deployments, expired threads, old revisions, old runs and old log lines: shared/removal.

-- name: stop_pending
-- The reserved event numbers are for the last event of each run's log.
UPDATE run SET status = 'interrupted', ended_at = now(), updated_at = now(), cancel_reason = :reason,
    seq_reserved = seq_reserved + :reserved
WHERE run_id IN (
    SELECT run_id FROM run WHERE deployment_id = :id AND status = 'pending' AND cancel_requested IS NULL
    LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING run_id, NULL AS owner, attempt, seq_reserved - :reserved AS seq_reserved

-- name: stop_running
UPDATE run SET cancel_requested = 'interrupt', cancel_reason = :reason
WHERE run_id IN (
    SELECT run_id FROM run WHERE deployment_id = :id AND status = 'running' AND cancel_requested IS NULL
    LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING run_id, owner, attempt, seq_reserved

-- name: deleted_deployments
SELECT id, deleted_at < now() - make_interval(secs => :grace_seconds)
           OR NOT EXISTS (SELECT FROM run WHERE deployment_id = d.id AND status = 'running')
              AND NOT EXISTS (SELECT FROM webhook_delivery WHERE deployment_id = d.id AND attempt = 0) AS is_quiet
FROM deployment d WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 5 FOR UPDATE SKIP LOCKED

-- name: threads
DELETE FROM thread WHERE deployment_id = :id AND thread_id IN (
    SELECT thread_id FROM thread WHERE deployment_id = :id LIMIT :limit)

-- name: log_lines
DELETE FROM log_line WHERE id IN (SELECT id FROM log_line WHERE deployment_id = :id LIMIT :limit)

-- name: figures_of_users
DELETE FROM daily_detail WHERE ctid = ANY(ARRAY(SELECT ctid FROM daily_detail WHERE deployment_id = :id LIMIT :limit))

-- name: bulk_runs
DELETE FROM bulk_run WHERE (operation_id, position) IN (
    SELECT r.operation_id, r.position FROM bulk_operation o JOIN bulk_run r ON r.operation_id = o.id
    WHERE o.deployment_id = :id LIMIT :limit)

-- name: replay_cases
DELETE FROM replay_case WHERE (replay_id, position) IN (
    SELECT c.replay_id, c.position FROM replay p JOIN replay_case c ON c.replay_id = p.id
    WHERE p.bench_id = :id LIMIT :limit)

-- name: assistants
DELETE FROM assistant WHERE deployment_id = :id AND assistant_id IN (
    SELECT assistant_id FROM assistant WHERE deployment_id = :id LIMIT :limit)

-- name: revisions
DELETE FROM revision WHERE id IN (SELECT id FROM revision WHERE deployment_id = :id LIMIT :limit)

-- name: emptied_deployment
-- The last runs of the deployment and of its benches must be folded into the organization's figures before.
DELETE FROM deployment WHERE id = :id AND NOT EXISTS (SELECT FROM ended_run WHERE deployment_id = :id)
  AND NOT EXISTS (SELECT FROM bench WHERE replay_of = :id)

-- name: expired_threads
-- The condition and the order are those of the index ix_thread_expires, so threads that have not expired or were already
-- reduced are not read.
SELECT deployment_id, thread_id FROM thread AS t
WHERE ttl_minutes IS NOT NULL AND (swept_at IS NULL OR swept_at < updated_at)
  AND (updated_at AT TIME ZONE 'UTC') + make_interval(secs => least(ttl_minutes, '50000000') * '60')
      < now() AT TIME ZONE 'UTC'
  AND NOT EXISTS (SELECT FROM run AS r WHERE r.deployment_id = t.deployment_id
                  AND r.thread_id = t.thread_id AND is_live(r.status))
ORDER BY (updated_at AT TIME ZONE 'UTC') + make_interval(secs => least(ttl_minutes, '50000000') * '60') LIMIT :limit

-- name: ttl_strategy
-- The strategy of a thread that has expired. Checked again after locking the thread: a run may have been created and ended
-- before.
SELECT ttl_strategy, is_listed FROM thread
WHERE deployment_id = :deployment_id AND thread_id = :thread_id
  AND ttl_minutes IS NOT NULL AND (swept_at IS NULL OR swept_at < updated_at)
  AND (updated_at AT TIME ZONE 'UTC') + make_interval(secs => least(ttl_minutes, '50000000') * '60')
      < now() AT TIME ZONE 'UTC'

-- name: old_revisions
-- Locks the deployments' rows, so that no request redeploys an old revision while it is removed.
SELECT r.id FROM deployment d
CROSS JOIN (VALUES (false), (true)) AS kind(is_preview)
JOIN LATERAL (SELECT number FROM revision WHERE deployment_id = d.id AND (preview IS NOT NULL) = kind.is_preview
              ORDER BY number DESC OFFSET :kept - 1 LIMIT 1) AS last_kept ON true
JOIN revision r ON r.deployment_id = d.id AND (r.preview IS NOT NULL) = kind.is_preview
    AND r.number < last_kept.number
WHERE d.deleted_at IS NULL AND r.status = ANY(:ends) AND r.id IS DISTINCT FROM d.latest_revision_id
  AND coalesce(d.traffic_at < now() - make_interval(secs => :settled_seconds), true)
  AND NOT EXISTS (SELECT FROM revision a WHERE a.id = d.active_revision_id
                  AND a.updated_at > now() - make_interval(secs => :settled_seconds))
  AND NOT EXISTS (SELECT FROM run WHERE deployment_id = d.id AND revision_id = r.id AND is_live(status))
  AND NOT EXISTS (SELECT FROM replay WHERE revision_id = r.id AND ended_at IS NULL)
  AND NOT takes_traffic(r.id, d.active_revision_id, d.traffic)
ORDER BY r.id LIMIT :limit
FOR UPDATE OF d SKIP LOCKED

-- name: build_log
DELETE FROM log_line WHERE id IN (
    SELECT id FROM log_line WHERE revision_id = :revision_id AND kind = :kind LIMIT :limit)

-- name: old_log_lines
-- The oldest line to keep is found by the index alone. Most deployments have fewer than `most` lines.
DELETE FROM log_line WHERE id IN (
    SELECT id FROM log_line
    WHERE deployment_id = :deployment_id AND kind = :kind
      AND at < greatest(now() - make_interval(secs => :seconds),
                        (SELECT at FROM log_line WHERE deployment_id = :deployment_id AND kind = :kind
                         ORDER BY at DESC, id DESC OFFSET :most - 1 LIMIT 1))
    ORDER BY at LIMIT :limit)

-- name: old_runs
-- The condition on the status is that of the index ix_run_ended. The last started run of an interrupted thread raised its
-- open interrupt, and is kept until there is an answer. That subquery is evaluated per run in index order, oldest first,
-- because run ids are in the order of creation.
DELETE FROM run WHERE run_id = ANY(ARRAY(
    SELECT r.run_id FROM run r
    WHERE r.deployment_id = :deployment_id AND r.status IN ('success', 'error', 'timeout', 'interrupted')
      AND r.run_id < :least_id AND r.ended_at < :before
      AND (SELECT r.created_seq = (
              SELECT created_seq FROM run AS started
              WHERE started.deployment_id = r.deployment_id AND started.thread_id = r.thread_id AND started.attempt > 0
              ORDER BY created_seq DESC LIMIT 1)
           FROM thread t WHERE t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
             AND t.rest_status = 'interrupted') IS NOT TRUE
    ORDER BY r.run_id LIMIT :limit FOR UPDATE OF r SKIP LOCKED))
