-- Changes of an organization: shared/changes.py.

-- install: record_revision_end_1
-- Trigger of `revision`: records that a revision was deployed or failed. The builder, upkeep and web end revisions.
CREATE OR REPLACE FUNCTION record_revision_end_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
INSERT INTO change (organization_id, kind, deployment_id, subject, changed_by, detail)
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

-- name: insert
INSERT INTO change (organization_id, kind, subject, changed_by, deployment_id, detail)
VALUES (:organization_id, :kind, :subject, CAST(:changed_by AS jsonb), :deployment_id, CAST(:detail AS jsonb))

-- name: newest
SELECT {columns} FROM change
WHERE organization_id = :organization_id
  AND (CAST(:deployment_id AS uuid) IS NULL OR deployment_id = :deployment_id)
  AND (CAST(:with_keys AS boolean) OR kind NOT LIKE 'key.%')
ORDER BY id DESC LIMIT :limit OFFSET :offset

-- name: remove
DELETE FROM change WHERE id = ANY(ARRAY(
    SELECT id FROM change
    WHERE at < now() - make_interval(days => :days) OR id <= (SELECT max(id) FROM change) - CAST(:most AS bigint)
    ORDER BY id LIMIT :limit))
