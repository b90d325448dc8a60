-- Links that let a person without an account answer one question: shared/inbox/links.py.

-- name: create
-- Inserts a link for a question that is open and has fewer than `most` links that are valid.
INSERT INTO question_link (link_id, question_id, token_hash, label, created_by, expires_at)
SELECT :link_id, q.question_id, :token_hash, :label, coalesce(key_label(:key_id), ''),
    now() + make_interval(secs => :seconds)
FROM question q
WHERE q.question_id = :question_id AND q.closed_at IS NULL AND :most > (
    SELECT count(*) FROM question_link o
    WHERE o.question_id = q.question_id AND o.used_at IS NULL AND o.revoked_at IS NULL AND o.expires_at > now())
RETURNING {columns}

-- name: list
SELECT {columns} FROM question_link WHERE question_id = :question_id ORDER BY created_at, link_id LIMIT :limit

-- name: question_of
-- The question of a link of the organization.
SELECT l.question_id FROM question_link l
JOIN question q ON q.question_id = l.question_id
JOIN deployment d ON d.id = q.deployment_id
WHERE l.link_id = :link_id AND d.organization_id = :organization_id AND d.deleted_at IS NULL

-- name: revoke
UPDATE question_link SET revoked_at = now() WHERE link_id = :link_id AND revoked_at IS NULL

-- name: find
-- A link by the hash of its token, with its question, and whether it is valid still.
SELECT l.link_id, l.label, l.revoked_at IS NOT NULL AS is_revoked, l.used_at IS NOT NULL AS is_used,
    l.expires_at <= now() AS is_expired, q.question_id, q.closed_at IS NOT NULL AS is_closed, q.deployment_id,
    q.thread_id, q.kind, q.value, q.title, q.asked_at, d.name AS deployment_name,
    encode(sha256(convert_to(CAST(q.value AS text), 'UTF8')), 'hex') AS version,
    CASE WHEN q.expired_at IS NULL AND q.on_expiry ->> 'action' IN ('answer', 'cancel')
        THEN least(l.expires_at, q.expires_at) ELSE l.expires_at END AS expires_at
FROM question_link l
JOIN question q ON q.question_id = l.question_id
JOIN deployment d ON d.id = q.deployment_id
WHERE l.token_hash = :token_hash AND d.deleted_at IS NULL

-- name: use
UPDATE question_link SET used_at = now()
WHERE link_id = :link_id AND used_at IS NULL AND revoked_at IS NULL AND expires_at > now()
