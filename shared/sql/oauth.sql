-- Users' tokens at OAuth providers, and requests for their consent: shared/oauth.

-- name: consume_request
-- Succeeds once for each state. Without an organization, only the state identifies the request.
UPDATE oauth_request r SET status = 'exchanging' FROM oauth_provider p
WHERE r.state_hash = :state_hash AND r.status = 'pending' AND r.expires_at > now()
  AND p.id = r.provider_key AND p.provider_id = :provider_id
  AND r.organization_id = coalesce(:organization_id, r.organization_id)
RETURNING r.*

-- name: result_of_request
SELECT r.status, r.error, g.access_token FROM oauth_request r LEFT JOIN oauth_grant g ON g.id = r.grant_id
WHERE r.id = :id AND r.organization_id = :organization_id AND r.expires_at > now()

-- name: tokens_of_user
-- Best first: the agent's own before a shared one, then the default, then the newest.
SELECT *, coalesce(expires_at <= now(), false) AS is_expired FROM oauth_grant
WHERE provider_key = :provider_key AND organization_id = :organization_id AND user_id = :user_id
  AND (agent_id IS NULL OR agent_id = :agent_id)
ORDER BY agent_id NULLS LAST, is_default DESC, id DESC

-- name: token
SELECT *, coalesce(expires_at <= now(), false) AS is_expired FROM oauth_grant WHERE id = :id

-- name: token_record
SELECT {columns} FROM oauth_grant g JOIN oauth_provider p ON p.id = g.provider_key
WHERE g.organization_id = :organization_id AND g.id = :id

-- name: token_records
SELECT {columns} FROM oauth_grant g JOIN oauth_provider p ON p.id = g.provider_key
WHERE g.organization_id = :organization_id
  AND (CAST(:provider_id AS text) IS NULL OR p.provider_id = :provider_id)
  AND (CAST(:user_id AS text) IS NULL OR g.user_id = :user_id)
ORDER BY g.id

-- name: claim_refresh
UPDATE oauth_grant SET refreshing_until = now() + make_interval(secs => :lease_seconds)
WHERE id = :id AND expires_at <= now() AND refresh_token IS NOT NULL
  AND (refreshing_until IS NULL OR refreshing_until <= now())

-- name: scopes_of_owner
SELECT id, requested FROM oauth_grant
WHERE organization_id = :organization_id AND provider_key = :provider_key AND user_id = :user_id
  AND agent_id IS NOT DISTINCT FROM :agent_id

-- name: unset_default
UPDATE oauth_grant SET is_default = false
WHERE organization_id = :organization_id AND provider_key = :provider_key AND user_id = :user_id
  AND agent_id IS NOT DISTINCT FROM :agent_id

-- name: secrets_of_tokens
SELECT p.provider_id, g.access_token, g.refresh_token
FROM oauth_grant g JOIN oauth_provider p ON p.id = g.provider_key
WHERE g.organization_id = :organization_id AND g.id = ANY(:ids) ORDER BY g.id
