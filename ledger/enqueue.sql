-- enqueue_many creates jobs: all of them or none. Each array but kinds may be null or hold
-- nulls, which mean the defaults: a new id, tag default, priority 0, due now (or after delays),
-- no args, policy 1. With a key, the first job that used it is returned again (repeated) when
-- kind and args are the same; other args refuse the whole batch (key_conflict), and so does a
-- key that an open transaction holds for longer than five seconds (key_busy): the answers are
-- then the refused elements alone, and nothing is stored. The same goes for an id in jobs that
-- belongs to a job already (exists); fresh says that all of them were made for this call, and so
-- need no look into the homes. again says that the very same call, with the same jobs and salts, may
-- have been carried out without its answer getting through: what it has stored is answered
-- (enqueued, repeated) and not stored twice.
DROP FUNCTION IF EXISTS enqueue_many(text[], text[], text[], integer[], timestamptz[], interval[], integer[], text[], interval[], text[],
    text[], text[], uuid[], uuid[], integer[], uuid[], uuid[], text, boolean);
CREATE OR REPLACE FUNCTION enqueue_many(
    kinds text[], args text[] DEFAULT NULL, tags text[] DEFAULT NULL, priorities integer[] DEFAULT NULL,
    scheduled_for timestamptz[] DEFAULT NULL, delays interval[] DEFAULT NULL, policies integer[] DEFAULT NULL,
    keys text[] DEFAULT NULL, key_ttls interval[] DEFAULT NULL, facts text[] DEFAULT NULL,
    trigger_kinds text[] DEFAULT NULL, trigger_refs text[] DEFAULT NULL, parents uuid[] DEFAULT NULL,
    works uuid[] DEFAULT NULL, pins integer[] DEFAULT NULL, jobs uuid[] DEFAULT NULL, salts uuid[] DEFAULT NULL,
    actor text DEFAULT NULL, fresh boolean DEFAULT false, again boolean DEFAULT false)
RETURNS SETOF answer
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
    v_jobs     uuid[];
    v_chosen   uuid[] := enqueue_many.jobs;
    v_keys     text[] := enqueue_many.keys;
    v_before   answer[];
    v_taken    answer[];
    v_keyed    answer[];
    v_store    boolean[];
