-- claim gives a worker up to max_jobs due jobs of its tags, each under a new generation, and
-- answers with what it needs to run them. Highest priority first, then the earliest due, then
-- the smallest id. When fewer came back because others held locks, a last row without a job_id
-- says so (contended): the queue is then not empty, ask again at once.
CREATE OR REPLACE FUNCTION claim(worker text, tags text[], max_jobs integer DEFAULT 1, lease interval DEFAULT '60 seconds')
RETURNS TABLE (job_id uuid, generation integer, attempt integer, restarts integer, version integer, kind text, tag text,
               priority smallint, args text, facts text, progress text, last_error text, policy_id integer,
               enqueued_at timestamptz, scheduled_for timestamptz, started_at timestamptz,
               lease_until timestamptz, timeout_at timestamptz, contended boolean)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := clock();
    v_lease  interval;
    v_found  integer := 0;
    v_taken  integer := 0;
BEGIN
    PERFORM check_worker(claim.worker, claim.lease);
    v_lease := elapsed(claim.lease);
    PERFORM check_list('tags', claim.tags, 1);
    IF claim.max_jobs IS NULL OR claim.max_jobs NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse_field(1, 'max_jobs', claim.max_jobs::text, '1 to 10000');
    END IF;

    -- ready: what has become due since somebody last looked enters the claim's index. One
    -- probe per tag when nothing has. This is a hint and no transition. It is bounded, the earliest
    -- due first: when more jobs of a tag than that become due at once, priority holds among those.
    UPDATE job_queue q
    SET ready = true
    FROM (SELECT DISTINCT unnest(claim.tags) AS tag) t
    CROSS JOIN LATERAL (
        SELECT w.job_id
        FROM job_queue w
        WHERE w.tag = t.tag AND NOT w.ready AND w.held IS NULL AND w.scheduled_for <= v_now
        ORDER BY w.scheduled_for
        LIMIT greatest(4 * claim.max_jobs, 100)
        FOR UPDATE SKIP LOCKED) due
    WHERE q.job_id = due.job_id;

    RETURN QUERY
    WITH candidate AS MATERIALIZED (
        -- One ordered scan per tag that stops early, then the best over all tags. Four times as
        -- many as wanted, so that two claimers who see the same head do not starve each other.
        SELECT c.job_id, c.priority, c.scheduled_for
        FROM (SELECT DISTINCT unnest(claim.tags) AS tag) t
        CROSS JOIN LATERAL (
            SELECT w.job_id, w.priority, w.scheduled_for
            FROM job_queue w
            WHERE w.tag = t.tag AND w.ready AND w.held IS NULL
            ORDER BY w.priority DESC, w.scheduled_for, w.job_id
            LIMIT 4 * claim.max_jobs) c
        WHERE NOT EXISTS (SELECT FROM tag_state s WHERE s.tag = t.tag AND s.paused_at IS NOT NULL)
        ORDER BY c.priority DESC, c.scheduled_for, c.job_id
        LIMIT 4 * claim.max_jobs
    ), guard AS MATERIALIZED (
        -- Locks no more rows than are taken; a row that changed since the scan is tested again.
        SELECT q.job_id
        FROM candidate c
        JOIN job_queue q ON q.job_id = c.job_id
        WHERE q.tag = ANY (claim.tags) AND q.held IS NULL AND q.scheduled_for <= v_now
        ORDER BY c.priority DESC, c.scheduled_for, c.job_id
        LIMIT claim.max_jobs
        FOR UPDATE OF q SKIP LOCKED
    ), moved AS (
        DELETE FROM job_queue q
        USING guard g
        WHERE q.job_id = g.job_id
        RETURNING q.*, clock() AS at
    ), projection AS (
        INSERT INTO job_runtime AS r (job_id, scheduled_for, enqueued_at, changed_at, started_at, lease_until, timeout_at,
            version, generation, attempt, restarts, policy_id, progress_version, error_version, priority, worker, kind, tag, facts)
        SELECT m.job_id, m.scheduled_for, m.enqueued_at, m.at, m.at,
            CASE WHEN p.on_lost_lease = 'reconcile' THEN NULL ELSE m.at + v_lease END,
            CASE WHEN p.on_lost_lease = 'reconcile' THEN NULL ELSE m.at + p.timeout END,
            m.version + 1, m.generation + 1, m.attempt + 1, m.restarts, m.policy_id, m.progress_version, m.error_version,
            m.priority, claim.worker, m.kind, m.tag, m.facts
        FROM moved m
        LEFT JOIN policy p ON p.policy_id = m.policy_id
        RETURNING r.*
    ), event AS (
        -- seq is taken here, after the row locks above gave this transaction its id.
        INSERT INTO job_event (job_id, at, version, generation, attempt, lease_until, type, actor)
        SELECT r.job_id, r.changed_at, r.version, r.generation, r.attempt, r.lease_until, 'claimed', claim.worker
        FROM projection r
    )
    SELECT r.job_id, r.generation, r.attempt, r.restarts, r.version, r.kind, r.tag, r.priority,
        (SELECT b.body FROM job_payload b WHERE b.job_id = r.job_id AND b.version = 1),
        r.facts,
        CASE WHEN r.progress_version > 0 THEN
            (SELECT b.body FROM job_payload b WHERE b.job_id = r.job_id AND b.version = r.progress_version) END,
        CASE WHEN r.error_version > 0 THEN
            (SELECT b.body FROM job_payload b WHERE b.job_id = r.job_id AND b.version = r.error_version) END,
        r.policy_id, r.enqueued_at, r.scheduled_for, r.started_at, r.lease_until, r.timeout_at, false
    FROM projection r
    ORDER BY r.priority DESC, r.scheduled_for, r.job_id;
    GET DIAGNOSTICS v_taken = ROW_COUNT;

    IF v_taken < claim.max_jobs THEN
        -- What is still there to be claimed, locked by others, in a new statement.
        SELECT count(*) INTO v_found
        FROM (SELECT DISTINCT unnest(claim.tags) AS tag) t
        CROSS JOIN LATERAL (
            SELECT w.job_id
            FROM job_queue w
            WHERE w.tag = t.tag AND w.ready AND w.held IS NULL AND w.scheduled_for <= v_now
            ORDER BY w.priority DESC, w.scheduled_for, w.job_id
            LIMIT 1) c
        WHERE NOT EXISTS (SELECT FROM tag_state s WHERE s.tag = t.tag AND s.paused_at IS NOT NULL);
        IF v_found > 0 THEN
            RETURN QUERY SELECT NULL::uuid, NULL::integer, NULL::integer, NULL::integer, NULL::integer, NULL, NULL, NULL::smallint,
                NULL, NULL, NULL, NULL, NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
                NULL::timestamptz, NULL::timestamptz, true;
        END IF;
    END IF;
END
$$;
