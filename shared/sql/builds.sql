-- Revisions as their builders and graph hosts read them: workers/builder, workers/runner/host_requests.py.

-- name: origin
-- The repository and ref of a revision whose source is fetched.
SELECT d.source_config ->> 'repo_url' AS url, r.source_revision_config ->> 'repo_ref' AS ref
FROM revision r JOIN deployment d ON d.id = r.deployment_id
WHERE r.id = :id AND r.source = 'github'

-- name: commands
-- The commands that install and build a JavaScript project.
SELECT nullif(source_config ->> 'install_command', '') AS install, nullif(source_config ->> 'build_command', '') AS build
FROM deployment WHERE id = :id

-- name: same_source
-- The newest builds of a deployment from the same archive with the same configuration file.
SELECT coalesce(build_id, id) AS build_id, requirements, python_version, manifest ->> 'resolved_at' AS resolved_at
FROM revision
WHERE deployment_id = :deployment_id AND status = 'DEPLOYED' AND requirements IS NOT NULL AND archive_digest = :digest
    AND source_revision_config ->> 'langgraph_config_path' IS NOT DISTINCT FROM CAST(:config_path AS text)
ORDER BY number DESC LIMIT 10

-- name: same_inputs
-- The newest builds of a deployment that resolved the same inputs.
SELECT coalesce(build_id, id) AS build_id, requirements, python_version, manifest ->> 'resolved_at' AS resolved_at
FROM revision
WHERE deployment_id = :deployment_id AND status = 'DEPLOYED' AND requirements IS NOT NULL
    AND manifest ->> 'inputs' = :inputs
ORDER BY number DESC LIMIT 10

-- name: inspected
-- The newest revisions with the same build whose code the same inspector has described.
SELECT id, user_code, manifest -> 'http' AS http, manifest ->> 'langgraph_version' AS langgraph_version FROM revision
WHERE deployment_id = :deployment_id AND id <> :id AND coalesce(build_id, id) = :build_id
    AND status = 'DEPLOYED' AND manifest ->> 'inspector' = :inspector
ORDER BY number DESC LIMIT 3

-- name: needed
-- Of the deployments of these builds: the builds that serve, are in progress or have live runs, and the newest ones.
WITH near AS (
    SELECT r.id, r.status, r.number, coalesce(r.build_id, r.id) AS build_id, d.id AS deployment_id,
        takes_traffic(r.id, d.active_revision_id, d.traffic) AS serves
    FROM revision r JOIN deployment d ON d.id = r.deployment_id
    WHERE d.deleted_at IS NULL AND d.id IN (
        SELECT deployment_id FROM revision WHERE id = ANY(:ids) OR build_id = ANY(:ids))
), newest AS (
    SELECT build_id, row_number() OVER (PARTITION BY deployment_id ORDER BY max(number) DESC) AS rank
    FROM near WHERE status = 'DEPLOYED' GROUP BY deployment_id, build_id
)
SELECT build_id FROM newest WHERE rank <= :kept
UNION
SELECT build_id FROM near WHERE serves OR status <> ALL(:ends)
UNION
SELECT near.build_id FROM near JOIN run ON run.deployment_id = near.deployment_id AND run.revision_id = near.id
WHERE is_live(run.status)

-- name: of_host
-- What a revision's graph host is prepared from.
SELECT deployment_id, source, archive_digest, requirements, python_version, coalesce(build_id, id) AS build_id,
    source_revision_config ->> 'langgraph_config_path' AS config_path
FROM revision WHERE id = :id

-- name: address
-- A revision's deployment, and the preview that shows the revision unless the revision serves.
SELECT d.id, d.name, (
    SELECT min(p.name) FROM preview p
    WHERE p.revision_id = r.id AND r.id IS DISTINCT FROM d.active_revision_id) AS preview
FROM revision r JOIN deployment d ON d.id = r.deployment_id WHERE r.id = :id

-- name: components
-- The bundles of the newest deployed revision with a build.
SELECT name, kind, content FROM component_bundle
WHERE revision_id = (
    SELECT r.id FROM revision r
    WHERE r.deployment_id = :deployment_id AND coalesce(r.build_id, r.id) = :build_id AND r.status = 'DEPLOYED'
        AND EXISTS (SELECT FROM component_bundle b WHERE b.revision_id = r.id)
    ORDER BY r.number DESC LIMIT 1)
