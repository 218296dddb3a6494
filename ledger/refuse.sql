-- refuse answers for the jobs of a fenced call that its guard did not take: those of jobs that
-- are not in done. It runs in a new statement, because the guard's own snapshot may be older
-- than the move that made it fail. A closing call that an earlier sending has already carried
-- out gets that answer again. Otherwise the reason is told, and one rejected event per
-- generation and verb records that a late caller was there.
CREATE OR REPLACE FUNCTION refuse(verb text, worker text, done answer[], jobs uuid[], generations integer[],
                                  bodies text[] DEFAULT NULL, salts uuid[] DEFAULT NULL, classes text[] DEFAULT NULL)
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
    i       record;
    h       record;
    first   record;
    v_why   text;
BEGIN
    PERFORM check_snapshot(refuse.jobs);
    FOR i IN
        SELECT u.job_id, u.generation, u.body, u.salt, coalesce(u.class, 'transient') AS class, u.ord::integer
        FROM unnest(refuse.jobs, refuse.generations, refuse.bodies, refuse.salts, refuse.classes)
            WITH ORDINALITY AS u (job_id, generation, body, salt, class, ord)
        WHERE u.ord <> ALL (SELECT d.ord FROM unnest(refuse.done) d)
        ORDER BY u.job_id, u.ord
    LOOP
        SELECT * INTO h FROM home(i.job_id);
        v_why := CASE
            WHEN h.state IS NULL THEN 'not_found'
            WHEN i.generation NOT BETWEEN 1 AND h.generation THEN 'unknown_generation'
            WHEN i.generation < h.generation THEN 'fenced'
            WHEN h.worker IS DISTINCT FROM refuse.worker THEN 'fenced'
            WHEN h.state = 'ended' THEN 'ended'
            WHEN h.state = 'waiting' THEN 'fenced'
            WHEN h.timeout_at <= clock() THEN 'timed_out'
            WHEN h.lease_until <= clock() THEN 'lease_over'
            -- The guard would take it now: it was locked (ping does not wait), or it moved twice.
            WHEN refuse.verb = 'ping' THEN 'busy'
            ELSE 'contended' END;

        IF v_why NOT IN ('not_found', 'unknown_generation', 'busy', 'contended') THEN
            SELECT e.type, e.version, e.attempt, e.at, e.scheduled_for INTO first
            FROM job_event e
            LEFT JOIN job_payload b ON b.job_id = e.job_id AND b.version = e.version
            WHERE refuse.verb <> 'ping' AND e.job_id = i.job_id AND e.generation = i.generation AND e.actor = refuse.worker
                AND e.type = ANY (CASE refuse.verb
                    WHEN 'complete' THEN ARRAY['completed']
                    WHEN 'fail' THEN ARRAY['retried', 'failed', 'canceled']
                    WHEN 'release' THEN ARRAY['released', 'canceled']
                    WHEN 'snooze' THEN ARRAY['snoozed', 'canceled'] END)
                AND (refuse.verb <> 'fail' OR e.class = i.class)
                AND e.digest IS NOT DISTINCT FROM body_digest(coalesce(b.salt, i.salt), i.body)
            ORDER BY e.version
            LIMIT 1;
            IF FOUND THEN
                RETURN NEXT (i.ord, i.job_id, first.type, NULL, true, first.version, i.generation, first.attempt, first.at, NULL,
                             first.scheduled_for, false,
                             CASE first.type WHEN 'completed' THEN 'success' WHEN 'failed' THEN 'failure' WHEN 'canceled' THEN 'canceled' END)::answer;
                CONTINUE;
            END IF;
            PERFORM reject(i.job_id, h.version, i.generation, refuse.verb, refuse.worker, v_why);
        END IF;
        RETURN NEXT (i.ord, i.job_id, NULL, v_why, false, h.version, h.generation, h.attempt, NULL, h.lease_until, NULL,
                     h.canceled_by IS NOT NULL, h.outcome)::answer;
    END LOOP;
END
$$;

