-- Facts are the small unchanging extras of a job, one JSON object: labels, correlation id, traceparent.

-- check_facts refuses the first facts that hold anything else, with the rules of the Go API. Nearly
-- all facts are short and without escapes: those are told by one pattern.
CREATE OR REPLACE FUNCTION check_facts(facts text[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    v_odd   integer[];
    v_facts json;
    v_index integer;
    e       record;
BEGIN
    SELECT array_agg(u.ord ORDER BY u.ord) INTO v_odd
    FROM unnest(check_facts.facts) WITH ORDINALITY AS u (f, ord)
    WHERE NOT is_plain_facts(u.f);
    IF v_odd IS NULL THEN
        RETURN;
    END IF;
    PERFORM check_text('facts', check_facts.facts, 4096, false);
    PERFORM check_json('facts', check_facts.facts);
    FOREACH v_index IN ARRAY v_odd LOOP
        v_facts := check_facts.facts[v_index]::json;
        IF json_typeof(v_facts) <> 'object' THEN
            PERFORM refuse_field(v_index, 'facts', check_facts.facts[v_index], 'a JSON object');
        END IF;
        FOR e IN SELECT key, value FROM json_each(v_facts) LOOP
            CASE e.key
            WHEN 'labels' THEN
                PERFORM check_labels(v_index, e.value);
            WHEN 'correlation_id', 'traceparent' THEN
                PERFORM check_fact(v_index, 'facts.' || e.key, e.value);
            ELSE
                PERFORM refuse_field(v_index, 'facts', e.key, 'labels, correlation_id and traceparent alone');
            END CASE;
        END LOOP;
    END LOOP;
END
$$;

-- is_plain_facts: as the Go library spells them, of 255 bytes at most, with 16 strings at most.
CREATE OR REPLACE FUNCTION is_plain_facts(f text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT octet_length(f) <= 255
        AND octet_length(f) - octet_length(replace(f, '":"', '""')) <= 16
        AND f ~ '^\{("labels":\{("[A-Za-z0-9._:/-]+":"[^"\\\x01-\x1f\x7f-\x9f]+"(,(?=")|(?=\})))+\}(,(?=")|(?=\}$)))?("correlation_id":"[^"\\\x01-\x1f\x7f-\x9f]+"(,(?=")|(?=\}$)))?("traceparent":"[^"\\\x01-\x1f\x7f-\x9f]+")?\}$'
$$;

-- check_labels refuses labels that are no object of at most 16 named strings.
CREATE OR REPLACE FUNCTION check_labels(ord integer, labels json) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    e record;
    n integer;
BEGIN
    IF json_typeof(check_labels.labels) <> 'object' THEN
        PERFORM refuse_field(check_labels.ord, 'facts.labels', check_labels.labels::text, 'a JSON object of strings');
    END IF;
    n := (SELECT count(DISTINCT k) FROM json_object_keys(check_labels.labels) k);
    IF n > 16 THEN
        PERFORM refuse_field(check_labels.ord, 'facts.labels', n::text, 'at most 16 labels');
    END IF;
    FOR e IN SELECT key, value FROM json_each(check_labels.labels) ORDER BY key COLLATE "C" LOOP
        IF NOT is_name(e.key) THEN
            PERFORM refuse_field(check_labels.ord, 'facts.labels', e.key, '1 to 255 bytes of ASCII letters, digits and ._:/-');
        END IF;
        PERFORM check_fact(check_labels.ord, 'facts.labels.' || e.key, e.value);
    END LOOP;
END
$$;

-- check_fact refuses what is no string of one line.
CREATE OR REPLACE FUNCTION check_fact(ord integer, field text, value json) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF json_typeof(check_fact.value) <> 'string' OR octet_length(check_fact.value #>> '{}') NOT BETWEEN 1 AND 255
       OR check_fact.value #>> '{}' ~ '[\x01-\x1f\x7f-\x9f]' THEN
        PERFORM refuse_field(check_fact.ord, check_fact.field, check_fact.value::text, '1 to 255 bytes of UTF-8 without control characters');
    END IF;
END
$$;

-- label_of reads one label of a job. A row that somebody has put there by hand may hold anything: it has
-- no labels then, and the list of the others is read on.
CREATE OR REPLACE FUNCTION label_of(facts text, name text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN label_of.facts::json #>> ARRAY['labels', label_of.name];
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN NULL;
END
$$;