BEGIN
    IF enqueue_many.kinds IS NULL THEN
        PERFORM refuse_field(1, 'kinds', NULL, 'a kind for each job');
    END IF;
    PERFORM check_shape('kinds', enqueue_many.kinds, cardinality(enqueue_many.kinds));
    PERFORM check_shape('args', enqueue_many.args, cardinality(enqueue_many.kinds));
    PERFORM check_shape('tags', enqueue_many.tags, cardinality(enqueue_many.kinds));
    PERFORM check_shape('priorities', enqueue_many.priorities, cardinality(enqueue_many.kinds));
    PERFORM check_shape('scheduled_for', enqueue_many.scheduled_for, cardinality(enqueue_many.kinds));
    PERFORM check_shape('delays', enqueue_many.delays, cardinality(enqueue_many.kinds));
    PERFORM check_shape('policies', enqueue_many.policies, cardinality(enqueue_many.kinds));
    PERFORM check_shape('keys', enqueue_many.keys, cardinality(enqueue_many.kinds));
    PERFORM check_shape('key_ttls', enqueue_many.key_ttls, cardinality(enqueue_many.kinds));
    PERFORM check_shape('facts', enqueue_many.facts, cardinality(enqueue_many.kinds));
    PERFORM check_shape('trigger_kinds', enqueue_many.trigger_kinds, cardinality(enqueue_many.kinds));
    PERFORM check_shape('trigger_refs', enqueue_many.trigger_refs, cardinality(enqueue_many.kinds));
    PERFORM check_shape('parents', enqueue_many.parents, cardinality(enqueue_many.kinds));
    PERFORM check_shape('works', enqueue_many.works, cardinality(enqueue_many.kinds));
    PERFORM check_shape('pins', enqueue_many.pins, cardinality(enqueue_many.kinds));
    PERFORM check_shape('jobs', enqueue_many.jobs, cardinality(enqueue_many.kinds));
    PERFORM check_shape('salts', enqueue_many.salts, cardinality(enqueue_many.kinds));
    PERFORM check_enqueue(enqueue_many.kinds, enqueue_many.args, enqueue_many.tags, enqueue_many.priorities,
        enqueue_many.scheduled_for, enqueue_many.policies, enqueue_many.facts, enqueue_many.key_ttls, enqueue_many.delays);
    PERFORM check_delays(enqueue_many.delays);
    PERFORM check_text('key', enqueue_many.keys, 255, true);
    PERFORM check_names('trigger_kind', enqueue_many.trigger_kinds);
    PERFORM check_text('trigger_ref', enqueue_many.trigger_refs, 1024, true);
    PERFORM check_text('actor', ARRAY[enqueue_many.actor], 255, true);
    IF NOT coalesce(enqueue_many.fresh, false) THEN
        PERFORM check_ids(enqueue_many.jobs, enqueue_many.keys);
    END IF;
    PERFORM pg_current_xact_id();

    SELECT array_agg(coalesce(u.job_id, new_job_id()) ORDER BY u.ord) INTO v_jobs
    FROM unnest(enqueue_many.kinds, enqueue_many.jobs) WITH ORDINALITY AS u (kind, job_id, ord);

    IF enqueue_many.again THEN
        SELECT array_agg(b) INTO v_before FROM stored_before(enqueue_many.jobs, enqueue_many.salts) b;
        SELECT array_agg(CASE WHEN b.ord IS NULL THEN u.job_id END ORDER BY u.ord),
            array_agg(CASE WHEN b.ord IS NULL THEN u.key END ORDER BY u.ord), array_agg(b.ord IS NULL ORDER BY u.ord)
        INTO v_chosen, v_keys, v_store
        FROM unnest(enqueue_many.jobs, enqueue_many.keys) WITH ORDINALITY AS u (job_id, key, ord)
        LEFT JOIN unnest(v_before) b ON b.ord = u.ord;
    END IF;

    IF v_chosen IS NOT NULL AND NOT coalesce(enqueue_many.fresh, false) THEN
        SELECT array_agg(t) INTO v_taken FROM taken_ids(v_chosen, v_keys) t;
        IF v_taken IS NOT NULL THEN
            RETURN QUERY SELECT * FROM unnest(v_taken);
            RETURN;
        END IF;
    END IF;

    IF array_length(array_remove(v_keys, NULL), 1) > 0 THEN
        SELECT array_agg(k) INTO v_keyed
        FROM take_keys(v_keys, enqueue_many.key_ttls, enqueue_many.kinds, enqueue_many.args, v_jobs) k;
        IF EXISTS (SELECT FROM unnest(v_keyed) k WHERE k.refusal IS NOT NULL) THEN
            RETURN QUERY SELECT * FROM unnest(v_keyed) k WHERE k.refusal IS NOT NULL;
            RETURN;
        END IF;
        SELECT array_agg(k.ord IS NULL AND u.store IS NOT FALSE ORDER BY u.ord) INTO v_store
        FROM unnest(v_jobs, v_store) WITH ORDINALITY AS u (job_id, store, ord)
        LEFT JOIN unnest(v_keyed) k ON k.ord = u.ord;
    END IF;

    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT u.ord::integer, u.job_id, u.kind, u.args, coalesce(u.tag, 'default') AS tag, coalesce(u.priority, 0)::smallint AS priority,
            u.scheduled_for, u.delay, coalesce(u.policy_id, 1) AS policy_id, u.facts, u.trigger_kind, u.trigger_ref, u.parent_id,
            u.work_id, u.pin_id, coalesce(u.salt, gen_random_uuid()) AS salt, clock() AS at
        FROM unnest(v_jobs, enqueue_many.kinds, enqueue_many.args, enqueue_many.tags, enqueue_many.priorities, enqueue_many.scheduled_for,
            enqueue_many.delays, enqueue_many.policies, enqueue_many.facts, enqueue_many.trigger_kinds, enqueue_many.trigger_refs,
            enqueue_many.parents, enqueue_many.works, enqueue_many.pins, enqueue_many.salts, v_store)
            WITH ORDINALITY AS u (job_id, kind, args, tag, priority, scheduled_for, delay, policy_id, facts, trigger_kind, trigger_ref,
            parent_id, work_id, pin_id, salt, store, ord)
        WHERE u.store IS NOT FALSE
    ), due AS MATERIALIZED (
        SELECT i.*, coalesce(i.scheduled_for, i.at + elapsed(i.delay), i.at) AS due
        FROM input i
    ), projection AS (
        INSERT INTO job_queue (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
            priority, ready, kind, tag, facts)
        SELECT d.job_id, d.due, d.at, d.at, 1, 0, 0, 0, d.policy_id, d.priority, d.due <= d.at, d.kind, d.tag, d.facts
        FROM due d
    ), body AS (
        INSERT INTO job_payload (job_id, version, salt, body)
        SELECT d.job_id, 1, d.salt, d.args
        FROM due d
        WHERE d.args IS NOT NULL
    ), event AS (
        INSERT INTO job_event (job_id, at, version, generation, attempt, policy_id, scheduled_for, parent_id, work_id, pin_id, priority,
            type, actor, kind, tag, digest, policy_digest, trigger_kind, trigger_ref, facts)
        SELECT d.job_id, d.at, 1, 0, 0, d.policy_id, d.due, d.parent_id, d.work_id, d.pin_id, d.priority,
            'enqueued', coalesce(enqueue_many.actor, session_user), d.kind, d.tag, body_digest(d.salt, d.args), p.digest,
            coalesce(d.trigger_kind, 'sql'), d.trigger_ref, d.facts
        FROM due d
        LEFT JOIN policy p ON p.policy_id = d.policy_id
    )
    SELECT d.ord, d.job_id, 'enqueued', NULL::text, false, 1, 0, 0, d.at, NULL::timestamptz, d.due, false, NULL::text
    FROM due d;
    RETURN QUERY SELECT * FROM unnest(v_keyed);
    RETURN QUERY SELECT * FROM unnest(v_before);

    -- No index spans the homes. Another sending of the same ids may have committed, and its jobs have been
    -- claimed, while the index of job_queue was waited for; or the job has ended and its key is free again.
    IF v_chosen IS NOT NULL AND NOT coalesce(enqueue_many.fresh, false)
       AND EXISTS (SELECT FROM unnest(v_chosen) AS j (job_id) WHERE (SELECT count(*) FROM home(j.job_id)) > 1) THEN
        RAISE unique_violation USING MESSAGE = 'a job of this batch was created by another transaction at the same time';
    END IF;

    -- wake: in a statement of its own, as late as possible, to see who has fallen asleep meanwhile.
    IF EXISTS (SELECT FROM sleeper s WHERE s.until > clock_timestamp() AND NOT s.watching) THEN
        PERFORM wake((
            SELECT array_agg(coalesce(u.tag, 'default'))
            FROM unnest(enqueue_many.kinds, enqueue_many.tags, enqueue_many.scheduled_for, enqueue_many.delays, v_store)
                AS u (kind, tag, due, delay, store)
            WHERE u.store IS NOT FALSE AND coalesce(u.due <= clock(), elapsed(u.delay) <= '0', true)));
    END IF;
