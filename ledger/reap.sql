-- reap takes back running jobs whose lease or time-out is over, up to max_jobs, of the given tags (null:
-- all). A locked row is passed over: somebody is deciding about it. Tests in this order: cancel
-- mark, limit, back to the queue. What came first, the end of the lease or the time-out, is the
-- cause, whenever the reaper comes by.
CREATE OR REPLACE FUNCTION reap(actor text, max_jobs integer DEFAULT 500, tags text[] DEFAULT NULL)
RETURNS SETOF answer
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_done answer[];
    v_tags text[];
BEGIN
    PERFORM refuse_unless(reap.actor IS NOT NULL, 'actor', NULL, '1 to 255 bytes of UTF-8 without control characters');
    PERFORM check_text('actor', ARRAY[reap.actor], 255, true);
    IF reap.tags IS NOT NULL THEN
        PERFORM check_list('tags', reap.tags, 0);
    END IF;
    IF reap.max_jobs IS NULL OR reap.max_jobs NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse_field(1, 'max_jobs', reap.max_jobs::text, '1 to 10000');
    END IF;

    WITH guard AS MATERIALIZED (
        SELECT r.job_id
        FROM job_runtime r
        WHERE (r.lease_until <= clock() OR r.timeout_at <= clock())
            AND (reap.tags IS NULL OR r.tag = ANY (reap.tags))
        LIMIT reap.max_jobs
        FOR UPDATE SKIP LOCKED
    ), moved AS (
        DELETE FROM job_runtime r
        USING guard g
        WHERE r.job_id = g.job_id
        RETURNING r.*, clock() AS at
    ), judged AS MATERIALIZED (
        SELECT m.*, c.by_timeout,
            CASE WHEN m.canceled_by IS NOT NULL THEN 'canceled'
                 WHEN c.by_timeout AND m.attempt >= p.max_attempts THEN 'failed'
                 WHEN c.by_timeout THEN 'retried'
                 WHEN p.on_lost_lease = 'fail' OR m.restarts >= p.restart_limit THEN 'failed'
                 ELSE 'reaped' END AS event,
            CASE WHEN m.canceled_by IS NOT NULL THEN m.cancel_reason
                 WHEN c.by_timeout THEN CASE WHEN m.attempt >= p.max_attempts THEN 'attempts_exhausted' END
                 WHEN p.on_lost_lease = 'fail' THEN 'lease_lost'
                 WHEN m.restarts >= p.restart_limit THEN 'restart_limit' END AS reason,
            CASE WHEN c.by_timeout
                 THEN m.at + retry_delay(p.backoff_base, p.backoff_factor, p.backoff_cap, p.backoff_jitter, m.job_id, m.attempt)
                 ELSE m.scheduled_for END AS due
        FROM moved m
        LEFT JOIN policy p ON p.policy_id = m.policy_id
        CROSS JOIN LATERAL (SELECT coalesce(m.timeout_at <= m.at AND m.lease_until >= m.timeout_at, false) AS by_timeout) c
    ), queued AS (
        INSERT INTO job_queue (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
            progress_version, error_version, priority, ready, kind, tag, facts)
        SELECT j.job_id, j.due, j.enqueued_at, j.at, j.version + 1, j.generation, j.attempt - CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END,
            j.restarts + CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END, j.policy_id, j.progress_version, j.error_version, j.priority,
            j.due <= j.at, j.kind, j.tag, j.facts
        FROM judged j
        WHERE j.event IN ('reaped', 'retried')
    ), ended AS (
        INSERT INTO job_completed (job_id, scheduled_for, enqueued_at, changed_at, started_at, version, generation, attempt, restarts,
            policy_id, progress_version, error_version, priority, outcome, kind, tag, worker, facts, class, reason, canceled_by, cancel_reason)
        SELECT j.job_id, j.scheduled_for, j.enqueued_at, j.at, j.started_at, j.version + 1, j.generation, j.attempt, j.restarts,
            j.policy_id, j.progress_version, j.error_version, j.priority, CASE j.event WHEN 'failed' THEN 'failure' ELSE 'canceled' END,
            j.kind, j.tag, j.worker, j.facts, CASE j.event WHEN 'failed' THEN CASE WHEN j.by_timeout THEN 'timeout' ELSE 'crash' END END,
            CASE j.event WHEN 'failed' THEN j.reason END, j.canceled_by, j.cancel_reason
        FROM judged j
        WHERE j.event IN ('failed', 'canceled')
    ), event AS (
        INSERT INTO job_event (job_id, at, version, generation, attempt, scheduled_for, type, actor, class, reason)
        SELECT j.job_id, j.at, j.version + 1, j.generation, j.attempt - CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END,
            CASE j.event WHEN 'retried' THEN j.due END, j.event, reap.actor,
            CASE WHEN j.event IN ('retried', 'failed') THEN CASE WHEN j.by_timeout THEN 'timeout' ELSE 'crash' END END, j.reason
        FROM judged j
    )
    SELECT array_agg((j.ord, j.job_id, j.event, NULL, false, j.version + 1, j.generation,
                      j.attempt - CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END, j.at, NULL,
                      CASE WHEN j.event IN ('reaped', 'retried') THEN j.due END, j.canceled_by IS NOT NULL,
                      CASE j.event WHEN 'failed' THEN 'failure' WHEN 'canceled' THEN 'canceled' END)::answer),
        array_agg(j.tag) FILTER (WHERE j.event IN ('reaped', 'retried') AND j.due <= j.at)
    INTO v_done, v_tags
    FROM (SELECT row_number() OVER ()::integer AS ord, g.* FROM judged g) j;

    PERFORM wake(v_tags);
    RETURN QUERY SELECT * FROM unnest(v_done);
END
$$;
