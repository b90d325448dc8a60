-- The audit log of an organization: shared/audit.py.

-- install: record_revision_end_1
-- Trigger of `revision`: records that a revision was deployed or failed. The builder, upkeep and web end revisions.
CREATE OR REPLACE FUNCTION record_revision_end_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
INSERT INTO audit_entry (organization_id, action, deployment_id, subject, actor, detail)
SELECT d.organization_id, CASE NEW.status WHEN 'DEPLOYED' THEN 'revision.deployed' ELSE 'revision.failed' END, d.id,
    d.name, CAST(readable(NEW.created_by) AS jsonb), jsonb_strip_nulls(jsonb_build_object('revision_id', NEW.id,
        'revision_number', NEW.number, 'preview', NEW.preview, 'status', NEW.status))
FROM deployment d WHERE d.id = NEW.deployment_id;
RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER record_revision_end AFTER UPDATE ON revision FOR EACH ROW
WHEN (OLD.status IS DISTINCT FROM NEW.status
    AND NEW.status IN ('DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED'))
EXECUTE FUNCTION record_revision_end_1();

-- install: refuse_audit_change_1
-- Trigger of `audit_entry`: no entry is changed, and only the transactions of `begin_removal` delete entries.
CREATE OR REPLACE FUNCTION refuse_audit_change_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
IF TG_OP = 'DELETE' AND current_setting('runyard.removes_audit_entries', true) = 'yes' THEN
    RETURN OLD;
END IF;
RAISE EXCEPTION 'entries of the audit log cannot be changed or deleted';
END $$;
CREATE OR REPLACE TRIGGER refuse_audit_change BEFORE UPDATE OR DELETE ON audit_entry FOR EACH ROW
EXECUTE FUNCTION refuse_audit_change_1();
CREATE OR REPLACE TRIGGER refuse_audit_truncation BEFORE TRUNCATE ON audit_entry FOR EACH STATEMENT
EXECUTE FUNCTION refuse_audit_change_1();

-- name: insert
INSERT INTO audit_entry (organization_id, action, subject, actor, address, deployment_id, detail)
VALUES (:organization_id, :action, :subject, CAST(:actor AS jsonb), :address, :deployment_id, CAST(:detail AS jsonb))

-- name: lock_key
-- Serializes the entries of a key. The next statement sees what the previous holder of the lock has committed.
SELECT FROM api_key WHERE id = :key_id FOR NO KEY UPDATE

-- name: add_refused_key
INSERT INTO audit_entry (organization_id, action, subject, address, detail)
SELECT k.organization_id, 'key.refused', k.name, :address, jsonb_build_object('of_key', k.id, 'reason',
    CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired' ELSE 'wrong secret' END)
FROM api_key k WHERE k.id = :key_id AND NOT EXISTS (
    SELECT FROM audit_entry e WHERE e.organization_id = k.organization_id AND e.action = 'key.refused'
      AND e.at > now() - interval '1 hour' AND e.detail ->> 'of_key' = k.id)

-- name: search
SELECT {columns} FROM audit_entry WHERE organization_id = :organization_id AND {condition}
ORDER BY at DESC, id DESC LIMIT :limit OFFSET :offset

-- name: search_actions
-- Each action is searched with its index. With `action = name` and the order without the action, PostgreSQL may read all entries
-- of the organization in the order of another index until it finds those of a rare action.
SELECT {columns} FROM unnest(CAST(:actions AS text[])) AS searched (name) CROSS JOIN LATERAL (
    SELECT * FROM audit_entry WHERE organization_id = :organization_id AND action BETWEEN name AND name AND {condition}
    ORDER BY action DESC, at DESC, id DESC LIMIT CAST(:last AS bigint)) AS entry
ORDER BY at DESC, id DESC LIMIT :limit OFFSET :offset

-- name: begin_removal
-- Permits the transaction to delete entries.
SELECT set_config('runyard.removes_audit_entries', 'yes', true)

-- name: remove_old
DELETE FROM audit_entry WHERE id = ANY(ARRAY(
    SELECT id FROM audit_entry WHERE at < now() - make_interval(secs => :days * 86400) ORDER BY at LIMIT :limit))

-- name: remove_excess
-- Removes the oldest entries of organizations that have more than `most`. Reads no entries if all organizations together have less.
DELETE FROM audit_entry WHERE id = ANY(ARRAY(
    SELECT e.id FROM organization o CROSS JOIN LATERAL (
        SELECT at, id FROM audit_entry WHERE organization_id = o.id ORDER BY at DESC, id DESC
        OFFSET CAST(:most AS bigint) LIMIT 1) AS newest
    CROSS JOIN LATERAL (
        SELECT id FROM audit_entry WHERE organization_id = o.id AND (at, id) <= (newest.at, newest.id)
        ORDER BY at, id LIMIT :limit) AS e
    WHERE (SELECT max(id) - min(id) + 1 FROM audit_entry) > CAST(:most AS bigint)
    LIMIT :limit))
