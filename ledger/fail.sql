-- fail ends an attempt that did not succeed. A cancel mark wins over everything; then the
-- handler's word (permanent, or class invalid_input); then the budget: with attempts left the
-- job is due again after the delay given, or else after the one its policy computes.
DROP FUNCTION IF EXISTS fail(text, uuid[], integer[], text[], text[], uuid[], interval[], boolean[]);
CREATE OR REPLACE FUNCTION fail(worker text, jobs uuid[], generations integer[], classes text[] DEFAULT NULL, errors text[] DEFAULT NULL,
                                salts uuid[] DEFAULT NULL, delays interval[] DEFAULT NULL, permanent boolean[] DEFAULT NULL,
                                altered boolean[] DEFAULT NULL)
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
    v_bodies text[];
    v_altered boolean[];
    v_tags  text[];
BEGIN
    PERFORM check_worker(fail.worker, '1 second');
    PERFORM check_fenced(fail.jobs, fail.generations);
    PERFORM check_shape('classes', fail.classes, cardinality(fail.jobs));
    PERFORM check_shape('errors', fail.errors, cardinality(fail.jobs));
    PERFORM check_shape('salts', fail.salts, cardinality(fail.jobs));
    PERFORM check_shape('delays', fail.delays, cardinality(fail.jobs));
    PERFORM check_shape('permanent', fail.permanent, cardinality(fail.jobs));
    PERFORM check_shape('altered', fail.altered, cardinality(fail.jobs));
    PERFORM check_classes(fail.classes);
    PERFORM check_delays(fail.delays);
    SELECT s.* INTO v_bodies, v_altered FROM storable_errors(fail.errors, fail.altered) s;
    PERFORM pg_current_xact_id();

    LOOP
        BEGIN
            WITH input AS MATERIALIZED (
                SELECT u.job_id, u.generation, coalesce(u.class, 'transient') AS class, u.body, coalesce(u.salt, gen_random_uuid()) AS salt,
                    coalesce(u.altered, false) AS altered, u.delay, coalesce(u.permanent, false) AS permanent, u.ord::integer
                FROM unnest(fail.jobs, fail.generations, fail.classes, v_bodies, fail.salts, v_altered, fail.delays, fail.permanent)
                    WITH ORDINALITY AS u (job_id, generation, class, body, salt, altered, delay, permanent, ord)
                ORDER BY u.job_id, u.ord
            ), guard AS (
                DELETE FROM job_runtime r
                USING input i
                WHERE r.job_id = i.job_id AND r.generation = i.generation AND r.worker = fail.worker
                    AND (r.lease_until IS NULL OR r.lease_until > clock())
                    AND (r.timeout_at IS NULL OR r.timeout_at > clock())
                RETURNING r.*, i.class, i.body, i.salt, i.altered, i.delay, i.permanent, i.ord, clock() AS at
            ), judged AS MATERIALIZED (
                SELECT g.*,
                    CASE WHEN g.canceled_by IS NOT NULL THEN 'canceled'
                         WHEN g.permanent OR g.class = 'invalid_input' OR g.attempt >= p.max_attempts THEN 'failed'
                         ELSE 'retried' END AS event,
                    CASE WHEN g.canceled_by IS NOT NULL THEN g.cancel_reason
                         WHEN g.permanent THEN 'permanent'
                         WHEN g.class = 'invalid_input' THEN 'invalid_input'
                         WHEN g.attempt >= p.max_attempts THEN 'attempts_exhausted' END AS reason,
                    g.at + coalesce(elapsed(g.delay), retry_delay(p.backoff_base, p.backoff_factor, p.backoff_cap, p.backoff_jitter, g.job_id, g.attempt)) AS due
                FROM guard g
                LEFT JOIN policy p ON p.policy_id = g.policy_id
            ), queued AS (
                INSERT INTO job_queue (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
                    progress_version, error_version, priority, ready, kind, tag, facts)
                SELECT j.job_id, j.due, j.enqueued_at, j.at, j.version + 1, j.generation, j.attempt, j.restarts, j.policy_id,
                    j.progress_version, CASE WHEN j.body IS NULL THEN j.error_version ELSE j.version + 1 END,
                    j.priority, j.due <= j.at, j.kind, j.tag, j.facts
                FROM judged j
                WHERE j.event = 'retried'
            ), ended AS (
                INSERT INTO job_completed (job_id, scheduled_for, enqueued_at, changed_at, started_at, version, generation, attempt,
                    restarts, policy_id, progress_version, error_version, priority, outcome, kind, tag, worker, facts,
                    class, reason, canceled_by, cancel_reason)
                SELECT j.job_id, j.scheduled_for, j.enqueued_at, j.at, j.started_at, j.version + 1, j.generation, j.attempt,
                    j.restarts, j.policy_id, j.progress_version, CASE WHEN j.body IS NULL THEN j.error_version ELSE j.version + 1 END,
                    j.priority, CASE j.event WHEN 'failed' THEN 'failure' ELSE 'canceled' END, j.kind, j.tag, j.worker, j.facts,
                    CASE j.event WHEN 'failed' THEN j.class END, CASE j.event WHEN 'failed' THEN j.reason END, j.canceled_by, j.cancel_reason
                FROM judged j
                WHERE j.event <> 'retried'
            ), body AS (
                INSERT INTO job_payload (job_id, version, salt, altered, body)
                SELECT j.job_id, j.version + 1, j.salt, j.altered, j.body
                FROM judged j
                WHERE j.body IS NOT NULL
            ), event AS (
                INSERT INTO job_event (job_id, at, version, generation, attempt, scheduled_for, type, actor, class, reason, digest)
                SELECT j.job_id, j.at, j.version + 1, j.generation, j.attempt, CASE j.event WHEN 'retried' THEN j.due END,
                    j.event, fail.worker, j.class, j.reason, body_digest(j.salt, j.body)
                FROM judged j
            )
            SELECT array_agg((j.ord, j.job_id, j.event, NULL, false, j.version + 1, j.generation, j.attempt, j.at, NULL,
                              CASE j.event WHEN 'retried' THEN j.due END, j.canceled_by IS NOT NULL,
                              CASE j.event WHEN 'failed' THEN 'failure' WHEN 'canceled' THEN 'canceled' END)::answer),
                least(min(j.lease_until), min(j.timeout_at)), array_agg(j.tag) FILTER (WHERE j.event = 'retried' AND j.due <= j.at)
            INTO v_done, v_until, v_tags
            FROM judged j;

            -- late: see complete.
            IF v_until <= clock() THEN
                RAISE EXCEPTION USING ERRCODE = 'JL000';
            END IF;
            EXIT;
        EXCEPTION WHEN SQLSTATE 'JL000' THEN
            PERFORM FROM job_runtime r WHERE r.job_id = ANY (fail.jobs) ORDER BY r.job_id FOR UPDATE;
        END;
    END LOOP;

    PERFORM bound_idle(v_until);
    PERFORM wake(v_tags);
    RETURN QUERY SELECT * FROM unnest(v_done);
    IF coalesce(cardinality(v_done), 0) < cardinality(fail.jobs) THEN
        RETURN QUERY SELECT * FROM refuse('fail', fail.worker, v_done, fail.jobs, fail.generations,
                                          v_bodies, fail.salts, fail.classes);
    END IF;
END
$$;
