-- Bodies are args, results, error texts and progress: text that is stored apart from the events.
-- Inputs (args, progress, facts) that could not be given back are refused; outputs (results, error
-- texts) are stored with a visible substitute, because a job must reach its end whatever it says.

-- body_digest is what an event says about a body. The salt lies beside the body and is erased
-- with it: what remains proves nothing about a short body to somebody who guesses.
CREATE OR REPLACE FUNCTION body_digest(salt uuid, body text) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT sha256(uuid_send(salt) || convert_to(body, 'UTF8')) $$;

-- check_json refuses the first text that is not JSON or that Postgres could not read back: a
-- NUL escape, or a surrogate without its other half. json_strip_nulls reads every string as the
-- text it means, as jsonb would, which has no room for a number like 1e200000, though. All texts
-- are tried at once; only a batch with a bad one in it is gone through one by one.
CREATE OR REPLACE FUNCTION check_json(field text, texts text[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    BEGIN
        PERFORM count(t::json), count(json_strip_nulls(t::json)) FILTER (WHERE position('\u' IN t) > 0)
        FROM unnest(check_json.texts) t;
        RETURN;
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
        NULL;
    END;
    FOR i IN 1 .. cardinality(check_json.texts) LOOP
        BEGIN
            PERFORM json_strip_nulls(check_json.texts[i]::json);
        EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
            PERFORM refuse_field(i, check_json.field, check_json.texts[i],
                'JSON text without \u0000 and without lone surrogates: ' || SQLERRM);
        END;
    END LOOP;
END
$$;

-- storable_json makes JSON of at most 1 MiB out of results. What is no JSON, or could not be read
-- back, becomes a JSON string; what is too large becomes one of its two ends. All are tried at
-- once; only a batch with an odd one in it is gone through one by one.
CREATE OR REPLACE FUNCTION storable_json(results text[]) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_out  text[] := storable_json.results;
    v_fits boolean;
BEGIN
    IF storable_json.results IS NULL THEN
        RETURN NULL;
    END IF;
    BEGIN
        SELECT count(t::json) + count(json_strip_nulls(t::json)) FILTER (WHERE position('\u' IN t) > 0) >= 0
               AND coalesce(max(octet_length(t)), 0) <= 1048576
        INTO v_fits
        FROM unnest(storable_json.results) t;
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
        v_fits := false;
    END;
    IF v_fits THEN
        RETURN v_out;
    END IF;
    FOR i IN 1 .. cardinality(v_out) LOOP
        IF octet_length(v_out[i]) > 1048576 THEN
            v_out[i] := to_json(ends_of(v_out[i], 80000))::text;
        END IF;
        BEGIN
            PERFORM json_strip_nulls(v_out[i]::json);
        EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
            v_out[i] := to_json(v_out[i])::text;
        END;
    END LOOP;
    RETURN v_out;
END
$$;

-- storable_error is an error text of at most 64 KiB.
CREATE OR REPLACE FUNCTION storable_error(error text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN octet_length(error) > 65536 THEN ends_of(error, 8000) ELSE error END $$;

-- ends_of keeps so many characters of each end of a text and says how much is missing.
CREATE OR REPLACE FUNCTION ends_of(t text, keep integer) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT left(t, keep) || format(E'\n[... %s characters left out ...]\n', greatest(length(t) - 2 * keep, 0)) || right(t, keep) $$;
