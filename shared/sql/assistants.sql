-- Assistants: shared/assistants.py, shared/agents.py.

-- install: served_graph
-- The graph of this id in the first of these revisions that has it. It is called in FROM, where the planner inlines it.
CREATE OR REPLACE FUNCTION served_graph(of_graph text, of_revisions uuid[])
RETURNS TABLE (description text, schemas json) LANGUAGE sql STABLE AS $$
    SELECT g.description, g.schemas FROM graph g WHERE g.graph_id = of_graph AND g.revision_id = ANY(of_revisions)
    ORDER BY array_position(of_revisions, g.revision_id) LIMIT 1
$$;

-- name: agent
SELECT a.assistant_id, v.graph_id, v.name, coalesce(v.description, g.description) AS description, a.version, v.metadata,
    g.schemas -> 'input_schema' AS input_schema
FROM assistant a JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
    AND v.version = a.version
CROSS JOIN LATERAL served_graph(v.graph_id, :revision_ids) AS g
WHERE a.deployment_id = :deployment_id AND a.assistant_id = :assistant_id

-- name: tools
-- Assistants with the names of their tools. If several assistants yield the same name, the oldest gets it. Only graphs with
-- an input schema are tools. An assistant that is not listed can still be found by its name.
WITH known AS (
    SELECT a.assistant_id, a.created_at, v.graph_id, v.name AS title, v.metadata,
        coalesce(v.description, g.description) AS description, g.schemas -> 'input_schema' AS input_schema,
        CASE jsonb_typeof(v.metadata -> 'mcp') WHEN 'object' THEN v.metadata -> 'mcp' ELSE '{}' END AS options,
        CASE WHEN v.metadata #> '{mcp,structured}' = 'true' THEN g.schemas -> 'output_schema' END AS output_schema,
        left(regexp_replace(coalesce(nullif(v.name, ''), v.graph_id), '[^A-Za-z0-9_.-]', '_', 'g'), 128) AS plain
    FROM assistant a JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
        AND v.version = a.version
    CROSS JOIN LATERAL served_graph(v.graph_id, :revision_ids) AS g
    WHERE a.deployment_id = :deployment_id AND json_typeof(g.schemas #> '{input_schema,properties}') = 'object'
      AND CAST(g.schemas #> '{input_schema,properties}' AS text) <> '{}'
), named AS (
    SELECT *, CASE WHEN row_number() OVER (PARTITION BY plain ORDER BY created_at, assistant_id) = 1 THEN plain
        ELSE left(plain, 119) || '-' || left(CAST(assistant_id AS text), 8) END AS name
    FROM known
)
SELECT assistant_id, graph_id, name, title, description, input_schema, output_schema, options FROM named
WHERE CASE WHEN CAST(:name AS text) IS NOT NULL THEN name = :name
    WHEN CAST(:assistant_id AS uuid) IS NOT NULL THEN assistant_id = :assistant_id
    ELSE options -> 'listed' IS DISTINCT FROM 'false' END
  AND {visible}
ORDER BY created_at, assistant_id LIMIT :limit OFFSET :offset

-- name: reconfigure
-- A default assistant that no caller has changed follows configuration and description of the last deployed revision.
UPDATE assistant_version v SET config = CAST(:config AS json), context = CAST(:context AS json), description = :description
FROM assistant a
WHERE a.deployment_id = :deployment_id AND a.assistant_id = :assistant_id AND a.last_version = 1
  AND v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id AND v.version = 1
  AND v.metadata ->> 'created_by' = 'system'
  AND (CAST(readable(v.config) AS jsonb) <> CAST(:config AS jsonb)
    OR CAST(readable(v.context) AS jsonb) <> CAST(:context AS jsonb)
    OR v.description IS DISTINCT FROM CAST(:description AS text))

-- name: threads
SELECT thread_id FROM thread
WHERE deployment_id = :deployment_id AND metadata @> jsonb_build_object('assistant_id', CAST(:assistant_id AS text))
  AND {visible}

-- name: visible
-- Applies to the active version.
SELECT FROM assistant a JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
    AND v.version = a.version
WHERE a.deployment_id = :deployment_id AND a.assistant_id = :id AND {visible} {lock}