END
$$;

-- stored_before answers for the jobs that an earlier sending of the same call has stored. Ids that the
-- caller chose may belong to another's job: then the salt of its args is another one.
CREATE OR REPLACE FUNCTION stored_before(jobs uuid[], salts uuid[]) RETURNS SETOF answer
LANGUAGE sql
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
    SELECT u.ord::integer, u.job_id, 'enqueued', NULL::text, true, 1, 0, 0, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
        false, NULL::text
    FROM unnest(stored_before.jobs, stored_before.salts) WITH ORDINALITY AS u (job_id, salt, ord)
    CROSS JOIN LATERAL home(u.job_id) h
    WHERE u.job_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM job_payload b WHERE b.job_id = u.job_id AND b.version = 1 AND b.salt <> u.salt)
$$;

-- taken_ids answers for the ids that belong to a job already, in whichever home it is; no index
-- spans them. An element that the key of that very job will answer is passed over: it is a replay.
CREATE OR REPLACE FUNCTION taken_ids(jobs uuid[], keys text[]) RETURNS SETOF answer
LANGUAGE sql
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
    SELECT u.ord::integer, u.job_id, NULL::text, 'exists', false, h.version, h.generation, h.attempt, NULL::timestamptz, h.lease_until,
        NULL::timestamptz, h.canceled_by IS NOT NULL, h.outcome
    FROM unnest(taken_ids.jobs, taken_ids.keys) WITH ORDINALITY AS u (job_id, key, ord)
    CROSS JOIN LATERAL home(u.job_id) h
    WHERE u.job_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM idempotency_key k WHERE k.key = u.key AND k.job_id = u.job_id)
$$;

