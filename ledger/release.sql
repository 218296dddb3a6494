-- release gives running jobs back unspent: the attempt is forgiven and the due time is kept, so
-- that another worker can start them at once. A cancel mark ends them instead.
CREATE OR REPLACE FUNCTION release(worker text, jobs uuid[], generations integer[])
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
    v_done  answer[];
    v_until timestamptz;
    v_tags  text[];
BEGIN
    PERFORM check_worker(release.worker, '1 second');
    PERFORM check_fenced(release.jobs, release.generations);
    PERFORM pg_current_xact_id();

    LOOP
        BEGIN
            WITH input AS MATERIALIZED (
                SELECT u.job_id, u.generation, u.ord::integer
                FROM unnest(release.jobs, release.generations) WITH ORDINALITY AS u (job_id, generation, ord)
                ORDER BY u.job_id, u.ord
            ), guard AS (
                DELETE FROM job_runtime r
                USING input i
                WHERE r.job_id = i.job_id AND r.generation = i.generation AND r.worker = release.worker
                    AND (r.lease_until IS NULL OR r.lease_until > clock())
                    AND (r.timeout_at IS NULL OR r.timeout_at > clock())
                RETURNING r.*, i.ord, clock() AS at
            ), judged AS MATERIALIZED (
                SELECT g.*,
                    CASE WHEN g.canceled_by IS NOT NULL THEN 'canceled' ELSE 'released' END AS event,
                    g.attempt - CASE WHEN g.canceled_by IS NOT NULL THEN 0 ELSE 1 END AS attempt_after,
                    g.scheduled_for AS due
                FROM guard g
            ), queued AS (
                INSERT INTO job_queue (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
                    progress_version, error_version, priority, ready, kind, tag, facts)
                SELECT j.job_id, j.due, j.enqueued_at, j.at, j.version + 1, j.generation, j.attempt_after, j.restarts, j.policy_id,
                    j.progress_version, j.error_version, j.priority, j.due <= j.at, j.kind, j.tag, j.facts
                FROM judged j
                WHERE j.event <> 'canceled'
            ), ended AS (
                INSERT INTO job_completed (job_id, scheduled_for, enqueued_at, changed_at, started_at, version, generation, attempt,
                    restarts, policy_id, progress_version, error_version, priority, outcome, kind, tag, worker, facts,
                    canceled_by, cancel_reason)
                SELECT j.job_id, j.scheduled_for, j.enqueued_at, j.at, j.started_at, j.version + 1, j.generation, j.attempt_after,
                    j.restarts, j.policy_id, j.progress_version, j.error_version, j.priority, 'canceled', j.kind, j.tag, j.worker, j.facts,
                    j.canceled_by, j.cancel_reason
                FROM judged j
                WHERE j.event = 'canceled'
            ), event AS (
                INSERT INTO job_event (job_id, at, version, generation, attempt, scheduled_for, type, actor, reason)
                SELECT j.job_id, j.at, j.version + 1, j.generation, j.attempt_after, NULL,
                    j.event, release.worker, CASE j.event WHEN 'canceled' THEN j.cancel_reason END
                FROM judged j
            )
            SELECT array_agg((j.ord, j.job_id, j.event, NULL, false, j.version + 1, j.generation, j.attempt_after, j.at, NULL,
                              CASE j.event WHEN 'released' THEN j.due END, j.canceled_by IS NOT NULL,
                              CASE j.event WHEN 'canceled' THEN 'canceled' END)::answer),
                least(min(j.lease_until), min(j.timeout_at)), array_agg(j.tag) FILTER (WHERE j.event = 'released' AND j.due <= j.at)
            INTO v_done, v_until, v_tags
            FROM judged j;

            -- late: see complete.
            IF v_until <= clock() THEN
                RAISE EXCEPTION USING ERRCODE = 'JL000';
            END IF;
            EXIT;
        EXCEPTION WHEN SQLSTATE 'JL000' THEN
            PERFORM FROM job_runtime r WHERE r.job_id = ANY (release.jobs) ORDER BY r.job_id FOR UPDATE;
        END;
    END LOOP;

    PERFORM bound_idle(v_until);
    PERFORM wake(v_tags);
    RETURN QUERY SELECT * FROM unnest(v_done);
    IF coalesce(cardinality(v_done), 0) < cardinality(release.jobs) THEN
        RETURN QUERY SELECT * FROM refuse('release', release.worker, v_done, release.jobs, release.generations);
    END IF;
END
$$;
