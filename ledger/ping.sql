-- ping extends leases from the database's now and tells who has been asked to stop. It never
-- waits: a row that another transaction has locked answers busy and keeps the lease it has,
-- so that one slow transaction cannot cost a worker all its other leases. progress, where
-- given, is stored for the next attempt.
DROP FUNCTION IF EXISTS ping(text, uuid[], integer[], interval, text[], uuid[]);
CREATE OR REPLACE FUNCTION ping(worker text, jobs uuid[], generations integer[], lease interval DEFAULT '60 seconds',
                                progress text[] DEFAULT NULL, salts uuid[] DEFAULT NULL, altered boolean[] DEFAULT NULL)
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
    v_done    answer[];
    v_lease   interval;
    v_bodies  text[];
    v_altered boolean[];
BEGIN
    PERFORM check_worker(ping.worker, ping.lease);
    v_lease := elapsed(ping.lease);
    PERFORM check_fenced(ping.jobs, ping.generations);
    PERFORM check_shape('progress', ping.progress, cardinality(ping.jobs));
    PERFORM check_shape('salts', ping.salts, cardinality(ping.jobs));
    PERFORM check_shape('altered', ping.altered, cardinality(ping.jobs));
    SELECT s.* INTO v_bodies, v_altered FROM storable_json(ping.progress, ping.altered, 4096) s;
    PERFORM pg_current_xact_id();

    WITH input AS MATERIALIZED (
        SELECT u.job_id, u.generation, u.body, coalesce(u.salt, gen_random_uuid()) AS salt, coalesce(u.altered, false) AS altered, u.ord::integer
        FROM unnest(ping.jobs, ping.generations, v_bodies, ping.salts, v_altered) WITH ORDINALITY AS u (job_id, generation, body, salt, altered, ord)
        ORDER BY u.job_id, u.ord
    ), guard AS MATERIALIZED (
        SELECT r.job_id, i.body, i.salt, i.altered, i.ord
        FROM input i
        JOIN job_runtime r ON r.job_id = i.job_id
        WHERE r.generation = i.generation AND r.worker = ping.worker
            AND (r.lease_until IS NULL OR r.lease_until > clock())
            AND (r.timeout_at IS NULL OR r.timeout_at > clock())
        FOR UPDATE OF r SKIP LOCKED
    ), stamped AS MATERIALIZED (
        SELECT g.*, clock() AS at
        FROM guard g
    ), projection AS (
        UPDATE job_runtime r
        SET changed_at = s.at,
            pinged_at = s.at,
            lease_until = CASE WHEN r.lease_until IS NULL THEN NULL ELSE s.at + v_lease END,
            version = r.version + 1,
            progress_version = CASE WHEN s.body IS NULL THEN r.progress_version ELSE r.version + 1 END,
            progress_at = CASE WHEN s.body IS NULL THEN r.progress_at ELSE s.at END
        FROM stamped s
        WHERE r.job_id = s.job_id
        RETURNING r.job_id, r.version, r.generation, r.attempt, r.changed_at, r.lease_until, r.canceled_by, s.body, s.salt, s.altered, s.ord
    ), body AS (
        INSERT INTO job_payload (job_id, version, salt, altered, body)
        SELECT p.job_id, p.version, p.salt, p.altered, p.body
        FROM projection p
        WHERE p.body IS NOT NULL
    ), event AS (
        INSERT INTO job_event (job_id, at, version, generation, attempt, lease_until, type, actor, digest)
        SELECT p.job_id, p.changed_at, p.version, p.generation, p.attempt, p.lease_until, 'pinged', ping.worker, body_digest(p.salt, p.body)
        FROM projection p
    )
    SELECT array_agg((p.ord, p.job_id, 'pinged', NULL, false, p.version, p.generation, p.attempt, p.changed_at,
                      p.lease_until, NULL, p.canceled_by IS NOT NULL, NULL)::answer)
    INTO v_done
    FROM projection p;

    RETURN QUERY SELECT * FROM unnest(v_done);
    IF coalesce(cardinality(v_done), 0) < cardinality(ping.jobs) THEN
        RETURN QUERY SELECT * FROM refuse('ping', ping.worker, v_done, ping.jobs, ping.generations);
    END IF;
END
$$;