-- enqueue creates one job and returns its id: the form for psql, triggers and other languages.
--   SELECT jobledger.enqueue('email', '{"to": "a@example.org"}', key => 'order-17');
-- Refusals are errors: JL400 bad input, JL409 key used for other args, JL423 key held.
CREATE OR REPLACE FUNCTION enqueue(
    kind text, args text DEFAULT NULL, tag text DEFAULT NULL, priority integer DEFAULT NULL, scheduled_for timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, policy_id integer DEFAULT NULL, key text DEFAULT NULL, key_ttl interval DEFAULT NULL,
    facts text DEFAULT NULL, actor text DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    a answer;
BEGIN
    SELECT * INTO a FROM enqueue_many(ARRAY[enqueue.kind], ARRAY[enqueue.args], ARRAY[enqueue.tag], ARRAY[enqueue.priority],
        ARRAY[enqueue.scheduled_for], ARRAY[enqueue.delay], ARRAY[enqueue.policy_id], ARRAY[enqueue.key], ARRAY[enqueue.key_ttl],
        ARRAY[enqueue.facts], actor => enqueue.actor);
    IF a.refusal = 'key_conflict' THEN
        RAISE EXCEPTION USING ERRCODE = 'JL409', MESSAGE = format('key %L was used by job %s for another kind or other args', enqueue.key, a.job_id);
    ELSIF a.refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'JL423', MESSAGE = format('key %L is held by an open transaction', enqueue.key), HINT = 'try again';
    END IF;
    RETURN a.job_id;
END
$$;

-- check_ids refuses an id that two elements of a batch want for different jobs. With the same key they
-- are one job, sent twice.
CREATE OR REPLACE FUNCTION check_ids(jobs uuid[], keys text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad record;
BEGIN
    SELECT ((array_agg(u.ord ORDER BY u.ord))[2])::integer AS ord, u.job_id INTO bad
    FROM unnest(check_ids.jobs, check_ids.keys) WITH ORDINALITY AS u (job_id, key, ord)
    WHERE u.job_id IS NOT NULL
    GROUP BY u.job_id
    HAVING count(*) > 1 AND (count(*) > count(u.key) OR min(u.key) <> max(u.key))
    ORDER BY 1
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, 'job_id', bad.job_id::text, 'an id of its own for each job');
    END IF;
END
$$;

-- check_enqueue refuses the first element outside the limits of domain/limits.go.
CREATE OR REPLACE FUNCTION check_enqueue(kinds text[], args text[], tags text[], priorities integer[], scheduled_for timestamptz[],
                                         policies integer[], facts text[], key_ttls interval[], delays interval[])
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    bad record;
BEGIN
    IF cardinality(check_enqueue.kinds) > 10000 THEN
        PERFORM refuse_field(1, 'jobs', cardinality(check_enqueue.kinds)::text, 'at most 10000 jobs in one call');
    END IF;
    SELECT u.ord::integer AS ord, c.* INTO bad
    FROM unnest(check_enqueue.kinds, check_enqueue.args, check_enqueue.tags, check_enqueue.priorities, check_enqueue.scheduled_for,
                check_enqueue.policies, check_enqueue.key_ttls, check_enqueue.delays)
        WITH ORDINALITY AS u (kind, args, tag, priority, due, policy_id, key_ttl, delay, ord)
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN is_name(u.kind) IS NOT TRUE THEN 'kind'
            WHEN NOT is_name(u.tag) THEN 'tag'
            WHEN u.priority NOT BETWEEN -32768 AND 32767 THEN 'priority'
            WHEN u.due NOT BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN 'scheduled_for'
            WHEN octet_length(u.args) > 1048576 THEN 'args'
            WHEN elapsed(u.key_ttl) NOT BETWEEN '0' AND '87600 hours' THEN 'key_ttl'
            WHEN u.due IS NOT NULL AND u.delay IS NOT NULL THEN 'delay'
            WHEN u.policy_id IS NOT NULL AND NOT EXISTS (SELECT FROM policy p WHERE p.policy_id = u.policy_id) THEN 'policy_id'
        END AS field) c
    WHERE c.field IS NOT NULL
    ORDER BY u.ord
    LIMIT 1;
    IF FOUND AND bad.field = 'policy_id' AND current_setting('transaction_isolation') <> 'read committed'
       AND check_enqueue.policies[bad.ord] BETWEEN 1 AND (SELECT last_value FROM policy_policy_id_seq) THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', HINT = 'run the whole transaction again',
            MESSAGE = format('policy %s is newer than the snapshot of this transaction', check_enqueue.policies[bad.ord]);
    END IF;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, bad.field, CASE bad.field
            WHEN 'kind' THEN check_enqueue.kinds[bad.ord] WHEN 'tag' THEN check_enqueue.tags[bad.ord]
            WHEN 'priority' THEN check_enqueue.priorities[bad.ord]::text WHEN 'scheduled_for' THEN in_utc(check_enqueue.scheduled_for[bad.ord])
            WHEN 'args' THEN octet_length(check_enqueue.args[bad.ord]) || ' bytes' WHEN 'key_ttl' THEN check_enqueue.key_ttls[bad.ord]::text
            WHEN 'policy_id' THEN check_enqueue.policies[bad.ord]::text WHEN 'delay' THEN check_enqueue.delays[bad.ord]::text END,
            CASE bad.field
            WHEN 'priority' THEN '-32768 to 32767' WHEN 'scheduled_for' THEN 'a time within the years 1970 to 9999'
            WHEN 'args' THEN 'at most 1048576 bytes' WHEN 'key_ttl' THEN '0 to 87600h'
            WHEN 'policy_id' THEN 'an id from ensure_policy' WHEN 'delay' THEN 'either a delay or scheduled_for, not both'
            ELSE '1 to 255 bytes of ASCII letters, digits and ._:/-' END);
    END IF;
    PERFORM check_json('args', check_enqueue.args);
    PERFORM check_facts(check_enqueue.facts);
END
$$;
