-- policy_digest is what stands for a policy in the events of its jobs: SHA-256 over its values in this
-- order, durations in microseconds.
CREATE OR REPLACE FUNCTION policy_digest(
    max_attempts integer, timeout interval, restart_limit integer, on_lost_lease text, backoff_base interval, backoff_factor integer,
    backoff_cap interval, backoff_jitter integer, stall_after interval)
RETURNS bytea
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT sha256(convert_to(concat_ws('|', max_attempts, microseconds(timeout), restart_limit, on_lost_lease, microseconds(backoff_base),
                  backoff_factor, microseconds(backoff_cap), backoff_jitter, coalesce(microseconds(stall_after), 0)), 'UTF8'))
$$;

-- ensure_policy returns the id of the policy with these values and adds it if there is none.
-- Whoever calls it in a transaction of its own must not remember the id before the commit.
CREATE OR REPLACE FUNCTION ensure_policy(
    max_attempts integer DEFAULT 25, timeout interval DEFAULT '1 hour', restart_limit integer DEFAULT 3,
    on_lost_lease text DEFAULT 'restart', backoff_base interval DEFAULT '1 second', backoff_factor integer DEFAULT 200,
    backoff_cap interval DEFAULT '10 minutes', backoff_jitter integer DEFAULT 20, stall_after interval DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_hash  bytea;
    v_id    integer;
    v_base  interval := elapsed(ensure_policy.backoff_base);
    v_stall interval := nullif(elapsed(ensure_policy.stall_after), '0'); -- 0 is how other languages say none
BEGIN
    PERFORM refuse_unless(ensure_policy.max_attempts BETWEEN 1 AND 1000, 'policy.max_attempts', ensure_policy.max_attempts::text, '1 to 1000');
    PERFORM refuse_unless(elapsed(ensure_policy.timeout) BETWEEN '1 second' AND '720 hours', 'policy.timeout', ensure_policy.timeout::text, '1s to 720h');
    PERFORM refuse_unless(ensure_policy.restart_limit BETWEEN 0 AND 1000, 'policy.restart_limit', ensure_policy.restart_limit::text, '0 to 1000');
    PERFORM refuse_unless(ensure_policy.on_lost_lease IN ('restart', 'fail', 'reconcile'), 'policy.on_lost_lease', ensure_policy.on_lost_lease, 'restart, fail or reconcile');
    PERFORM refuse_unless(v_base BETWEEN '1 millisecond' AND '24 hours', 'policy.backoff_base', ensure_policy.backoff_base::text, '1ms to 24h');
    PERFORM refuse_unless(ensure_policy.backoff_factor BETWEEN 100 AND 10000, 'policy.backoff_factor', ensure_policy.backoff_factor::text, '100 to 10000 percent');
    PERFORM refuse_unless(elapsed(ensure_policy.backoff_cap) BETWEEN v_base AND '720 hours', 'policy.backoff_cap', ensure_policy.backoff_cap::text, 'at least backoff_base, at most 720h');
    PERFORM refuse_unless(ensure_policy.backoff_jitter BETWEEN 0 AND 100, 'policy.backoff_jitter', ensure_policy.backoff_jitter::text, '0 to 100 percent');
    PERFORM refuse_unless(coalesce(v_stall, '1 second') BETWEEN '1 second' AND '720 hours', 'policy.stall_after', ensure_policy.stall_after::text, '0 or 1s to 720h');
    v_hash := policy_digest(ensure_policy.max_attempts, ensure_policy.timeout, ensure_policy.restart_limit, ensure_policy.on_lost_lease,
                  ensure_policy.backoff_base, ensure_policy.backoff_factor, ensure_policy.backoff_cap, ensure_policy.backoff_jitter, v_stall);
    SELECT policy_id INTO v_id FROM policy WHERE digest = v_hash;
    IF v_id IS NULL THEN
        INSERT INTO policy (digest, max_attempts, timeout, restart_limit, on_lost_lease,
                            backoff_base, backoff_factor, backoff_cap, backoff_jitter, stall_after)
        VALUES (v_hash, ensure_policy.max_attempts, elapsed(ensure_policy.timeout), ensure_policy.restart_limit, ensure_policy.on_lost_lease,
                v_base, ensure_policy.backoff_factor, elapsed(ensure_policy.backoff_cap),
                ensure_policy.backoff_jitter, v_stall)
        ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest
        RETURNING policy_id INTO v_id;
    END IF;
    RETURN v_id;
END
$$;
