-- Questions of graphs to people: shared/inbox.

-- install: thread_title
-- A thread's title: `metadata.title`, else the text of its first message by a person, else ''. At most 120 characters.
CREATE OR REPLACE FUNCTION thread_title(metadata jsonb, state_values json) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT left(btrim(regexp_replace(left(coalesce(
    CASE WHEN jsonb_typeof(metadata -> 'title') = 'string' THEN nullif(btrim(metadata ->> 'title'), '') END, (
        SELECT CASE json_typeof(m.message -> 'content')
            WHEN 'string' THEN m.message ->> 'content'
            WHEN 'array' THEN (
                SELECT b.block ->> 'text'
                FROM json_array_elements(m.message -> 'content') WITH ORDINALITY AS b (block, position)
                WHERE json_typeof(b.block) = 'object' AND b.block ->> 'text' IS NOT NULL ORDER BY b.position LIMIT 1)
            END
        FROM json_array_elements(CASE WHEN json_typeof(v.document -> 'messages') = 'array' THEN v.document -> 'messages'
                                      ELSE '[]' END) WITH ORDINALITY AS m (message, position)
        WHERE json_typeof(m.message) = 'object'
          AND coalesce(m.message ->> 'type', m.message ->> 'role') IN ('human', 'user')
        ORDER BY m.position LIMIT 1
    ), ''), 1000), '\s+', ' ', 'g')), 120)
    FROM (SELECT readable(state_values) AS document) v
$$;

-- install: open_interrupts
-- The interrupts in the column `interrupts` of a thread, which is grouped by task.
CREATE OR REPLACE FUNCTION open_interrupts(interrupts json) RETURNS TABLE (id text, value json) LANGUAGE sql IMMUTABLE AS $$
    SELECT DISTINCT ON (i.value ->> 'id') i.value ->> 'id', i.value -> 'value'
    FROM (SELECT readable(interrupts) AS document) r
    CROSS JOIN LATERAL json_each(CASE WHEN json_typeof(r.document) = 'object' THEN r.document ELSE '{}' END) AS task
    CROSS JOIN LATERAL json_array_elements(
        CASE WHEN json_typeof(task.value) = 'array' THEN task.value ELSE '[]' END) AS i
    WHERE json_typeof(i.value) = 'object' AND i.value ->> 'id' IS NOT NULL
    ORDER BY i.value ->> 'id'
$$;

-- install: named_interrupts
-- The ids of the interrupts that the resume of a run answers. NULL if it names none: it then answers all of them.
CREATE OR REPLACE FUNCTION named_interrupts(resume json, interrupts json) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(k.id)
    FROM (SELECT readable(resume) AS document) r
    CROSS JOIN LATERAL json_object_keys(
        CASE WHEN json_typeof(r.document) = 'object' THEN r.document ELSE '{}' END) AS k (id)
    HAVING bool_and(k.id IN (SELECT id FROM open_interrupts(interrupts)))
$$;

-- install: questions_of_thread
-- The questions that an interrupted thread asks: its interrupts, or the breakpoint at which its newest run stopped. An update
-- of the state keeps a breakpoint. It removes interrupts, and the thread waits to be continued, as at a breakpoint: its nodes
-- then ask again. A thread whose state was only set by a client asks nothing.
-- Its parameters are columns: a parameter of the type `thread` would keep a restore from dropping the table.
CREATE OR REPLACE FUNCTION questions_of_thread(of_deployment uuid, of_thread uuid, interrupts json, state json,
    state_updated_at timestamptz)
RETURNS TABLE (interrupt_id text, kind text, value json) LANGUAGE sql STABLE AS $$
    WITH interrupt AS (SELECT o.id, o.value FROM open_interrupts(interrupts) o)
    SELECT id, 'interrupt', interrupt.value FROM interrupt
    UNION ALL
    SELECT 'breakpoint', 'breakpoint', b.nodes
    FROM (SELECT readable(state) -> 'next' AS nodes) b
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.status, r.ended_at FROM run r
        WHERE r.deployment_id = of_deployment AND r.thread_id = of_thread AND NOT (r.status = 'interrupted' AND r.attempt = 0)
        ORDER BY r.created_seq DESC LIMIT 1) newest
    WHERE NOT EXISTS (SELECT FROM interrupt)
      AND json_typeof(b.nodes) = 'array' AND CAST(b.nodes AS text) <> '[]'
      AND newest.status = 'success'
      AND (newest.ended_at = questions_of_thread.state_updated_at OR EXISTS (
          SELECT FROM question q WHERE q.deployment_id = of_deployment AND q.thread_id = of_thread
            AND (q.run_id = newest.run_id OR q.closed_at IS NULL)))
$$;

