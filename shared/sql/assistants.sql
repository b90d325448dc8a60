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
    g.schemas -> 'input_schema' AS input_schema, coalesce(g.is_served, false) AS is_served
FROM assistant a JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
    AND v.version = a.version
LEFT JOIN LATERAL (SELECT *, true AS is_served FROM served_graph(v.graph_id, :revision_ids)) AS g ON true
WHERE a.deployment_id = :deployment_id AND a.assistant_id = :assistant_id

-- name: tools
-- Assistants with the names of their tools. If several assistants yield the same name, the oldest gets it. Only graphs with
-- an input schema are tools. An assistant that is not listed can still be found by its name.
-- The schemas of a graph are read once, and joined to the assistants of the page.
WITH served AS MATERIALIZED (
    SELECT graph_id, description, schemas -> 'input_schema' AS input_schema, schemas -> 'output_schema' AS output_schema
    FROM (SELECT DISTINCT graph_id FROM graph WHERE revision_id = ANY(:revision_ids)) AS named
    CROSS JOIN LATERAL served_graph(graph_id, :revision_ids)
    WHERE json_typeof(schemas #> '{input_schema,properties}') = 'object'
      AND CAST(schemas #> '{input_schema,properties}' AS text) <> '{}'
), known AS (
    SELECT a.assistant_id, a.created_at, v.graph_id, v.name AS title, v.metadata, v.description,
        CASE jsonb_typeof(v.metadata -> 'mcp') WHEN 'object' THEN v.metadata -> 'mcp' ELSE '{}' END AS options,
        left(regexp_replace(coalesce(nullif(v.name, ''), v.graph_id), '[^A-Za-z0-9_.-]', '_', 'g'), 128) AS plain
    FROM assistant a JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
        AND v.version = a.version
    WHERE a.deployment_id = :deployment_id AND v.graph_id IN (SELECT graph_id FROM served)
), named AS (
    SELECT *, CASE WHEN row_number() OVER (PARTITION BY plain ORDER BY created_at, assistant_id) = 1 THEN plain
        ELSE left(plain, 119) || '-' || left(CAST(assistant_id AS text), 8) END AS name
    FROM known
), page AS (
    SELECT * FROM named
    WHERE CASE WHEN CAST(:name AS text) IS NOT NULL THEN name = :name
        WHEN CAST(:assistant_id AS uuid) IS NOT NULL THEN assistant_id = :assistant_id
        ELSE options -> 'listed' IS DISTINCT FROM 'false' END
      AND {visible}
    ORDER BY created_at, assistant_id LIMIT :limit OFFSET :offset
)
SELECT p.assistant_id, p.graph_id, p.name, p.title, coalesce(p.description, s.description) AS description, s.input_schema,
    CASE WHEN p.options -> 'structured' = 'true' THEN s.output_schema END AS output_schema, p.options
FROM page p JOIN served s ON s.graph_id = p.graph_id ORDER BY p.created_at, p.assistant_id

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
