-- +goose Up

-- Views for people who know the flag form of a queue: one table with a flag for what runs, the last sign
-- of life in another. They lie in a schema of their own, named after the ledger's with _spine behind it,
-- under the names of that form. docs/SQL.md says what differs.
--
-- They are for reading. Each begins WITH, because Postgres makes no such view updatable, whoever asks, and
-- passes no FOR UPDATE on to the tables below; the planner sees through it all the same. Columns are named
-- one by one: a new column of a home changes no view.

CREATE VIEW spine_job_queue AS
WITH live AS (
    SELECT q.job_id, q.tag, q.priority, q.scheduled_for, false AS running, NULL::text AS worker, NULL::timestamptz AS started_at,
           NULL::text AS canceled_by, NULL::text AS cancel_reason, q.kind, q.attempt, q.restarts, q.generation,
           NULL::timestamptz AS lease_until, NULL::timestamptz AS timeout_at, q.held, q.enqueued_at AS created_at
    FROM job_queue q
    UNION ALL
    SELECT r.job_id, r.tag, r.priority, r.scheduled_for, true, r.worker, r.started_at,
           r.canceled_by, r.cancel_reason, r.kind, r.attempt, r.restarts, r.generation,
           r.lease_until, r.timeout_at, NULL, r.enqueued_at
    FROM job_runtime r)
SELECT * FROM live;

-- The claim is a sign of life as any ping, so ping is never null. zombie_timeout is how long this job may be
-- silent: its lease. It is null where no silence takes a job away (on_lost_lease reconcile).
CREATE VIEW spine_job_runtime AS
WITH live AS (
    SELECT r.job_id, coalesce(r.pinged_at, r.started_at) AS ping, r.lease_until - coalesce(r.pinged_at, r.started_at) AS zombie_timeout,
           CASE WHEN r.progress_version > 0 THEN
               (SELECT b.body FROM job_payload b WHERE b.job_id = r.job_id AND b.version = r.progress_version) END AS progress
    FROM job_runtime r)
SELECT * FROM live;

CREATE VIEW spine_job_completed AS
WITH ended AS (
    SELECT c.job_id, c.outcome AS status,
           CASE WHEN c.result_version > 0 THEN
               (SELECT b.body FROM job_payload b WHERE b.job_id = c.job_id AND b.version = c.result_version) END AS result,
           CASE WHEN c.error_version > 0 THEN
               (SELECT b.body FROM job_payload b WHERE b.job_id = c.job_id AND b.version = c.error_version) END AS error,
           c.class, c.reason, c.tag, c.worker, c.started_at, c.changed_at AS completed_at, c.canceled_by, c.cancel_reason,
           c.kind, c.attempt, c.restarts, c.generation, c.enqueued_at AS created_at
    FROM job_completed c)
SELECT * FROM ended;

CREATE VIEW spine_job AS
WITH known AS (
    SELECT j.job_id, j.kind, j.tag,
           (SELECT b.body FROM job_payload b WHERE b.job_id = j.job_id AND b.version = 1) AS args,
           p.timeout, e.trigger_kind, e.trigger_ref, e.parent_id, e.work_id, e.pin_id, j.facts, j.enqueued_at AS created_at
    FROM job j
    LEFT JOIN policy p ON p.policy_id = j.policy_id
    LEFT JOIN job_event e ON e.job_id = j.job_id AND e.version = 1)
SELECT * FROM known;

-- Made here and then moved, since the name of the schema is known only now.
-- +goose StatementBegin
DO $$
DECLARE
    v_spine text := current_schema::text || '_spine';
    v_view  text;
BEGIN
    IF octet_length(v_spine) > 63 THEN
        RAISE EXCEPTION 'schema %: its views need a schema %, and Postgres cuts names of more than 63 bytes', current_schema, v_spine;
    END IF;
    EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', v_spine);
    FOREACH v_view IN ARRAY ARRAY['job_queue', 'job_runtime', 'job_completed', 'job'] LOOP
        EXECUTE format('ALTER VIEW %I SET SCHEMA %I', 'spine_' || v_view, v_spine);
        EXECUTE format('ALTER VIEW %I.%I RENAME TO %I', v_spine, 'spine_' || v_view, v_view);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    v_spine text := current_schema::text || '_spine';
BEGIN
    EXECUTE format('DROP VIEW %1$I.job_queue, %1$I.job_runtime, %1$I.job_completed, %1$I.job', v_spine);
    EXECUTE format('DROP SCHEMA %I', v_spine);
END
$$;
-- +goose StatementEnd
