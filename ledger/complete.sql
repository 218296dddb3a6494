-- complete ends running jobs with success: the result, the end of the run and the event are
-- one statement. The caller must hold the lease of the generation it shows; sent twice with
-- the same result, it answers twice alike and appends once.
DROP FUNCTION IF EXISTS complete(text, uuid[], integer[], text[], uuid[]);
CREATE OR REPLACE FUNCTION complete(worker text, jobs uuid[], generations integer[], results text[] DEFAULT NULL, salts uuid[] DEFAULT NULL,
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
BEGIN
    PERFORM check_worker(complete.worker, '1 second');
    PERFORM check_fenced(complete.jobs, complete.generations);
    PERFORM check_shape('results', complete.results, cardinality(complete.jobs));
    PERFORM check_shape('salts', complete.salts, cardinality(complete.jobs));
    PERFORM check_shape('altered', complete.altered, cardinality(complete.jobs));
    SELECT s.* INTO v_bodies, v_altered FROM storable_json(complete.results, complete.altered, 1048576) s;
    PERFORM pg_current_xact_id();

    LOOP
        BEGIN
            WITH input AS MATERIALIZED (
                SELECT u.job_id, u.generation, u.body, coalesce(u.salt, gen_random_uuid()) AS salt, coalesce(u.altered, false) AS altered, u.ord::integer
                FROM unnest(complete.jobs, complete.generations, v_bodies, complete.salts, v_altered)
                    WITH ORDINALITY AS u (job_id, generation, body, salt, altered, ord)
                ORDER BY u.job_id, u.ord
            ), guard AS (
                DELETE FROM job_runtime r
                USING input i
                WHERE r.job_id = i.job_id AND r.generation = i.generation AND r.worker = complete.worker
                    AND (r.lease_until IS NULL OR r.lease_until > clock())
                    AND (r.timeout_at IS NULL OR r.timeout_at > clock())
                RETURNING r.*, i.body, i.salt, i.altered, i.ord, clock() AS at
            ), projection AS (
                INSERT INTO job_completed (job_id, scheduled_for, enqueued_at, changed_at, started_at, version, generation, attempt,
                    restarts, policy_id, progress_version, error_version, result_version, priority, outcome, kind, tag, worker,
                    facts, canceled_by, cancel_reason)
                SELECT g.job_id, g.scheduled_for, g.enqueued_at, g.at, g.started_at, g.version + 1, g.generation, g.attempt,
                    g.restarts, g.policy_id, g.progress_version, g.error_version,
                    CASE WHEN g.body IS NULL THEN 0 ELSE g.version + 1 END, g.priority, 'success', g.kind, g.tag, g.worker,
                    g.facts, g.canceled_by, g.cancel_reason
                FROM guard g
            ), body AS (
                INSERT INTO job_payload (job_id, version, salt, altered, body)
                SELECT g.job_id, g.version + 1, g.salt, g.altered, g.body
                FROM guard g
                WHERE g.body IS NOT NULL
            ), event AS (
                INSERT INTO job_event (job_id, at, version, generation, attempt, type, actor, digest)
                SELECT g.job_id, g.at, g.version + 1, g.generation, g.attempt, 'completed', complete.worker, body_digest(g.salt, g.body)
                FROM guard g
            )
            SELECT array_agg((g.ord, g.job_id, 'completed', NULL, false, g.version + 1, g.generation, g.attempt, g.at,
                              NULL, NULL, g.canceled_by IS NOT NULL, 'success')::answer),
                least(min(g.lease_until), min(g.timeout_at))
            INTO v_done, v_until
            FROM guard g;

            -- late: the guard is not tested again after a wait for a mere lock, so the clock is
            -- read once more behind every lock. Who was late is undone and sent the long way.
            IF v_until <= clock() THEN
                RAISE EXCEPTION USING ERRCODE = 'JL000';
            END IF;
            EXIT;
        EXCEPTION WHEN SQLSTATE 'JL000' THEN
            PERFORM FROM job_runtime r WHERE r.job_id = ANY (complete.jobs) ORDER BY r.job_id FOR UPDATE;
        END;
    END LOOP;

    PERFORM bound_idle(v_until);
    RETURN QUERY SELECT * FROM unnest(v_done);
    IF coalesce(cardinality(v_done), 0) < cardinality(complete.jobs) THEN
        RETURN QUERY SELECT * FROM refuse('complete', complete.worker, v_done, complete.jobs, complete.generations,
                                          v_bodies, complete.salts);
    END IF;
END
$$;
