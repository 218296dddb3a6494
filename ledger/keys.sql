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
                                 WHERE c.job_id = k.job_id AND c.changed_at + k.ttl <= clock()) AS free) f)
        RETURNING k.key, k.job_id, k.kind, k.digest, k.replays
    )
    -- Who owns a key now: an element of the batch (its number), or an earlier job (null). The job's
    -- id does not tell: a caller whose answer was lost may send the same id again.
    SELECT array_agg(t.key), array_agg(CASE t.replays WHEN 0 THEN i.ord END), array_agg(t.job_id), array_agg(t.kind), array_agg(t.digest)
    INTO v_keys, v_owners, v_jobs, v_kinds, v_digests
    FROM taken t
    JOIN input i ON i.key = t.key;

    -- In a new statement: the args of a job that committed while its key was waited for are not
    -- in the snapshot of the one above. First the elements that found the key taken, then, inside
    -- the batch, those whose key an earlier element took.
    SELECT array_agg((u.ord, t.job_id, CASE WHEN j.same THEN 'enqueued' END, CASE WHEN NOT j.same THEN 'key_conflict' END, j.same,
                      1, 0, 0, NULL, NULL, NULL, false, NULL)::answer)
    INTO v_answers
    FROM unnest(take_keys.keys, take_keys.kinds, take_keys.args, take_keys.jobs) WITH ORDINALITY AS u (key, kind, args, job_id, ord)
    JOIN unnest(v_keys, v_owners, v_jobs, v_kinds, v_digests) AS t (key, owner, job_id, kind, digest) ON t.key = u.key
    LEFT JOIN job_payload b ON b.job_id = t.job_id AND b.version = 1
    LEFT JOIN unnest(take_keys.args) WITH ORDINALITY AS l (args, ord) ON l.ord = t.owner
    CROSS JOIN LATERAL (
        SELECT u.kind = t.kind AND CASE
            WHEN t.digest = sha256(convert_to(coalesce(u.args, 'null'), 'UTF8')) THEN true
            -- Only the digest is left of args that were erased.
            WHEN coalesce(b.body, l.args) IS NULL AND t.digest <> sha256('null') THEN false
            ELSE canonical_json(coalesce(u.args, 'null')::json) = canonical_json(coalesce(b.body, l.args, 'null')::json) END AS same) j
    WHERE u.ord IS DISTINCT FROM t.owner;
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

-- canonical_json is one spelling for all texts of the same JSON: no white space, keys of an
-- object in byte order, strings in one escape form, numbers with the digits they came with
-- (1 and 1.0 differ). Called only when a key meets args of another digest. What is nested more
-- than 100 levels deep is compared as it is spelled: each level costs several kilobytes of stack.
CREATE OR REPLACE FUNCTION canonical_json(j json, depth integer DEFAULT 0) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF canonical_json.depth > 100 THEN
        RETURN btrim(canonical_json.j::text, E' \t\n\r');
    END IF;
    CASE json_typeof(canonical_json.j)
    WHEN 'object' THEN
        RETURN '{' || coalesce((SELECT string_agg(to_json(e.key)::text || ':' || canonical_json(e.value, canonical_json.depth + 1), ',' ORDER BY e.key COLLATE "C", e.ord)
                                FROM json_each(canonical_json.j) WITH ORDINALITY AS e (key, value, ord)), '') || '}';
    WHEN 'array' THEN
        RETURN '[' || coalesce((SELECT string_agg(canonical_json(e.value, canonical_json.depth + 1), ',' ORDER BY e.ord)
                                FROM json_array_elements(canonical_json.j) WITH ORDINALITY AS e (value, ord)), '') || ']';
    WHEN 'string' THEN
        RETURN to_json(canonical_json.j #>> '{}')::text;
    ELSE
        RETURN btrim(canonical_json.j::text, E' \t\n\r');
    END CASE;
END
$$;
