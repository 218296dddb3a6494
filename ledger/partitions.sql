-- extend_events keeps ahead partitions of 16,777,216 numbers each in front of the highest seq
-- taken, and returns how many it made. The default partition catches what comes when nobody
-- has called this for too long: nothing is lost then, but it grows without bound. Attaching a
-- partition locks out the readers of the default one for a moment; it gives up (55P03) rather than
-- queue behind a long reader, with everybody else behind it.
CREATE OR REPLACE FUNCTION extend_events(ahead integer DEFAULT 4) RETURNS integer
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '200ms'
AS $$
DECLARE
    v_size   CONSTANT bigint := 16777216;
    v_first  bigint := (SELECT last_value FROM job_event_seq) / v_size;
    v_name   text;
    v_made   integer := 0;
BEGIN
    IF extend_events.ahead IS NULL OR extend_events.ahead NOT BETWEEN 1 AND 64 THEN
        PERFORM refuse_field(1, 'ahead', extend_events.ahead::text, '1 to 64');
    END IF;
    -- One at a time; whoever comes second finds the work done.
    PERFORM pg_advisory_xact_lock(hashtextextended('jobledger extend_events ' || current_schema, 0));
    FOR n IN v_first .. v_first + extend_events.ahead - 1 LOOP
        v_name := 'job_event_' || n;
        CONTINUE WHEN to_regclass(quote_ident(current_schema) || '.' || v_name) IS NOT NULL;
        -- Nobody called in time: the default partition has events of this range, and keeps it.
        CONTINUE WHEN EXISTS (SELECT FROM job_event_default d WHERE d.seq >= n * v_size AND d.seq < (n + 1) * v_size);
        -- ATTACH, not PARTITION OF: the latter would lock out every reader and writer.
        EXECUTE format('CREATE TABLE %I (LIKE job_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_name);
        EXECUTE format('CREATE UNIQUE INDEX %I ON %I (job_id, version)', v_name || '_version', v_name);
        EXECUTE format('CREATE INDEX %I ON %I USING brin (seq)', v_name || '_seq', v_name);
        EXECUTE format('CREATE INDEX %I ON %I (job_id, generation) WHERE type = ''rejected''', v_name || '_rejected', v_name);
        EXECUTE format('ALTER TABLE job_event ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', v_name, n * v_size, (n + 1) * v_size);
        v_made := v_made + 1;
    END LOOP;
    RETURN v_made;
END
$$;
