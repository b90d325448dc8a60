-- Feedback on runs: shared/runs/feedback.py.

-- name: put
-- Inserts a record, or replaces the one of the same source. No row if the run is gone, or has `most` other records.
INSERT INTO run_feedback (run_id, key, source, deployment_id, score, value, comment, correction)
SELECT run_id, :key, :source, deployment_id, CAST(:score AS float8), CAST(:value AS json), :comment, CAST(:correction AS json)
FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id AND :most > (
    SELECT count(*) FROM run_feedback f
    WHERE f.run_id = :run_id AND (f.key, f.source) IS DISTINCT FROM (CAST(:key AS text), CAST(:source AS text)))
FOR KEY SHARE OF run
ON CONFLICT (run_id, key, source) DO UPDATE SET score = excluded.score, value = excluded.value,
    comment = excluded.comment, correction = excluded.correction, updated_at = now()
RETURNING {columns}

-- name: has_run
SELECT FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id

-- name: list
SELECT {columns} FROM run_feedback WHERE run_id = :run_id ORDER BY created_at, key, source

-- part: matches
-- Whether the run `run` has feedback that a filter selects.
EXISTS (SELECT FROM run_feedback f
        WHERE f.deployment_id = run.deployment_id AND f.run_id = run.run_id AND f.key = CAST(:feedback_key AS text)
          AND (CAST(:feedback_below AS float8) IS NULL OR f.score < CAST(:feedback_below AS float8))
          AND (CAST(:feedback_at_least AS float8) IS NULL OR f.score >= CAST(:feedback_at_least AS float8)))

-- part: of_case
-- The feedback on the past run `r` of a case, as the project's scorer gets it.
(SELECT json_agg(json_build_object('key', f.key, 'score', f.score, 'value', f.value, 'comment', f.comment,
                                   'correction', f.correction) ORDER BY f.created_at)
 FROM run_feedback f WHERE f.run_id = r.run_id)

-- part: scores
-- The mean score of each key of a case's past run. NULL without feedback.
(SELECT json_object_agg(f.key, f.score) FROM (
    SELECT key, avg(score) AS score FROM run_feedback WHERE run_id = replay_case.run_id GROUP BY key) AS f)
