-- redrive gives jobs that ended with failure or were canceled a new life: attempts, restarts
-- and time budget begin anew, generation and version go on. Success is never run again. The same
-- operation never acts on a job twice: sent again, it gets the first answer (repeated), even if
-- the job has failed anew.
CREATE OR REPLACE FUNCTION redrive(jobs uuid[], actor text DEFAULT NULL, reason text DEFAULT NULL, operation uuid DEFAULT NULL)
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
    v_actor text := coalesce(redrive.actor, session_user);
    v_done  answer[];
    v_ended answer[] := '{}';
    v_left  uuid[];
    v_tags  text[];
BEGIN
    PERFORM check_batch(redrive.jobs);
    PERFORM check_text('actor', ARRAY[v_actor], 255, true);
    PERFORM check_text('reason', ARRAY[redrive.reason], 1024, true);
    PERFORM pg_current_xact_id();
    SELECT array_agg(DISTINCT j ORDER BY j) INTO v_left FROM unnest(redrive.jobs) j;

    FOR try IN 1 .. 10 LOOP
        WITH input AS MATERIALIZED (
            SELECT j AS job_id
            FROM unnest(v_left) j
            WHERE NOT EXISTS (SELECT FROM acted(ARRAY[j], redrive.operation, ARRAY['redriven']))
            ORDER BY j
        ), guard AS (
            DELETE FROM job_completed c
            USING input i
            WHERE c.job_id = i.job_id AND c.outcome <> 'success'
            RETURNING c.*, clock() AS at
        ), projection AS (
            INSERT INTO job_queue (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
                progress_version, error_version, priority, ready, kind, tag, facts)
            SELECT g.job_id, g.at, g.enqueued_at, g.at, g.version + 1, g.generation, 0, 0, g.policy_id, g.progress_version,
                g.error_version, g.priority, true, g.kind, g.tag, g.facts
            FROM guard g
        ), event AS (
            INSERT INTO job_event (job_id, at, version, generation, attempt, scheduled_for, operation, type, actor, reason)
            SELECT g.job_id, g.at, g.version + 1, g.generation, 0, g.at, redrive.operation, 'redriven', v_actor, redrive.reason
            FROM guard g
        )
        SELECT array_agg((0, g.job_id, 'redriven', NULL, false, g.version + 1, g.generation, 0, g.at, NULL, g.at, false, NULL)::answer),
            array_agg(g.tag)
        INTO v_done, v_tags
        FROM guard g;
        v_ended := v_ended || coalesce(v_done, '{}');
        PERFORM wake(v_tags);

        PERFORM check_snapshot(v_left);
        -- The reason of a refusal, in a new statement. A job that failed between the two is
        -- looked for again. First those that an earlier sending has acted on.
        SELECT array_agg(a) INTO v_done
        FROM acted(v_left, redrive.operation, ARRAY['redriven']) a
        WHERE a.job_id <> ALL (SELECT e.job_id FROM unnest(v_ended) e);
        v_ended := v_ended || coalesce(v_done, '{}');
        SELECT array_agg((0, l.job_id, NULL,
                CASE WHEN h.state IS NULL THEN 'not_found' WHEN h.state <> 'ended' THEN 'not_ended' ELSE 'succeeded' END,
                false, h.version, h.generation, h.attempt, NULL, h.lease_until, NULL, h.canceled_by IS NOT NULL, h.outcome)::answer)
        INTO v_done
        FROM unnest(v_left) AS l (job_id)
        LEFT JOIN LATERAL home(l.job_id) h ON true
        WHERE l.job_id <> ALL (SELECT e.job_id FROM unnest(v_ended) e)
            AND (h.state IS NULL OR h.state <> 'ended' OR h.outcome = 'success');
        v_ended := v_ended || coalesce(v_done, '{}');

        SELECT array_agg(l ORDER BY l) INTO v_left
        FROM unnest(v_left) l
        WHERE l <> ALL (SELECT e.job_id FROM unnest(v_ended) e);
        EXIT WHEN v_left IS NULL;
    END LOOP;

    RETURN QUERY
    SELECT u.ord::integer, u.job_id, e.event, CASE WHEN e.job_id IS NULL THEN 'contended' ELSE e.refusal END, coalesce(e.repeated, false), e.version, e.generation,
        e.attempt, e.at, e.lease_until, e.scheduled_for, coalesce(e.cancel_requested, false), e.outcome
    FROM unnest(redrive.jobs) WITH ORDINALITY AS u (job_id, ord)
    LEFT JOIN unnest(v_ended) e ON e.job_id = u.job_id;
END
$$;
