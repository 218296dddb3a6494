-- Facts are the small unchanging extras of a job, one JSON object: labels, correlation id, traceparent.

-- check_facts refuses the first facts that hold anything else, with the rules of the Go API. Which of
-- them are plain is told for all at once; the rest is gone through one by one.
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
    IF check_facts.facts IS NULL OR array_remove(check_facts.facts, NULL) = '{}' THEN
        RETURN;
    END IF;
    PERFORM check_text('facts', check_facts.facts, 4096, false);
    PERFORM check_json('facts', check_facts.facts);
    -- Plain: without escapes, so that the length of a string is that of its spelling, less the quotes.
    -- Written here and not in a function, which would cost three times as much.
    SELECT array_agg(u.ord ORDER BY u.ord) INTO v_odd
    FROM unnest(check_facts.facts) WITH ORDINALITY AS u (f, ord)
    WHERE CASE
        WHEN u.f ~ '[\\\x7f-\x9f]' OR json_typeof(u.f::json) <> 'object' THEN true
        ELSE EXISTS (
            SELECT FROM json_each(u.f::json) x
            WHERE CASE
                WHEN x.key = 'labels' THEN json_typeof(x.value) <> 'object' OR (
                    SELECT count(*) > 16 OR bool_or(
                        NOT is_name(l.key) OR json_typeof(l.value) <> 'string' OR octet_length(l.value::text) NOT BETWEEN 3 AND 257)
                    FROM json_each(CASE json_typeof(x.value) WHEN 'object' THEN x.value END) l)
                WHEN x.key IN ('correlation_id', 'traceparent') THEN
                    json_typeof(x.value) <> 'string' OR octet_length(x.value::text) NOT BETWEEN 3 AND 257
                ELSE true END) END;
    IF v_odd IS NULL THEN
        RETURN;
    END IF;
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
