-- What the transition functions share. Every function is created with search_path set to the
-- ledger's schema and keeps it (SET search_path FROM CURRENT), so no text names a schema.

-- clock is the one clock that decides. Tests replace it; nothing else may.
CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
AS $$ SELECT pg_catalog.clock_timestamp() $$;

-- new_job_id is a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, version, 74 random bits.
CREATE OR REPLACE FUNCTION new_job_id() RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT encode(set_bit(set_bit(overlay(
               uuid_send(gen_random_uuid())
               PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
               FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- microseconds turns an interval into a whole number, as elapsed explains. It stops at 285,000 years:
-- an interval can hold six hundred times as many, and no limit is up there.
CREATE OR REPLACE FUNCTION microseconds(i interval) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN i BETWEEN '-285000 years' AND '285000 years' THEN (extract(epoch FROM i) * 1000000)::bigint
                WHEN i > '0' THEN 9000000000000000000
                WHEN i < '0' THEN -9000000000000000000 END
$$;

-- elapsed turns days, months and years into time on the clock, as extract(epoch) counts them: a day
-- is 24 hours, a month 30 days, twelve months 365.25 days. Limits are tested on what it gives. Added
-- to an instant as they are, they would mean days of the calendar of the session's time zone, which
-- has some of 23 and 25 hours.
CREATE OR REPLACE FUNCTION elapsed(i interval) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT microseconds(i) * interval '1 microsecond' $$;

-- in_utc writes an instant the same whatever zone and style the session has.
CREATE OR REPLACE FUNCTION in_utc(at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (to_json(at AT TIME ZONE 'UTC') #>> '{}') || CASE WHEN isfinite(at) THEN 'Z' ELSE '' END $$;

-- retry_delay is domain.Policy.RetryDelay, to the last microsecond (a test compares them).
CREATE OR REPLACE FUNCTION retry_delay(base interval, factor integer, cap interval, jitter integer, job_id uuid, attempt integer)
RETURNS interval
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    bound bigint := (extract(epoch FROM retry_delay.cap) * 1000000)::bigint;
    d     bigint := (extract(epoch FROM retry_delay.base) * 1000000)::bigint;
    draw  bytea  := sha256(uuid_send(retry_delay.job_id) || int4send(retry_delay.attempt));
    i     integer := 1;
BEGIN
    WHILE i < retry_delay.attempt AND d < bound AND retry_delay.factor > 100 LOOP
        d := d * retry_delay.factor / 100;
        i := i + 1;
    END LOOP;
    d := least(d, bound);
    d := d - ((d * retry_delay.jitter / 100) * (get_byte(draw, 0) * 256 + get_byte(draw, 1)) >> 16);
    RETURN greatest(d, 1) * interval '1 microsecond';
END
$$;

-- refuse_field raises a bad input as SQLSTATE JL400: the field, its value and what would be
-- right, and in DETAIL the same as JSON for programs.
CREATE OR REPLACE FUNCTION refuse_field(ord integer, field text, value text, want text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'JL400',
        MESSAGE = format('%s: got %s, want %s', refuse_field.field, coalesce(quote_literal(left(refuse_field.value, 100)), 'null'), refuse_field.want),
        DETAIL  = json_build_object('index', refuse_field.ord - 1, 'field', refuse_field.field,
                                    'value', left(refuse_field.value, 100), 'want', refuse_field.want);
END
$$;

-- bound_idle lets Postgres end the session of a caller that ended runs in a transaction of its own and
-- then does nothing until their leases are over: a frozen process would else keep its jobs locked, from
-- the reaper too, for as long as its connection stands. A shorter bound of the caller's own stays.
CREATE OR REPLACE FUNCTION bound_idle(lease_until timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_left  interval := CASE WHEN isfinite(bound_idle.lease_until) THEN least(bound_idle.lease_until - clock(), '24 hours') ELSE '24 hours' END;
    v_bound interval := current_setting('idle_in_transaction_session_timeout');
BEGIN
    IF bound_idle.lease_until IS NOT NULL AND (v_bound = '0' OR v_bound > v_left) THEN
        PERFORM set_config('idle_in_transaction_session_timeout', greatest(ceil(extract(epoch FROM v_left) * 1000), 1)::text, true);
    END IF;
END
$$;

-- refuse_unless refuses a single value that is not within its limits; unknown, that is null, is not.
CREATE OR REPLACE FUNCTION refuse_unless(ok boolean, field text, value text, want text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF refuse_unless.ok IS NOT TRUE THEN
        PERFORM refuse_field(1, refuse_unless.field, refuse_unless.value, refuse_unless.want);
    END IF;
END
$$;

-- check_worker refuses a worker's name and a lease outside their limits.
CREATE OR REPLACE FUNCTION check_worker(worker text, lease interval) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF check_worker.worker IS NULL OR octet_length(check_worker.worker) NOT BETWEEN 1 AND 255
       OR check_worker.worker ~ '[\x01-\x1f\x7f-\x9f]' THEN
        PERFORM refuse_field(1, 'worker', check_worker.worker, '1 to 255 bytes of UTF-8 without control characters');
    END IF;
    IF check_worker.lease IS NULL OR elapsed(check_worker.lease) NOT BETWEEN '1 second' AND '24 hours' THEN
        PERFORM refuse_field(1, 'lease', check_worker.lease::text, '1s to 24h');
    END IF;
END
$$;

-- check_shape refuses an array that is not plain: its elements are found by their number, from 1. It
-- may be missing; else it has one element for each of n jobs.
CREATE OR REPLACE FUNCTION check_shape(field text, elements anyarray, n integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF array_ndims(check_shape.elements) > 1 OR array_lower(check_shape.elements, 1) <> 1 THEN
        PERFORM refuse_field(1, check_shape.field, array_dims(check_shape.elements), 'an array of one dimension that starts at 1');
    END IF;
    IF cardinality(check_shape.elements) <> check_shape.n THEN
        PERFORM refuse_field(least(cardinality(check_shape.elements), check_shape.n) + 1, check_shape.field,
            cardinality(check_shape.elements) || ' elements', format('one for each of %s jobs', check_shape.n));
    END IF;
END
$$;

-- check_fenced refuses a batch whose arrays don't fit together, or that is too large.
CREATE OR REPLACE FUNCTION check_fenced(jobs uuid[], generations integer[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM check_batch(check_fenced.jobs);
    PERFORM check_shape('generations', check_fenced.generations, cardinality(check_fenced.jobs));
    IF check_fenced.generations IS NULL OR array_position(check_fenced.generations, NULL) IS NOT NULL THEN
        PERFORM refuse_field(1, 'generations', check_fenced.generations::text, 'one generation for each job');
    END IF;
END
$$;

-- check_batch refuses a batch of jobs that is missing, too large or has a hole in it.
CREATE OR REPLACE FUNCTION check_batch(jobs uuid[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM check_shape('jobs', check_batch.jobs, cardinality(check_batch.jobs));
    IF check_batch.jobs IS NULL OR array_position(check_batch.jobs, NULL) IS NOT NULL THEN
        PERFORM refuse_field(coalesce(array_position(check_batch.jobs, NULL), 1), 'jobs', NULL, 'job ids, none of them null');
    END IF;
    IF cardinality(check_batch.jobs) > 10000 THEN
        PERFORM refuse_field(1, 'jobs', cardinality(check_batch.jobs)::text, 'at most 10000 jobs in one call');
    END IF;
END
$$;

-- check_text refuses the first of some texts that is longer than max_bytes or, where a line
-- is meant, has control characters. Null is allowed: it means none.
CREATE OR REPLACE FUNCTION check_text(field text, texts text[], max_bytes integer, one_line boolean) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad record;
BEGIN
    IF check_text.texts IS NULL THEN
        RETURN;
    END IF;
    SELECT u.ord::integer AS ord, u.t INTO bad
    FROM unnest(check_text.texts) WITH ORDINALITY AS u (t, ord)
    WHERE octet_length(u.t) > check_text.max_bytes OR (check_text.one_line AND (u.t = '' OR u.t ~ '[\x01-\x1f\x7f-\x9f]'))
    ORDER BY u.ord
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, check_text.field, bad.t, CASE WHEN check_text.one_line
            THEN format('1 to %s bytes of UTF-8 without control characters', check_text.max_bytes)
            ELSE format('at most %s bytes', check_text.max_bytes) END);
    END IF;
END
$$;

-- is_name: 1 to 255 bytes of ASCII letters, digits and ._:/- (kinds, tags). The length is no part
-- of the pattern: with {1,255} in place of + it took 14 to 45 microseconds a name, not 0.6.
CREATE OR REPLACE FUNCTION is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT octet_length(name) <= 255 AND name ~ '^[A-Za-z0-9._:/-]+$' $$;

-- check_names refuses the first of some names that is no name. Null is allowed: it means the default.
CREATE OR REPLACE FUNCTION check_names(field text, names text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad record;
BEGIN
    SELECT u.ord::integer AS ord, u.n INTO bad
    FROM unnest(check_names.names) WITH ORDINALITY AS u (n, ord)
    WHERE NOT is_name(u.n)
    ORDER BY u.ord
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, check_names.field, bad.n, '1 to 255 bytes of ASCII letters, digits and ._:/-');
    END IF;
END
$$;

-- check_list refuses a list of names that is missing, odd, or longer than 1,000.
CREATE OR REPLACE FUNCTION check_list(field text, names text[], at_least integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM check_shape(check_list.field, check_list.names, cardinality(check_list.names));
    PERFORM refuse_unless(cardinality(check_list.names) BETWEEN check_list.at_least AND 1000 AND array_position(check_list.names, NULL) IS NULL,
        check_list.field, left(check_list.names::text, 100), format('%s to 1000 names', check_list.at_least));
    PERFORM check_names(check_list.field, check_list.names);
END
$$;

-- check_delays refuses delays that are negative, endless or longer than 3,650 days.
CREATE OR REPLACE FUNCTION check_delays(delays interval[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad record;
BEGIN
    SELECT u.ord::integer AS ord, u.d INTO bad
    FROM unnest(check_delays.delays) WITH ORDINALITY AS u (d, ord)
    WHERE elapsed(u.d) NOT BETWEEN '0' AND '87600 hours'
    ORDER BY u.ord
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, 'delay', bad.d::text, '0 to 87600h');
    END IF;
END
$$;

-- check_classes refuses an unknown class of failure.
CREATE OR REPLACE FUNCTION check_classes(classes text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad record;
BEGIN
    SELECT u.ord::integer AS ord, u.c INTO bad
    FROM unnest(check_classes.classes) WITH ORDINALITY AS u (c, ord)
    WHERE u.c NOT IN ('transient', 'invalid_input', 'outcome_unknown', 'timeout', 'crash', 'panic')
    ORDER BY u.ord
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_field(bad.ord, 'class', bad.c, 'transient, invalid_input, outcome_unknown, timeout, crash or panic');
    END IF;
END
$$;
