-- take_keys claims the idempotency keys of a batch. It answers for the elements that need no
-- new job: a replay of the first one (repeated), or a refusal (key_conflict, key_busy); when
-- any is refused, no key of the batch has been taken. Equal keys inside the batch are folded
-- first. DO UPDATE, not DO NOTHING: only then does the caller wait for a holder that has not
-- committed, and see the job that the key belongs to.
CREATE OR REPLACE FUNCTION take_keys(keys text[], ttls interval[], kinds text[], args text[], jobs uuid[])
RETURNS SETOF answer
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_keys    text[];
    v_owners  integer[];
    v_jobs    uuid[];
    v_kinds   text[];
    v_digests bytea[];
    v_answers answer[];
    v_first     text;  -- the args of v_first_job
    v_first_job uuid;
    v_conflict  integer;
    i           record;
BEGIN
    WITH input AS (
        SELECT DISTINCT ON (u.key) u.key, u.ord::integer, elapsed(coalesce(u.ttl, '7 days')) AS ttl, u.kind, u.job_id,
            sha256(convert_to(coalesce(u.args, 'null'), 'UTF8')) AS digest
        FROM unnest(take_keys.keys, take_keys.ttls, take_keys.kinds, take_keys.args, take_keys.jobs)
            WITH ORDINALITY AS u (key, ttl, kind, args, job_id, ord)
        WHERE u.key IS NOT NULL
        ORDER BY u.key, u.ord
    ), taken AS (
        INSERT INTO idempotency_key AS k (key, job_id, kind, digest, ttl)
        SELECT i.key, i.job_id, i.kind, i.digest, i.ttl
        FROM input i
        ORDER BY i.key
        ON CONFLICT (key) DO UPDATE SET (job_id, kind, digest, ttl, replays) = (
            -- A key whose job has ended, and whose own time has passed since, is free again.
            SELECT CASE WHEN f.free THEN excluded.job_id ELSE k.job_id END,
                   CASE WHEN f.free THEN excluded.kind ELSE k.kind END,
                   CASE WHEN f.free THEN excluded.digest ELSE k.digest END,
                   CASE WHEN f.free THEN excluded.ttl ELSE k.ttl END,
                   CASE WHEN f.free THEN 0 ELSE k.replays + 1 END
            FROM (SELECT EXISTS (SELECT FROM job_completed c
                                 WHERE c.job_id = k.job_id AND c.changed_at + least(k.ttl, '87600 hours') <= clock()) AS free) f)
        RETURNING k.key, k.job_id, k.kind, k.digest, k.replays
    )
    -- Who owns a key now: an element of the batch (its number), or an earlier job (null). The job's
    -- id does not tell: a caller whose answer was lost may send the same id again.
    SELECT array_agg(t.key), array_agg(CASE t.replays WHEN 0 THEN i.ord END), array_agg(t.job_id), array_agg(t.kind), array_agg(t.digest)
    INTO v_keys, v_owners, v_jobs, v_kinds, v_digests
    FROM taken t
    JOIN input i ON i.key = t.key;

    -- Elements that found the key taken and, inside the batch, those whose key an earlier element took.
    -- Null: it takes a look at the args to tell.
    SELECT array_agg((u.ord, t.job_id, NULL, CASE WHEN NOT j.same THEN 'key_conflict' END, j.same,
                      1, 0, 0, NULL, NULL, NULL, false, NULL)::answer ORDER BY u.ord)
    INTO v_answers
    FROM unnest(take_keys.keys, take_keys.kinds, take_keys.args) WITH ORDINALITY AS u (key, kind, args, ord)
    JOIN unnest(v_keys, v_owners, v_jobs, v_kinds, v_digests) AS t (key, owner, job_id, kind, digest) ON t.key = u.key
    CROSS JOIN LATERAL (
        SELECT CASE WHEN u.kind <> t.kind THEN false
                    WHEN t.digest = sha256(convert_to(coalesce(u.args, 'null'), 'UTF8')) THEN true END AS same) j
    WHERE u.ord IS DISTINCT FROM t.owner;

    -- One by one, up to the first conflict: a large body is not compared with each of a large batch. In new
    -- statements: the args of a job that committed while its key was waited for are not in the snapshot of
    -- the one that took the keys.
    FOR i IN
        SELECT a.ord, a.job_id, u.key, coalesce(u.args, 'null') AS args
        FROM unnest(v_answers) a
        JOIN unnest(take_keys.keys, take_keys.args) WITH ORDINALITY AS u (key, args, ord) ON u.ord = a.ord
        WHERE a.repeated IS NULL AND NOT EXISTS (SELECT FROM unnest(v_answers) c WHERE c.refusal IS NOT NULL)
        ORDER BY a.ord
    LOOP
        IF i.job_id IS DISTINCT FROM v_first_job THEN
            v_first_job := i.job_id;
            SELECT coalesce(b.body, take_keys.args[t.owner], CASE WHEN t.digest = sha256('null') THEN 'null' END) INTO v_first
            FROM unnest(v_keys, v_owners, v_digests) AS t (key, owner, digest)
            LEFT JOIN job_payload b ON b.job_id = i.job_id AND b.version = 1
            WHERE t.key = i.key;
        END IF;
        -- Only the digest is left of args that were erased: another spelling is a conflict.
        IF same_json(i.args, v_first) IS NOT TRUE THEN
            v_conflict := i.ord;
            EXIT;
        END IF;
    END LOOP;
    SELECT array_agg((a.ord, a.job_id, CASE WHEN NOT r.refused THEN 'enqueued' END, CASE WHEN r.refused THEN 'key_conflict' END, NOT r.refused,
                      a.version, a.generation, a.attempt, NULL, NULL, NULL, false, NULL)::answer)
    INTO v_answers
    FROM unnest(v_answers) a
    CROSS JOIN LATERAL (SELECT a.refusal IS NOT NULL OR coalesce(a.ord = v_conflict, false) AS refused) r;
    IF EXISTS (SELECT FROM unnest(v_answers) a WHERE a.refusal IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'JL409';
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_answers);
EXCEPTION
    WHEN SQLSTATE 'JL409' THEN
        RETURN QUERY SELECT * FROM unnest(v_answers) a WHERE a.refusal IS NOT NULL;
    WHEN lock_not_available THEN
        RETURN QUERY SELECT u.ord::integer, u.job_id, NULL::text, 'key_busy', false, 0, 0, 0, NULL::timestamptz, NULL::timestamptz,
            NULL::timestamptz, false, NULL::text
        FROM unnest(take_keys.keys, take_keys.jobs) WITH ORDINALITY AS u (key, job_id, ord)
        WHERE u.key IS NOT NULL;