-- install: inbox_rules
-- The rules for questions: those of the deployment, else those of a revision's langgraph.json. NULL: none.
CREATE OR REPLACE FUNCTION inbox_rules(of_deployment jsonb, manifest json) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(of_deployment) = 'object' THEN CAST(of_deployment AS json)
        ELSE readable(manifest) -> 'inbox' END
$$;

-- install: key_label
-- A caller as records name it: the name and id of the API key, or the name of a person who signed in. NULL for a user of the
-- deployment's own authorization.
CREATE OR REPLACE FUNCTION key_label(key_id text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT concat(k.name, ' (', k.id, ')') FROM api_key k WHERE k.id = key_id),
        (SELECT a.name FROM account a WHERE a.id = key_id),
        CASE WHEN NOT starts_with(key_id, 'user:') THEN nullif(key_id, '') END)
$$;

-- install: record_question_end_1
-- Inserts the entry of the audit log about a question that was answered or cancelled. An expiry has no actor.
CREATE OR REPLACE FUNCTION record_question_end_1(action text, of_deployment uuid, of_thread uuid, of_question uuid,
    of_run uuid, key_id text, answerer text, address text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO audit_entry (organization_id, action, deployment_id, subject, actor, address, detail)
    SELECT d.organization_id, record_question_end_1.action, d.id, d.name,
        CASE WHEN answerer <> 'expiry' OR nullif(key_id, '') IS NOT NULL THEN jsonb_build_object(
            'key_id', coalesce(nullif(key_id, ''), split_part(answerer, ' ', 1)), 'name', coalesce(answerer, key_id)) END,
        nullif(address, 'expiry'),
        jsonb_strip_nulls(jsonb_build_object('question_id', of_question, 'thread_id', of_thread, 'run_id', of_run))
    FROM deployment d WHERE d.id = of_deployment
$$;

-- install: record_answers_1
-- Closes the questions that a new run answers, and stores who answered. `resume` is NULL for a run that continues without a
-- value, which only answers a breakpoint. A value that names no interrupt answers a thread's only question: a graph refuses it
-- if there are several. The caller holds the lock of the thread. An error leaves the questions to the trigger of `thread`,
-- which closes them without an answer: it must not prevent the run.
CREATE OR REPLACE FUNCTION record_answers_1(of_deployment uuid, of_thread uuid, of_run uuid, resume json,
    answerer text, key_id text, address text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    named text[];
    answered text[];
    recorded bigint;
BEGIN
    answered := ARRAY(SELECT q.interrupt_id FROM question q WHERE q.deployment_id = of_deployment
        AND q.thread_id = of_thread AND q.closed_at IS NULL AND (q.kind = 'breakpoint' OR resume IS NOT NULL));
    IF cardinality(answered) = 0 THEN
        RETURN;
    END IF;
    named := named_interrupts(resume, (
        SELECT t.interrupts FROM thread t WHERE t.deployment_id = of_deployment AND t.thread_id = of_thread));
    IF named IS NOT NULL THEN
        answered := ARRAY(SELECT unnest(answered) INTERSECT SELECT unnest(named));
    ELSIF cardinality(answered) > 1 THEN
        RETURN;
    END IF;
    WITH closed AS (
        UPDATE question q SET closed_at = now(), answered_at = now(), answer_run_id = of_run,
            answer = CASE WHEN named IS NULL THEN resume END,
            answered_by = coalesce(nullif(answerer, ''), key_label(key_id)), answered_from = nullif(address, '')
        WHERE q.deployment_id = of_deployment AND q.thread_id = of_thread AND q.closed_at IS NULL
          AND q.interrupt_id = ANY(answered)
        RETURNING q.question_id, q.answered_by, q.answered_from
    )
    SELECT count(record_question_end_1('question.answered', of_deployment, of_thread, c.question_id, of_run, key_id,
        c.answered_by, c.answered_from)) INTO recorded
    FROM closed c;
    IF named IS NOT NULL THEN
        UPDATE question q SET answer = given.value FROM json_each(readable(resume)) AS given (id, value)
        WHERE q.deployment_id = of_deployment AND q.thread_id = of_thread AND q.interrupt_id = given.id
          AND q.answer_run_id = of_run;
    END IF;
EXCEPTION WHEN OTHERS THEN
    IF left(SQLSTATE, 2) IN ('40', '53', '55', '57') THEN
        RAISE;
    END IF;
    RAISE WARNING USING MESSAGE = concat('the answers of run ', of_run, ' were not recorded: ', SQLERRM);
END $$;

-- install: update_questions_1
-- Trigger of `thread`: closes the questions that the thread asks no longer, and inserts the new ones. While a run answers some
-- of several interrupts by their ids, the others stay open. A question that was closed without an answer is opened again when
-- the thread returns to it, for example after the run that ignored it was cancelled.
--
-- A thread has at most 1,000 open questions, the first ones by their ids: a graph may raise 100,000 interrupts in one step, and
-- their rows would delay the commit of the runs of other threads.
--
-- Runners commit the ends of many runs in one statement. A malformed document of one thread must not make it fail, so such
-- an error is only logged. Deadlocks, timeouts and a lack of resources (the classes in the handler) are raised: the runner
-- repeats the commit.
CREATE OR REPLACE FUNCTION update_questions_1() RETURNS trigger LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    kept text[] := '{}';
    named text[];
    kinds text[];
    contents json[];
    asking record;
BEGIN
    IF EXISTS (SELECT FROM bench WHERE id = NEW.deployment_id) THEN
        RETURN NULL;  -- nobody is asked by a replay
    END IF;
    IF NOT NEW.is_listed THEN
        RETURN NULL;  -- the client of an MCP call is asked
    END IF;
    IF NEW.status = 'interrupted' THEN
        SELECT coalesce(array_agg(interrupt_id), '{}'), array_agg(kind), array_agg(value) INTO kept, kinds, contents
        FROM (SELECT * FROM questions_of_thread(NEW.deployment_id, NEW.thread_id, NEW.interrupts, NEW.state,
            NEW.state_updated_at) ORDER BY interrupt_id LIMIT 1000) asked;
    ELSIF NEW.status = 'busy' THEN
        SELECT named_interrupts(readable(r.kwargs) #> '{command,resume}', NEW.interrupts) INTO named
        FROM run r WHERE r.deployment_id = NEW.deployment_id AND r.thread_id = NEW.thread_id
          AND r.created_seq = NEW.last_seq;
        IF named IS NOT NULL THEN
            kept := ARRAY(SELECT id FROM (SELECT id FROM open_interrupts(NEW.interrupts) ORDER BY id LIMIT 1000) o
                EXCEPT SELECT unnest(named));
        END IF;
    END IF;
    UPDATE question q SET closed_at = now()
    WHERE q.deployment_id = NEW.deployment_id AND q.thread_id = NEW.thread_id AND q.closed_at IS NULL
      AND q.interrupt_id <> ALL(kept);
    IF cardinality(kept) = 0 OR NEW.status <> 'interrupted' THEN
        RETURN NULL;
    END IF;
    UPDATE question q SET closed_at = NULL, value = asked.value, answered_by = NULL, answered_from = NULL
    FROM unnest(kept, kinds, contents) AS asked (interrupt_id, kind, value) JOIN (
        SELECT DISTINCT ON (o.interrupt_id) o.interrupt_id, o.question_id FROM question o
        WHERE o.deployment_id = NEW.deployment_id AND o.thread_id = NEW.thread_id AND o.interrupt_id = ANY(kept)
        ORDER BY o.interrupt_id, o.asked_at DESC, o.question_id DESC) newest ON newest.interrupt_id = asked.interrupt_id
    WHERE q.question_id = newest.question_id AND q.answered_at IS NULL
      AND (q.closed_at IS NOT NULL OR CAST(q.value AS text) IS DISTINCT FROM CAST(asked.value AS text));
    IF cardinality(kept) = (SELECT count(*) FROM question q
        WHERE q.deployment_id = NEW.deployment_id AND q.thread_id = NEW.thread_id AND q.closed_at IS NULL) THEN
        RETURN NULL;
    END IF;
    -- The title and the rules are read from large documents: once, and only if there are new questions.
    SELECT thread_title(NEW.metadata, NEW.values) AS title, run.run_id, run.assistant_id,
        coalesce(nullif(readable(run.kwargs) #>> '{config,configurable,langgraph_auth_user_id}', ''),
            key_label(run.key_id)) AS asked_by,
        inbox_rules(d.inbox, v.manifest) AS rules
    INTO asking
    FROM (VALUES (NEW.deployment_id)) AS thread (deployment_id)
    LEFT JOIN LATERAL (
        SELECT r.run_id, r.assistant_id, r.revision_id, r.kwargs, r.key_id FROM run r
        WHERE r.deployment_id = NEW.deployment_id AND r.thread_id = NEW.thread_id AND r.attempt > 0
        ORDER BY r.created_seq DESC LIMIT 1) run ON true
    LEFT JOIN deployment d ON d.id = thread.deployment_id
    LEFT JOIN revision v ON v.id = coalesce(run.revision_id, d.active_revision_id);
    INSERT INTO question (question_id, deployment_id, thread_id, interrupt_id, kind, value, title, run_id, assistant_id,
        asked_by, webhook_due_at, expires_at, on_expiry)
    SELECT gen_random_uuid(), NEW.deployment_id, NEW.thread_id, asked.interrupt_id, asked.kind, asked.value,
        asking.title, asking.run_id, asking.assistant_id, asking.asked_by,
        CASE WHEN asking.rules ->> 'webhook' IS NOT NULL THEN now() END,
        now() + make_interval(secs => CASE WHEN json_typeof(asking.rules -> 'expire_after_seconds') = 'number'
            THEN least(CAST(asking.rules ->> 'expire_after_seconds' AS float8), 3e9) END),
        asking.rules -> 'on_expiry'
    FROM unnest(kept, kinds, contents) AS asked (interrupt_id, kind, value)
    ON CONFLICT (deployment_id, thread_id, interrupt_id) WHERE closed_at IS NULL DO NOTHING;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    IF left(SQLSTATE, 2) IN ('40', '53', '55', '57') THEN
        RAISE;
    END IF;
    RAISE WARNING USING MESSAGE = concat('the questions of thread ', NEW.thread_id, ' were not updated: ', SQLERRM);
    RETURN NULL;
END $$;
-- Only statements that set the status can change the questions. The column `interrupts` is not empty while a run answers
-- some of several interrupts.
CREATE OR REPLACE TRIGGER update_questions AFTER UPDATE OF status ON thread FOR EACH ROW
WHEN (OLD.status = 'interrupted' OR NEW.status = 'interrupted' OR length(CAST(OLD.interrupts AS text)) > 2)
EXECUTE FUNCTION update_questions_1();

-- part: joined
-- The rows that complete the record of a question `q`.
JOIN deployment d ON d.id = q.deployment_id
JOIN thread t ON t.deployment_id = q.deployment_id AND t.thread_id = q.thread_id
LEFT JOIN assistant a ON a.deployment_id = q.deployment_id AND a.assistant_id = q.assistant_id
LEFT JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
    AND v.version = a.version

-- name: deployments
SELECT d.id, r.user_code IS NOT NULL AS has_user_code
FROM listed_deployment d LEFT JOIN revision r ON r.id = d.active_revision_id
WHERE d.organization_id = :organization_id AND d.deleted_at IS NULL
  AND (CAST(:name AS text) IS NULL OR d.name = :name)
  AND EXISTS (SELECT FROM question q WHERE q.deployment_id = d.id)

-- name: get
SELECT {columns} FROM question q {joined}
WHERE q.question_id = :question_id AND d.deleted_at IS NULL
  AND (CAST(:organization_id AS uuid) IS NULL OR d.organization_id = :organization_id)

-- name: search
-- Each deployment is searched with an index in the order of the result.
SELECT {columns} FROM (
    SELECT q.* FROM unnest(CAST(:deployment_ids AS uuid[])) AS searched (deployment_id)
    CROSS JOIN LATERAL (
        SELECT q.* FROM question q WHERE q.deployment_id = searched.deployment_id AND {condition}
        ORDER BY {order} LIMIT CAST(:limit AS bigint) + :offset) q
    ORDER BY {order} LIMIT :limit OFFSET :offset) q {joined}
ORDER BY {order}

-- name: count
SELECT count(*) AS n FROM (
    SELECT FROM question q WHERE q.deployment_id = ANY(CAST(:deployment_ids AS uuid[])) AND {condition}
    LIMIT CAST(:most AS bigint)) AS counted

-- name: change
UPDATE question SET assignee = CASE WHEN :has_assignee THEN :assignee ELSE assignee END,
    snoozed_until = CASE WHEN :has_snoozed_until THEN CAST(:snoozed_until AS timestamptz) ELSE snoozed_until END
WHERE question_id = :question_id AND closed_at IS NULL

-- name: of_thread
SELECT q.closed_at, q.kind, q.interrupt_id, q.run_id, q.assistant_id, q.answered_at, q.answered_by, q.answered_from,
    t.interrupts,
    EXISTS (
        SELECT FROM assistant a WHERE a.deployment_id = q.deployment_id AND a.assistant_id = q.assistant_id
    ) AS has_assistant
FROM thread t JOIN question q ON q.deployment_id = t.deployment_id AND q.thread_id = t.thread_id
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id AND q.question_id = :question_id

-- name: mark_cancelled
-- Stores who ended a thread without an answer, on the question that was cancelled. Marks the A2A task of the run that asked as
-- canceled.
WITH marked AS (
    UPDATE question SET answered_by = coalesce(nullif(:by, ''), key_label(:key_id)),
        answered_from = nullif(:address, '')
    WHERE question_id = CAST(:question_id AS uuid) AND closed_at IS NOT NULL AND answered_at IS NULL
    RETURNING *
), canceled AS (
    UPDATE run r SET metadata = jsonb_set(r.metadata, '{a2a,canceled}', 'true'), updated_at = now()
    FROM marked m WHERE r.run_id = m.run_id AND jsonb_typeof(r.metadata -> 'a2a') = 'object'
)
SELECT record_question_end_1('question.cancelled', deployment_id, thread_id, question_id, NULL, :key_id, answered_by,
    answered_from)
FROM marked
