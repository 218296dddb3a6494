-- cancel ends waiting jobs at once and marks running ones: their owner learns of it at its
-- next ping, and whatever else happens to them then ends in canceled. A job that has its
-- outcome is left alone. Nobody shows a generation here, so the job is looked for in its home,
-- locked there and tested; if it moved meanwhile, it is looked for again in a new statement. The
-- same operation never acts on a job twice: sent again, it gets the first answer (repeated).
CREATE OR REPLACE FUNCTION cancel(jobs uuid[], actor text DEFAULT NULL, reason text DEFAULT NULL, operation uuid DEFAULT NULL)
RETURNS SETOF answer
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_actor text := coalesce(cancel.actor, session_user);
    v_done  answer[];
    v_ended answer[] := '{}';
    v_left  uuid[];
BEGIN
    PERFORM check_batch(cancel.jobs);
    PERFORM check_text('actor', ARRAY[v_actor], 255, true);
    PERFORM check_text('reason', ARRAY[cancel.reason], 1024, true);
    PERFORM pg_current_xact_id();
    SELECT array_agg(DISTINCT j ORDER BY j) INTO v_left FROM unnest(cancel.jobs) j;

    SELECT array_agg(a) INTO v_done FROM acted(v_left, cancel.operation, ARRAY['canceled', 'cancel_requested']) a;
    v_ended := v_ended || coalesce(v_done, '{}');

    FOR try IN 1 .. 10 LOOP
        SELECT array_agg(l ORDER BY l) INTO v_left
        FROM unnest(v_left) l
        WHERE l <> ALL (SELECT e.job_id FROM unnest(v_ended) e);
        EXIT WHEN v_left IS NULL;

        WITH input AS MATERIALIZED (
            SELECT j AS job_id FROM unnest(v_left) j ORDER BY j
        ), guard AS (
            DELETE FROM job_queue q
            USING input i
            WHERE q.job_id = i.job_id
            RETURNING q.*, clock() AS at
        ), projection AS (
            INSERT INTO job_completed (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
                progress_version, error_version, priority, outcome, kind, tag, facts, canceled_by, cancel_reason)
            SELECT g.job_id, g.scheduled_for, g.enqueued_at, g.at, g.version + 1, g.generation, g.attempt, g.restarts, g.policy_id,
                g.progress_version, g.error_version, g.priority, 'canceled', g.kind, g.tag, g.facts, v_actor, cancel.reason
            FROM guard g
        ), event AS (
            INSERT INTO job_event (job_id, at, version, generation, attempt, operation, type, actor, reason)
            SELECT g.job_id, g.at, g.version + 1, g.generation, g.attempt, cancel.operation, 'canceled', v_actor, cancel.reason
            FROM guard g
        )
        SELECT array_agg((0, g.job_id, 'canceled', NULL, false, g.version + 1, g.generation, g.attempt, g.at, NULL, NULL, false, 'canceled')::answer)
        INTO v_done
        FROM guard g;
        v_ended := v_ended || coalesce(v_done, '{}');

        -- The lock is taken by a statement of its own: the mark must be tested on what is there
        -- after a wait, and the time of the event read behind it.
        PERFORM FROM job_runtime r WHERE r.job_id = ANY (v_left) ORDER BY r.job_id FOR UPDATE;
        WITH guard AS (
            UPDATE job_runtime r
            SET canceled_by = v_actor, cancel_reason = cancel.reason, version = r.version + 1, changed_at = clock()
            WHERE r.job_id = ANY (v_left) AND r.canceled_by IS NULL
            RETURNING r.*
        ), event AS (
            INSERT INTO job_event (job_id, at, version, generation, attempt, operation, type, actor, reason)
            SELECT g.job_id, g.changed_at, g.version, g.generation, g.attempt, cancel.operation, 'cancel_requested', v_actor, cancel.reason
            FROM guard g
        )
        SELECT array_agg((0, g.job_id, 'cancel_requested', NULL, false, g.version, g.generation, g.attempt, g.changed_at,
                          g.lease_until, NULL, true, NULL)::answer)
        INTO v_done
        FROM guard g;
        v_ended := v_ended || coalesce(v_done, '{}');

        PERFORM check_snapshot(v_left);
        -- Who was not taken above: its reason, in a new statement and one snapshot for each. First
        -- those that an earlier sending has acted on while this one waited for it.
        SELECT array_agg(a) INTO v_done
        FROM acted(v_left, cancel.operation, ARRAY['canceled', 'cancel_requested']) a
        WHERE a.job_id <> ALL (SELECT e.job_id FROM unnest(v_ended) e);
        v_ended := v_ended || coalesce(v_done, '{}');
        SELECT array_agg((0, l.job_id, NULL,
                CASE WHEN h.state IS NULL THEN 'not_found' WHEN h.state = 'ended' THEN 'ended' ELSE 'already_requested' END,
                false, h.version, h.generation, h.attempt, NULL, h.lease_until, NULL, h.canceled_by IS NOT NULL, h.outcome)::answer)
        INTO v_done
        FROM unnest(v_left) AS l (job_id)
        LEFT JOIN LATERAL home(l.job_id) h ON true
        WHERE l.job_id <> ALL (SELECT e.job_id FROM unnest(v_ended) e)
            AND (h.state IS NULL OR h.state = 'ended' OR h.canceled_by IS NOT NULL);
        v_ended := v_ended || coalesce(v_done, '{}');
    END LOOP;

    RETURN QUERY
    SELECT u.ord::integer, u.job_id, e.event, CASE WHEN e.job_id IS NULL THEN 'contended' ELSE e.refusal END, coalesce(e.repeated, false), e.version, e.generation,
        e.attempt, e.at, e.lease_until, e.scheduled_for, coalesce(e.cancel_requested, false), e.outcome
    FROM unnest(cancel.jobs) WITH ORDINALITY AS u (job_id, ord)
    LEFT JOIN unnest(v_ended) e ON e.job_id = u.job_id;
END
$$;