END
$$;

-- same_json: two JSON texts are the same payload. The order of keys, white space and the spelling of
-- strings don't matter; the digits of numbers do (1 and 1.0 differ); of a key that an object has
-- twice, the last one counts. jsonb settles it in C. It keeps the digits of a number, but for
-- exponents, minus zero and what is too large for it: where there may be one, numbers are compared as
-- text. docs/adr/0003 has the figures.
DROP FUNCTION IF EXISTS canonical_json(json, integer);
CREATE OR REPLACE FUNCTION same_json(a text, b text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    c_spelled CONSTANT text := '(^|[:,[\s])(-0|-?[0-9.]+[eE])';
    v_tag     text;
BEGIN
    IF same_json.a !~ c_spelled AND same_json.b !~ c_spelled THEN
        BEGIN
            RETURN same_json.a::jsonb::text = same_json.b::jsonb::text;
        EXCEPTION WHEN numeric_value_out_of_range THEN
            NULL;
        END;
    END IF;
    v_tag := md5(same_json.a || same_json.b); -- no string of theirs begins with it
    RETURN numbers_as_text(same_json.a, v_tag)::jsonb = numbers_as_text(same_json.b, v_tag)::jsonb;
EXCEPTION WHEN statement_too_complex THEN
    RETURN false; -- args of a release that had no limit of depth
END
$$;

-- numbers_as_text makes each number of a JSON text a string behind a tag. A match is all that stands
-- before a number, strings as wholes, and the number; the one added at the end makes sure that no
-- match begins inside a string.
CREATE OR REPLACE FUNCTION numbers_as_text(t text, tag text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT left(regexp_replace(t || ' 0', '((?:[^"0-9-]|"(?:\\.|[^"\\])*")*)(-?[0-9][0-9.eE+-]*)', '\1"' || tag || '\2"', 'g'), -(4 + length(tag)))
$$;
