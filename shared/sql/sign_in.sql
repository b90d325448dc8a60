-- Sign-in with OpenID Connect: shared/access/sessions.py and shared/access/device_logins.py.

-- name: store_account
INSERT INTO account (id, issuer, subject, name) VALUES (:id, :issuer, :subject, :name)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, signed_in_at = now()

-- name: create_session
INSERT INTO session (id, account_id, organization_id, role, id_token, expires_at)
VALUES (:id, :account_id, :organization_id, :role, :id_token, now() + make_interval(secs => :seconds))

-- name: session
SELECT s.account_id, s.organization_id, s.role, s.expires_at, a.name, o.name AS organization_name,
  s.expires_at <= now() AS is_expired, s.used_at < now() - make_interval(secs => :idle_seconds) AS is_idle
FROM session s JOIN account a ON a.id = s.account_id JOIN organization o ON o.id = s.organization_id
WHERE s.id = :id AND a.issuer = :issuer AND o.deleted_at IS NULL

-- name: note_use
UPDATE session SET used_at = now() WHERE id = :id AND used_at < now() - make_interval(secs => :grain_seconds)

-- name: end_session
DELETE FROM session s USING account a WHERE s.id = :id AND a.id = s.account_id
RETURNING s.id_token, s.organization_id, a.id AS account_id, a.name

-- name: purge_sessions
-- Ended sessions stay for a while, so that their users learn why they have ended.
DELETE FROM session WHERE least(expires_at, used_at + make_interval(secs => :idle_seconds))
  < now() - make_interval(secs => :kept_seconds)

-- name: purge_accounts
DELETE FROM account a WHERE signed_in_at < now() - make_interval(days => :days)
  AND NOT EXISTS (SELECT FROM session s WHERE s.account_id = a.id)

-- name: count_device_logins
SELECT count(*) AS total, count(*) FILTER (WHERE address = :address) AS of_address
FROM device_login WHERE expires_at > now()

-- name: create_device_login
INSERT INTO device_login (id, user_code_hash, device, address, interval_seconds, expires_at)
VALUES (:id, :user_code_hash, :device, :address, :interval_seconds, now() + make_interval(secs => :seconds))

-- name: pending_device_login
SELECT device, address, expires_at FROM device_login
WHERE user_code_hash = :user_code_hash AND expires_at > now() AND account_id IS NULL AND denied_at IS NULL

-- name: answer_device_login
UPDATE device_login SET account_id = :account_id, organization_id = :organization_id, role = :role,
  denied_at = CASE WHEN :is_approved THEN NULL ELSE now() END
WHERE user_code_hash = :user_code_hash AND expires_at > now() AND account_id IS NULL AND denied_at IS NULL

-- name: poll_device_login
-- The row is locked, so that only one of several polls gets the key.
SELECT d.device, d.account_id, d.organization_id, d.role, d.denied_at IS NOT NULL AS is_denied,
  d.interval_seconds, o.name AS organization_name, a.name,
  d.polled_at > now() - make_interval(secs => d.interval_seconds) AS is_too_soon
FROM device_login d LEFT JOIN organization o ON o.id = d.organization_id AND o.deleted_at IS NULL
  LEFT JOIN account a ON a.id = d.account_id
WHERE d.id = :id AND d.expires_at > now() FOR UPDATE OF d

-- name: note_poll
UPDATE device_login SET polled_at = now(), interval_seconds = :interval_seconds WHERE id = :id

-- name: end_device_login
DELETE FROM device_login WHERE id = :id

-- name: purge_device_logins
DELETE FROM device_login WHERE expires_at < now()
