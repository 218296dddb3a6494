-- Bodies are args, results, error texts and progress: text that is stored apart from the events.
-- Inputs (args, facts) that could not be given back are refused; outputs (results, error texts,
-- progress) are stored with a visible substitute and a flag, because a job must reach its end
-- whatever it says.

-- body_digest is what an event says about a body. The salt lies beside the body and is erased
-- with it: what remains proves nothing about a short body to somebody who guesses.
CREATE OR REPLACE FUNCTION body_digest(salt uuid, body text) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT sha256(uuid_send(salt) || convert_to(body, 'UTF8')) $$;

-- is_deep: JSON text that is nested more than 500 deep. Few texts have enough brackets to ask in
-- earnest, and those cost a parse more. jsonb has no room for a number like 1e200000.
CREATE OR REPLACE FUNCTION is_deep(t text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_json jsonb;
BEGIN
    IF octet_length(is_deep.t) - octet_length(replace(replace(is_deep.t, '[', ''), '{', '')) <= 500 THEN
        RETURN false;
    END IF;
    BEGIN
        v_json := is_deep.t::jsonb;
    EXCEPTION WHEN numeric_value_out_of_range THEN
        v_json := numbers_as_text(is_deep.t, '')::jsonb;
    END;
    RETURN jsonb_path_exists(v_json, 'strict $.**{500} ? (@.type() == "array" || @.type() == "object")');
END
$$;

-- check_json refuses the first text that is not JSON, is nested too deep, or that Postgres could not
-- read back: a NUL escape, or a surrogate without its other half. json_strip_nulls reads every string
-- as the text it means. All texts are tried at once; only a batch with a bad one in it is gone
-- through one by one.
CREATE OR REPLACE FUNCTION check_json(field text, texts text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_deep   boolean;
    v_field  text;
    v_detail text;
    v_want   text;
BEGIN
    BEGIN
        SELECT count(t::json) + count(json_strip_nulls(t::json)) FILTER (WHERE position('\u' IN t) > 0) < 0
               OR coalesce(bool_or(CASE WHEN octet_length(t) > 1000 THEN is_deep(t) END), false)
        INTO v_deep
        FROM unnest(check_json.texts) t;
        IF NOT v_deep THEN
            RETURN;
        END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
        NULL;
    END;
    FOR i IN 1 .. cardinality(check_json.texts) LOOP
        BEGIN
            v_field := check_json.field;
            v_detail := '';
            v_want := 'JSON text';
            PERFORM check_json.texts[i]::json;
            v_want := 'JSON text without \u0000 and without lone surrogates';
            PERFORM json_strip_nulls(check_json.texts[i]::json);
            v_want := 'JSON nested at most 500 deep';
            v_deep := is_deep(check_json.texts[i]);
        EXCEPTION
            WHEN statement_too_complex THEN
                v_deep := true;
                v_want := 'JSON nested at most 500 deep';
            WHEN data_exception OR program_limit_exceeded THEN
                GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
                v_deep := true;
                IF v_want LIKE '%surrogates' THEN
                    v_field := json_place(check_json.field, check_json.texts[i]);
                END IF;
        END;
        IF v_deep THEN
            PERFORM refuse_field(i, v_field, concat_ws(' ', left(check_json.texts[i], 60), nullif(format('(%s)', v_detail), '()')), v_want);
        END IF;
    END LOOP;
END
$$;

-- json_place names the place of the first string in a JSON text that cannot be read back, or of the
-- object in which it is a key: args.to[2], args["odd key"]. For errors only: it goes token by token.
CREATE OR REPLACE FUNCTION json_place(field text, t text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_token text;
    v_key   text;
    v_steps text[] := '{}';     -- into each open container: a key, an index, or null where the key is yet to come
    v_index integer[] := '{}';  -- of each open array; null for an object
    n       integer := 0;
BEGIN
    FOR v_token IN SELECT m[1] FROM regexp_matches(json_place.t, '("(?:[^"\\]|\\.)*"|[][{},:])', 'g') m LOOP
        CASE v_token
        WHEN '{' THEN
            n := n + 1;
            v_steps[n] := NULL;
            v_index[n] := NULL;
        WHEN '[' THEN
            n := n + 1;
            v_steps[n] := '[0]';
            v_index[n] := 0;
        WHEN '}', ']' THEN
            n := n - 1;
        WHEN ':' THEN
            v_key := substr(v_key, 2, length(v_key) - 2);
            v_steps[n] := CASE WHEN v_key ~ '^[A-Za-z_][A-Za-z0-9_-]*$' AND length(v_key) <= 40 THEN '.' || v_key
                               WHEN length(v_key) <= 40 THEN '["' || v_key || '"]'
                               ELSE '["' || left(v_key, 40) || '…"]' END;
        WHEN ',' THEN
            v_index[n] := v_index[n] + 1;
            v_steps[n] := '[' || v_index[n] || ']';
        ELSE
            BEGIN
                v_key := v_token;
                IF position('\u' IN v_token) > 0 THEN
                    PERFORM json_strip_nulls(v_token::json);
                END IF;
            EXCEPTION WHEN data_exception THEN
                RETURN json_place.field || array_to_string(v_steps[1:n], '');
            END;
        END CASE;
    END LOOP;
    RETURN json_place.field;
END
$$;

-- storable_json makes JSON of at most max_bytes out of outputs, and says of each whether it was altered,
-- here or (flags) by the caller. What is no JSON, or could not be read back, becomes a JSON string;
-- what is too large becomes one of its two ends. All are tried at once; only a batch with an odd one
-- in it is gone through one by one.
DROP FUNCTION IF EXISTS storable_json(text[]);
CREATE OR REPLACE FUNCTION storable_json(texts text[], flags boolean[], max_bytes integer, OUT bodies text[], OUT altered boolean[])
LANGUAGE plpgsql
AS $$
DECLARE
    v_fits boolean;
BEGIN
    bodies := storable_json.texts;
    altered := storable_json.flags;
    IF bodies IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        SELECT count(t::json) + count(json_strip_nulls(t::json)) FILTER (WHERE position('\u' IN t) > 0) >= 0
               AND coalesce(max(octet_length(t)), 0) <= storable_json.max_bytes
               AND NOT coalesce(bool_or(CASE WHEN octet_length(t) > 1000 THEN is_deep(t) END), false)
        INTO v_fits
        FROM unnest(storable_json.texts) t;
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
        v_fits := false;
    END;
    IF v_fits THEN
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(bodies) LOOP
        v_fits := NOT coalesce(octet_length(bodies[i]) > storable_json.max_bytes, false);
        IF v_fits THEN
            BEGIN
                PERFORM json_strip_nulls(bodies[i]::json);
                v_fits := NOT coalesce(is_deep(bodies[i]), false);
            EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
                v_fits := false;
            END;
        END IF;
        IF NOT v_fits THEN
            -- A character can take six times its length in a JSON string.
            bodies[i] := to_json(bodies[i])::text;
            IF octet_length(bodies[i]) > storable_json.max_bytes THEN
                bodies[i] := to_json(ends_of(storable_json.texts[i], storable_json.max_bytes / 13))::text;
            END IF;
            altered := coalesce(altered, array_fill(false, ARRAY[cardinality(bodies)]));
            altered[i] := true;
        END IF;
    END LOOP;
END
$$;

-- storable_errors makes texts of at most 64 KiB out of errors, and flags as storable_json.
DROP FUNCTION IF EXISTS storable_error(text);
CREATE OR REPLACE FUNCTION storable_errors(texts text[], flags boolean[], OUT bodies text[], OUT altered boolean[])
LANGUAGE plpgsql
AS $$
BEGIN
    bodies := storable_errors.texts;
    altered := storable_errors.flags;
    FOR i IN 1 .. coalesce(cardinality(bodies), 0) LOOP
        IF octet_length(bodies[i]) > 65536 THEN
            bodies[i] := ends_of(bodies[i], 8000);
            altered := coalesce(altered, array_fill(false, ARRAY[cardinality(bodies)]));
            altered[i] := true;
        END IF;
    END LOOP;
END
$$;

-- ends_of keeps so many characters of each end of a text and says how much is missing.
CREATE OR REPLACE FUNCTION ends_of(t text, keep integer) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT left(t, keep) || format(E'\n[... %s characters left out ...]\n', greatest(length(t) - 2 * keep, 0)) || right(t, keep) $$;
