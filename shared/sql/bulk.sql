-- Bulk operations on runs: shared/runs/bulk.py.

-- name: create
-- Inserts an operation with its runs, oldest first. No row if the deployment has `most_open` operations that are not complete.
WITH operation AS (
    SELECT CAST(:id AS uuid) AS id
    WHERE :most_open > (SELECT count(*) FROM bulk_operation WHERE deployment_id = :deployment_id AND ended_at IS NULL)
), selected AS (
    INSERT INTO bulk_run (operation_id, position, run_id, thread_id)
    SELECT operation.id, row_number() OVER (ORDER BY run_id), run_id, thread_id FROM operation, (
        SELECT run_id, thread_id FROM run WHERE {condition} ORDER BY run_id LIMIT :most) AS found
    RETURNING position
)
INSERT INTO bulk_operation (id, deployment_id, action, criteria, revision_id, force, rate, created_by, total)
SELECT operation.id, :deployment_id, :action, CAST(:criteria AS jsonb), :revision_id, :force, :rate,
    CAST(:created_by AS jsonb), (SELECT count(*) FROM selected)
FROM operation RETURNING total

-- name: count_runs
SELECT count(*) AS n FROM (SELECT FROM run WHERE {condition} LIMIT :most) AS found

-- name: examples
SELECT {columns} FROM run WHERE {condition} ORDER BY run_id LIMIT :limit

-- name: get
SELECT {columns} FROM bulk_operation WHERE deployment_id = :deployment_id AND id = :id

-- name: search
SELECT {columns} FROM bulk_operation WHERE deployment_id = :deployment_id ORDER BY id DESC LIMIT :limit OFFSET :offset

-- name: runs
SELECT {columns} FROM bulk_run WHERE operation_id = :operation_id
  AND (CAST(:outcome AS text) IS NULL OR outcome = :outcome)
ORDER BY position LIMIT :limit OFFSET :offset

-- name: cancel
UPDATE bulk_operation SET status = 'cancelled', ended_at = now()
WHERE id = :id AND deployment_id = :deployment_id AND ended_at IS NULL

-- name: due
SELECT o.id, o.deployment_id FROM bulk_operation o JOIN deployment d ON d.id = o.deployment_id
WHERE o.ended_at IS NULL AND d.deleted_at IS NULL ORDER BY o.id

-- name: next
-- An operation that is not complete, with its next runs.
SELECT o.deployment_id, o.action, o.revision_id, o.force, o.rate, r.position, r.run_id, r.thread_id
FROM bulk_operation o JOIN bulk_run r ON r.operation_id = o.id
WHERE o.id = :id AND o.ended_at IS NULL AND r.outcome IS NULL ORDER BY r.position LIMIT :limit

-- name: lock
-- Locks one run of an operation. No row if another process has it, or if it is done.
SELECT r.position FROM bulk_run r JOIN bulk_operation o ON o.id = r.operation_id
WHERE r.operation_id = :operation_id AND r.position = :position AND r.outcome IS NULL AND o.ended_at IS NULL
FOR UPDATE OF r SKIP LOCKED

-- name: finish_run
WITH finished AS (
    UPDATE bulk_run SET outcome = :outcome, detail = :detail, new_run_id = :new_run_id, ended_at = now()
    WHERE operation_id = :operation_id AND position = :position AND outcome IS NULL
    RETURNING outcome
)
UPDATE bulk_operation o SET done = done + CAST(outcome = 'done' AS integer),
    skipped = skipped + CAST(outcome = 'skipped' AS integer), failed = failed + CAST(outcome = 'failed' AS integer)
FROM finished WHERE o.id = :operation_id

-- name: finish
UPDATE bulk_operation SET status = 'done', ended_at = now()
WHERE id = :id AND ended_at IS NULL
  AND NOT EXISTS (SELECT FROM bulk_run WHERE operation_id = :id AND outcome IS NULL)

-- name: remove_old
-- Removes some runs of an operation that ended long ago, then the operation: all its runs in one statement could take too long.
WITH old AS (
    SELECT id FROM bulk_operation WHERE ended_at < now() - make_interval(secs => :days * 86400) ORDER BY id LIMIT 1
), removed AS (
    DELETE FROM bulk_run WHERE (operation_id, position) IN (
        SELECT r.operation_id, r.position FROM old JOIN bulk_run r ON r.operation_id = old.id
        ORDER BY r.position LIMIT :limit)
    RETURNING position
), emptied AS (
    DELETE FROM bulk_operation o USING old
    WHERE o.id = old.id AND NOT EXISTS (SELECT FROM bulk_run r WHERE r.operation_id = o.id)
    RETURNING o.id
)
SELECT position FROM removed UNION ALL SELECT 0 FROM emptied
