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
-- Trigger of `audit_entry`: no entry is changed.
CREATE OR REPLACE FUNCTION refuse_audit_change_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
RAISE EXCEPTION 'entries of the audit log cannot be changed';
END $$;
CREATE OR REPLACE TRIGGER refuse_audit_change BEFORE UPDATE ON audit_entry FOR EACH ROW
EXECUTE FUNCTION refuse_audit_change_1();

-- name: insert
INSERT INTO audit_entry (organization_id, action, subject, actor, address, deployment_id, detail)
VALUES (:organization_id, :action, :subject, CAST(:actor AS jsonb), :address, :deployment_id, CAST(:detail AS jsonb))

-- name: search
SELECT {columns} FROM (
    SELECT e.id, e.at, e.action, e.deployment_id, e.subject, e.actor, e.detail,
        CASE WHEN CAST(:with_address AS boolean) THEN e.address END AS address
    FROM audit_entry e
    WHERE organization_id = :organization_id
      AND (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
      AND (CAST(:action AS text) IS NULL OR :action IN (action, split_part(action, '.', 1)))
      AND (CAST(:key_id AS text) IS NULL OR actor ->> 'key_id' = :key_id)
      AND (CAST(:since AS timestamptz) IS NULL OR at >= :since)
      AND (CAST(:until AS timestamptz) IS NULL OR at < :until)
      AND split_part(action, '.', 1) <> ALL(CAST(:hidden AS text[]))
    ORDER BY id DESC LIMIT :limit OFFSET :offset) e

-- name: remove
DELETE FROM audit_entry WHERE id = ANY(ARRAY(
    SELECT id FROM audit_entry
    WHERE at < now() - make_interval(secs => :days * 86400) OR id <= (SELECT max(id) FROM audit_entry) - CAST(:most AS bigint)
    ORDER BY id LIMIT :limit))