-- check_snapshot raises 40001 where an answer would tell of what was: in a transaction that keeps its
-- first snapshot (REPEATABLE READ and above), of a job that has moved or changed since. Trying to lock
-- the row is what tells. It never waits; a row that is locked has not changed yet.
CREATE OR REPLACE FUNCTION check_snapshot(jobs uuid[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM FROM job_queue q WHERE q.job_id = ANY (check_snapshot.jobs) FOR SHARE SKIP LOCKED;
        PERFORM FROM job_runtime r WHERE r.job_id = ANY (check_snapshot.jobs) FOR SHARE SKIP LOCKED;
        PERFORM FROM job_completed c WHERE c.job_id = ANY (check_snapshot.jobs) FOR SHARE SKIP LOCKED;
    END IF;
END
$$;

-- home finds a job in whichever home it is, in one snapshot: not found here is not found.
CREATE OR REPLACE FUNCTION home(job_id uuid)
RETURNS TABLE (state text, version integer, generation integer, attempt integer, worker text,
               lease_until timestamptz, timeout_at timestamptz, canceled_by text, outcome text)
LANGUAGE sql VOLATILE
SET search_path FROM CURRENT
AS $$
    SELECT 'waiting', q.version, q.generation, q.attempt, NULL, NULL::timestamptz, NULL::timestamptz, NULL, NULL
    FROM job_queue q WHERE q.job_id = home.job_id
    UNION ALL
    SELECT 'running', r.version, r.generation, r.attempt, r.worker, r.lease_until, r.timeout_at, r.canceled_by, NULL
    FROM job_runtime r WHERE r.job_id = home.job_id
    UNION ALL
    SELECT 'ended', c.version, c.generation, c.attempt, c.worker, NULL, NULL, c.canceled_by, c.outcome
    FROM job_completed c WHERE c.job_id = home.job_id
$$;

-- acted answers for the jobs that an operation of cancel or redrive has acted on already.
CREATE OR REPLACE FUNCTION acted(jobs uuid[], operation uuid, types text[]) RETURNS SETOF answer
LANGUAGE sql
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
    SELECT 0, e.job_id, e.type, NULL::text, true, e.version, e.generation, e.attempt, e.at, NULL::timestamptz, e.scheduled_for, false,
        CASE e.type WHEN 'canceled' THEN 'canceled' END
    FROM unnest(acted.jobs) AS j (job_id)
    CROSS JOIN LATERAL (
        SELECT *
        FROM job_event e
        WHERE e.job_id = j.job_id AND e.operation = acted.operation AND e.type = ANY (acted.types)
        ORDER BY e.version
        LIMIT 1) e
    WHERE acted.operation IS NOT NULL
$$;

-- reject appends a rejected event if the job is still at the version that was judged and has
-- none yet for this generation and verb. It never waits: a locked row is left alone.
CREATE OR REPLACE FUNCTION reject(job_id uuid, version integer, generation integer, verb text, worker text, reason text)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM job_event e
    WHERE e.job_id = reject.job_id AND e.generation = reject.generation AND e.type = 'rejected' AND e.verb = reject.verb;
    IF FOUND THEN
        RETURN;
    END IF;
    WITH queued AS (
        UPDATE job_queue q SET version = q.version + 1
        WHERE q.job_id = (SELECT w.job_id FROM job_queue w
                          WHERE w.job_id = reject.job_id AND w.version = reject.version FOR UPDATE SKIP LOCKED)
        RETURNING q.job_id, q.version, q.attempt
    ), running AS (
        UPDATE job_runtime r SET version = r.version + 1
        WHERE r.job_id = (SELECT w.job_id FROM job_runtime w
                          WHERE w.job_id = reject.job_id AND w.version = reject.version FOR UPDATE SKIP LOCKED)
        RETURNING r.job_id, r.version, r.attempt
    ), ended AS (
        UPDATE job_completed c SET version = c.version + 1
        WHERE c.job_id = (SELECT w.job_id FROM job_completed w
                          WHERE w.job_id = reject.job_id AND w.version = reject.version FOR UPDATE SKIP LOCKED)
        RETURNING c.job_id, c.version, c.attempt
    ), projection AS (
        SELECT * FROM queued UNION ALL SELECT * FROM running UNION ALL SELECT * FROM ended
    )
    INSERT INTO job_event (job_id, at, version, generation, attempt, type, actor, verb, reason)
    SELECT p.job_id, clock(), p.version, reject.generation, p.attempt, 'rejected', reject.worker, reject.verb, reject.reason
    FROM projection p;
END
$$;
